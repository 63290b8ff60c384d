"""The packed file: its bits, its contents, and how it is written and checked."""
