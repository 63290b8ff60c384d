"""``python -m proxbit``: the command line."""

from proxbit.cli import main

main()
