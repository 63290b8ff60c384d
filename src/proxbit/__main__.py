"""``python -m proxbit``: the command line."""

from proxbit.cli.root import main

main()
