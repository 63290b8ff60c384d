"""The theory as a tool: check a pair, recover its objective, repair it, draw it, follow a run."""

from proxbit.theory.bound import TrailPoint
from proxbit.theory.following import Trail, follow
from proxbit.theory.galleries import draw_linear_quantizer, gallery
from proxbit.theory.pictures import draw
from proxbit.theory.recovery import Recovered, Refused, recover
from proxbit.theory.repairs import Repair, repair
from proxbit.theory.verdict import Phase, Verdict, check

__all__ = [
    "Phase", "Recovered", "Refused", "Repair", "Trail", "TrailPoint", "Verdict", "check", "draw",
    "draw_linear_quantizer", "follow", "gallery", "recover", "repair",
]  # fmt: skip
