"""The theory as a tool: check a pair, recover what it optimizes, repair it."""

from proxbit.theory.recovery import Recovered, Refused, recover
from proxbit.theory.repairs import Repair, repair
from proxbit.theory.verdict import Verdict, check

__all__ = ["Recovered", "Refused", "Repair", "Verdict", "check", "recover", "repair"]
