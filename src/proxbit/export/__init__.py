"""Hard networks in other projects' formats."""
