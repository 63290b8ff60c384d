"""The packed file: bits, what a file holds, and how it is written and checked."""
