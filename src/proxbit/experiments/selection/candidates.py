"""Which methods a selection tries: the admitted ones of the catalogue, and the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from proxbit.core import methods as catalogue
from proxbit.core.methods import SETTINGS
from proxbit.theory import check
from proxbit.util.text import require_known, saying


@dataclass(frozen=True)
class Candidate:
    """A method to try.

    Attributes:
        method: Its name, or FILE.py:NAME; what ``--method`` of ``proxbit train`` takes.
        admitted: Whether Corollary 1 admits every step of its run.
        verdict: The same in words, with the reasons.
    """

    method: str
    admitted: bool
    verdict: str


def find_candidates(
    settings: str = "default", methods: Sequence[str] = (), own: Sequence[str] = ()
) -> tuple[Candidate, ...]:
    """All admitted methods, or those that are named, whatever their verdict; then the user's own.

    >>> [each.method for each in find_candidates(methods=["BNN++", "bc"])]
    ['bnn++', 'bc']
    """
    require_known("settings", settings, SETTINGS)
    for name in own:
        if ".py:" not in name:
            raise ValueError(
                f"a pair of your own is FILE.py:NAME, not {name!r}: --methods names ours"
            )
    named = [_name(each, settings) for each in methods]
    named = named or [name for name, method in SETTINGS[settings].items() if method.binary]
    tried = [_candidate(name, settings) for name in dict.fromkeys([*named, *own])]
    return tuple(each for each in tried if each.admitted or methods or each.method in own)


def _name(given: str, settings: str) -> str:
    """The catalogue's name of a method, or FILE.py:NAME as it is."""
    if ".py:" in given:
        return given
    paper_name = catalogue.method(given, settings).name
    return next(key for key, method in SETTINGS[settings].items() if method.name == paper_name)


def _candidate(name: str, settings: str) -> Candidate:
    method = catalogue.method(name, settings)
    if not method.binary:
        raise ValueError(f"{name!r} trains in float and has no bits: name methods that have")
    with saying(name, ValueError):  # of what is not a pair at all
        verdict = check(method)
    return Candidate(name, verdict.admitted, str(verdict))
