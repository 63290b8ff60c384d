"""Write docs/pairs from the code: one page and one picture per pair; ``--check`` only compares.

The closed forms of P, T and r on a page are compared with what ``recover`` finds before they are
written. A picture is compared byte for byte where matplotlib is the one of constraints.txt.
"""

from __future__ import annotations

import re
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from pair_catalogue import CATALOGUE, MU, Objective, Page
from write_docs import ROOT

import proxbit as pb
from proxbit.core.methods import METHODS, PC, Method
from proxbit.theory import (
    Phase,
    Verdict,
    check,
    draw,
    draw_linear_quantizer,
    gallery,
    recover,
    repair,
)
from proxbit.theory.formulas import formula
from proxbit.util.text import percent

PAGES = ROOT / "docs" / "pairs"
CLOSE = 2e-4  # a grid cell in which B reaches 0 costs the recovered P up to 1e-4


@cache
def verdict_of(page: Page) -> Verdict:
    """The verdict at the strength of the picture."""
    return check(page.pair, page.strength)


def formulas(page: Page) -> tuple[str, str]:
    """F and B, as the table of methods has them."""
    if page.file == "react":
        f, b = (formula(g).shifted() for g in (pb.bnn.forward, pb.bnn.backward))
    else:
        f, b = formula(page.pair.forward), formula(page.pair.backward)
    return f.full, b.full


def where(formulas: str) -> str:
    """What the letters of the formulas mean."""
    parts = []
    if re.search(r"\bs\b", formulas) or "SS" in formulas or "L(w)" in formulas:
        parts.append("s is the strength")
    if "SS(L(" in formulas:
        parts[:] = [
            "s is the rho of the linear quantizer L, a line and then ±1 from |w| = 1 - s on"
        ]
        parts.append("SS(z) = tanh u + u sech² u with u = z / 4")
    elif "SS" in formulas and "tanh u +" not in formulas:
        parts.append("u = s w / 2 and SS(w) = tanh u + u sech² u")
    if "|z|" in formulas:
        parts.append("z = s w, stopped at ±√2")
    if re.search(r"\bk\b", formulas):
        parts.append("k = max(1/s, 1)")
    return _wrap(f"Here {', '.join(parts)}.") + "\n\n" if parts else ""


def range_of(page: Page) -> str:
    """The verdict over the run of the page's method: its strengths, and its signs if it has any."""
    for key in page.methods:
        method = METHODS[key]
        low, high = float(method.schedule(0.0)), float(method.schedule(1.0))
        if method.rule == PC and (low < high or method.sharp):
            verdict = check(method)
            run = f"From strength {low:g} to {high:g}, the run of `{key}`"
            if len(verdict.phases) == 1:
                return f"{run}: {verdict.answer}."
            words = "; ".join(
                f"{_share(phase)}, {phase.verdict.answer}" for phase in verdict.phases
            )
            return f"{run} by default, it is {verdict.answer}: {words}."
    return ""


def _share(phase: Phase) -> str:
    answer = phase.verdict.answer if phase.verdict else ""
    return f"{percent(phase.share)} of the steps train {phase.what}, {answer}"


def recovered(page: Page) -> str:
    """P, T and r, after a comparison with what ``recover`` finds."""
    if page.objective is None:
        return ""
    compare(page, page.objective)
    rows = "".join(f"{_wrap(f'- {words}')}\n" for words in page.objective.words)
    return f"## Objective\n\nIt minimizes the loss of T(w) plus r(w) with the prox P:\n\n{rows}\n"


def compare(page: Page, stated: Objective) -> None:
    """Refuse to write a closed form that is not what the code recovers."""
    found = recover(page.pair, page.strength, MU)
    w = np.linspace(-1.9, 1.9, 77)
    z = np.linspace(max(found.domain[0], -1.9), min(found.domain[1], 1.9), 77).round(9)
    for name, ours, theirs in (
        ("P", stated.prox(w), found.prox(w)),
        ("T", stated.transform(z), found.transform(z)),
        ("r", stated.regularizer(z), found.regularizer(z, stated.gaps)),
    ):
        if not np.allclose(ours, theirs, atol=CLOSE, rtol=0):
            raise SystemExit(f"{page.file}: {name} on the page is not the {name} recovered")


def instead(page: Page) -> str:
    """For a refused pair, what the theory offers in its place."""
    options = [] if verdict_of(page).admitted else repair(page.pair, page.strength)
    rows = "".join(f"{_wrap(f'- {option}')}\n" for option in options)
    return f"## Admitted alternatives\n\n{rows}\n" if rows else ""


