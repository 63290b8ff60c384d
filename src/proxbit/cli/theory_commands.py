"""``proxbit check`` and ``methods``: the theory on the command line."""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeAlias

import typer

from proxbit.cli.errors import in_options, mistakes, say
from proxbit.cli.options import JSON, Name, option
from proxbit.core import methods as catalogue
from proxbit.core.methods import METHODS, Method
from proxbit.theory import Verdict, formulas, pictures, repair
from proxbit.theory import check as check_pair
from proxbit.theory.axis import REACH
from proxbit.util.figures import check_place
from proxbit.util.text import numbers, table

_Range: TypeAlias = float | tuple[float, float]
EXITS = {"admitted": 0, "admitted in part": 3, "refused": 3, "not resolved": 4}


def check(
    pair: Annotated[
        str,
        typer.Argument(help="A method (bnn+, ede, ...) or FILE.py:NAME. Your file is executed."),
    ],
    strength: Annotated[
        Name, option("One strength (5) or a range (1:30); a method's own range by default.")
    ] = None,
    plot: Annotated[
        Name,
        option(
            "Draw the pair into FILE.png or FILE.svg; for a range, at its middle strength.",
            metavar="FILE",
        ),
    ] = None,
    within: Annotated[
        Name, option("Range of weights to look at; -1000:1000 by default.", metavar="LOW:HIGH")
    ] = None,
    as_json: JSON = False,
) -> None:
    """Ask Corollary 1 whether a pair optimizes a real objective.

    A method is judged phase by phase: which share of its steps trains which pair.

    Exit status: 0 admitted, 3 refused (all or a part of the run), 4 not resolved, 2 a mistake in
    the call.

    proxbit check bnn+

    proxbit check my_pairs.py:soft_sign --strength 1:30 --json
    """
    with mistakes():
        found = catalogue.method(pair)
        at = None if strength is None else _range(strength)
        if plot is not None:
            check_place(plot)
        verdict = check_pair(found, at, within=_reach(within))
        drawn = None if plot is None else _draw(found, at, verdict.strengths, plot)
    if as_json:
        typer.echo(json.dumps(verdict.to_dict()))
    else:
        say(_told(verdict))
        if verdict.answer == "refused":
            _suggest(found, verdict.strengths)
        if drawn is not None:
            say(f"drawn at strength {drawn:.3g}: {plot}")
    raise typer.Exit(EXITS[verdict.answer])


def _told(verdict: Verdict) -> str:
    """The verdict in a line, or in one for each phase."""
    if len(verdict.phases) < 2:
        return in_options(f"{verdict.name}: {verdict}")
    lines = [f"{verdict.name}: {verdict.answer}", *map(str, verdict.phases)]
    return in_options("\n  ".join(lines))


def _draw(found: Method, at: _Range | None, strengths: tuple[float, ...], plot: str) -> float:
    """The picture of a pair at the middle of the strengths looked at, and that strength."""
    if not strengths:  # refused by its rule: its pair was not looked at
        middle = float(found.schedule(0.5))
        strengths = check_pair(found.pair, at if at is not None else middle).strengths
    strength = strengths[len(strengths) // 2]
    pictures.draw(found.pair, strength, plot)
    return strength


def _suggest(found: Method, strengths: tuple[float, ...]) -> None:
    if not strengths:
        return
    for neighbour in repair(found.pair, strengths[-1]):
        say(f"  admitted instead: {neighbour}")


def methods(as_json: JSON = False) -> None:
    """List every method: what the network sees (F), the gradient's factor (B), and its verdict."""
    rows = [_about(key, method) for key, method in METHODS.items()]
    typer.echo(json.dumps(rows) if as_json else _in_columns(rows))


def _in_columns(rows: list[dict[str, Any]]) -> str:
    """The methods as a table with short formulas, and those written out below it."""
    used = [formula for method in METHODS.values() for formula in formulas.formulas(method)]
    short = {formula.full: formula.short for formula in used}
    head = ("name", "F", "B", "strength", "rule", "verdict")
    words = short | {"admitted in part": "in part"}
    cells = [[words.get(row[column], row[column]) for column in head] for row in rows]
    written_out = [full for full in short if full != short[full]]
    return "\n".join([table(head, cells), "", *written_out, formulas.LETTERS, formulas.SIGNS])


def _about(key: str, method: Method) -> dict[str, Any]:
    """One method as plain data, in the words of docs/methods.md."""
    forward, backward = formulas.formulas(method)
    verdict = check_pair(method)
    return {
        "name": key,
        "method": method.name,
        "F": forward.full,
        "B": backward.full,
        "strength": formulas.strength(method),
        "inputs": formulas.input_strength(method),
        "unit": method.unit,
        "scale": str(method.scale),
        "rule": formulas.RULES[method.rule],
        "verdict": verdict.answer,
        "phases": [phase.to_dict() for phase in verdict.phases],
        "reasons": list(verdict.reasons),
    }


def _reach(text: str | None) -> tuple[float, float]:
    """'-10:10'."""
    match (-REACH, REACH) if text is None else numbers(text):
        case [low, high]:
            return low, high
    raise ValueError(f"a range of weights is LOW:HIGH, such as -10:10, not {text!r}")


def _range(text: str) -> _Range:
    """'5' or '1:30'."""
    match numbers(text):
        case [one]:
            return one
        case [low, high]:
            return low, high
    raise ValueError(f"a strength is a number or LOW:HIGH, such as 5 or 1:30, not {text!r}")
