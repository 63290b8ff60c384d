"""The theory as a tool: check a pair, recover what it optimizes, repair it, draw it."""

from proxbit.theory.pictures import draw, gallery
from proxbit.theory.recovery import Recovered, Refused, recover
from proxbit.theory.repairs import Repair, repair
from proxbit.theory.verdict import Verdict, check

__all__ = [
    "Recovered",
    "Refused",
    "Repair",
    "Verdict",
    "check",
    "draw",
    "gallery",
    "recover",
    "repair",
]