def text_of(page: Page) -> str:
    """One page."""
    f, b = formulas(page)
    names = ", ".join(f"`{key}`" for key in page.methods)
    method = f"{'Method' if len(page.methods) == 1 else 'Methods'}: {names}. " if names else ""
    verdict = verdict_of(page)
    wide = range_of(page)
    return (
        f"# {page.pair.name}\n\n"
        f"<!-- written by tools/write_pair_pages.py -->\n\n"
        f"{_wrap(f'{_proposed(page.source)}. {method}In Python: `{page.code}`.')}\n\n"
        f"    F(w) = {f}\n    B(w) = {b}\n\n"
        f"{where(f + ' ' + b)}"
        + (f"{_wrap(page.note)}\n\n" if page.note else "")
        + f"![{page.pair.name}: {_alternative(verdict.admitted)}]({page.file}.svg)\n\n"
        f"## Verdict\n\n{_wrap(f'At strength {page.strength:g} it is {verdict}. {wide}')}\n\n"
        + recovered(page)
        + instead(page)
        + f"## When to use it\n\n{_wrap(page.use)}\n\n[All pairs](README.md)\n"
    )


def _proposed(source: str) -> str:
    return source.capitalize() if source.startswith("the ") else f"Proposed by {source}"


def _wrap(text: str) -> str:
    return textwrap.fill(text, 100, subsequent_indent="  " if text.startswith("- ") else "")


def _alternative(admitted: bool) -> str:
    return "F, B, P, T, r and the envelope of r" if admitted else "F, B and why it is refused"


def index() -> str:
    """The table of all pairs."""
    head = ["| pair | F | B | verdict | proposed by |", "|---|---|---|---|---|"]
    table = "\n".join([*head, *(_row(page) for page in CATALOGUE)])
    return (
        "# Pairs\n\n<!-- written by tools/write_pair_pages.py -->\n\n"
        "This is every pair of the catalogue: the network sees F, and B multiplies the gradient. "
        "The\nverdict is Corollary 1's ([theory](../theory.md)): an admitted pair optimizes a real "
        "objective.\n\n"
        f"{table}\n\n![All pairs, F above B](gallery.svg)\n\n"
        "![The linear quantizer in three panels](linear-quantizer.svg)\n\n"
        "The linear quantizer L of PC, PQ and rPC (figure 4 of the paper): rho is how far from ±1 "
        "it is flat,\nvarrho how far from 0 it starts. With rho = 1 it is the sign.\n\n"
        "In the pictures a dot is a value taken and a ring a value only approached. To draw "
        "your own pair:\n"
        "`proxbit check my_pairs.py:name --plot name.svg`.\n"
    )


def _row(page: Page) -> str:
    f, b = (text.replace("|", "\\|") for text in formulas(page))
    word = verdict_of(page).answer
    return f"| [{page.pair.name}]({page.file}.md) | {f} | {b} | {word} | {page.source} |"


def made(folder: Path) -> Iterator[str]:
    """Write every file into a folder, and name it."""
    for page in CATALOGUE:
        (folder / f"{page.file}.md").write_text(text_of(page), encoding="utf-8")
        yield f"{page.file}.md"
        draw(page.pair, page.strength, folder / f"{page.file}.svg")
        yield f"{page.file}.svg"
    (folder / "README.md").write_text(index(), encoding="utf-8")
    yield "README.md"
    gallery(folder / "gallery.svg")
    yield "gallery.svg"
    draw_linear_quantizer(folder / "linear-quantizer.svg")
    yield "linear-quantizer.svg"


def pinned() -> bool:
    """Whether matplotlib is the one that drew the stored pictures."""
    import matplotlib

    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return f"matplotlib=={matplotlib.__version__}" in lines


def stale(folder: Path) -> list[str]:
    """Files that differ from the stored ones, or are no longer made."""
    exact, bad, names = pinned(), [], set()
    for name in made(folder):
        names.add(name)
        stored = PAGES / name
        compared = exact or stored.suffix == ".md"
        if not stored.exists() or (
            compared and stored.read_bytes() != (folder / name).read_bytes()
        ):
            bad.append(name)
    return bad + sorted(path.name for path in PAGES.glob("*") if path.name not in names)


def main(only_check: bool) -> int:
    """Write every page, or say which is out of date."""
    if not only_check:
        PAGES.mkdir(parents=True, exist_ok=True)
        for name in made(PAGES):
            print(name)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        bad = stale(Path(folder))
    if bad:
        print(f"out of date, run python tools/write_pair_pages.py: {', '.join(bad)}")
    return 1 if bad else 0


if __name__ == "__main__":
    known = {key for page in CATALOGUE for key in page.methods}
    assert known == set(METHODS) and all(isinstance(m, Method) for m in METHODS.values())
    raise SystemExit(main("--check" in sys.argv[1:]))
