"""Write docs/pairs from the code: one page and one picture per pair; ``--check`` only compares.

The closed forms of P, T and r on a page are compared with what ``recover`` finds before they are
written. A picture is compared byte for byte where matplotlib is the one of constraints.txt.
"""

from __future__ import annotations

import re
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from write_docs import ROOT, formula

import proxbit as pb
from proxbit import maps
from proxbit.methods import METHODS, PC, Method
from proxbit.theory import Verdict, check, recover, repair
from proxbit.theory.axis import Array
from proxbit.theory.pictures import draw, gallery

PAGES = ROOT / "docs" / "pairs"
ALSO = {
    maps.peaked_swish: "SS(w) / 1.1997, held at ±1 beyond the peak of SS at |w| = 2.3994 / s",
    maps.peaked_swish_slope: "SS'(w) / 1.1997, and 0 beyond the peak",
}
CLOSE = 2e-4  # a grid cell in which B reaches 0 costs the recovered P up to 1e-4
MU = 2.0  # the smoothing at which closed forms are compared, so that a lost 1 / mu shows


@dataclass(frozen=True)
class Objective:
    """P, T and r in closed form: in words, and as functions for the comparison."""

    words: tuple[str, str, str]
    prox: Callable[[Array], Array]
    transform: Callable[[Array], Array]
    regularizer: Callable[[Array], Array]
    gaps: str = "lowest"


@dataclass(frozen=True)
class Page:
    """What the code cannot know of a pair: its source, its use, its objective."""

    file: str
    pair: pb.Pair
    strength: float
    methods: tuple[str, ...]
    source: str
    use: str
    objective: Objective | None = None
    note: str = ""
    code: str = ""


def _sign(w: Array) -> Array:
    return np.where(w >= 0, 1.0, -1.0)


def _zero(z: Array) -> Array:
    return np.zeros_like(z)


def _same(z: Array) -> Array:
    return z


def _smooth(pair: pb.Pair, strength: float, t: str) -> Objective:
    import torch

    def transform(z: Array) -> Array:
        return pair.forward(torch.from_numpy(z), strength).numpy()

    words = ("P(w) = w", f"T = {t}, the forward map itself", "r = 0: no regularizer")
    return Objective(words, _same, transform, _zero)


RHO = 0.3
IDENTITY = Objective(("P(w) = w", "T(z) = z", "r = 0: plain gradient descent"), _same, _same, _zero)
BC = Objective(
    (
        "P(w) = sign(w)",
        "T(z) = z",
        "r is 0 on {-1, +1} and infinite elsewhere: the constraint itself",
    ),
    _sign,
    _same,
    lambda z: np.where(np.abs(z) == 1, 0.0, np.inf),
    "infinite",
)
LINE = Objective(
    (
        "P = L: P(w) = w / (1 - s), clamped to [-1, 1]",
        "T(z) = z",
        "r(z) = -s z² / (2µ) on [-1, 1], infinite elsewhere: concave, it pushes towards ±1",
    ),
    lambda w: np.clip(w / (1 - RHO), -1, 1),
    _same,
    lambda z: np.where(np.abs(z) <= 1, -RHO * z * z / (2 * MU), np.inf),
)
TIED = Objective(
    (
        "P = L: P(w) = sign(w) min(|w| + s, 1)",
        "T(z) = z",
        "r(z) = (s / µ) (s - |z|) for s <= |z| <= 1, infinite beyond 1: up to a constant s / µ "
        "times the distance to {-1, +1}, ProxQuant's regularizer; any larger r for |z| < s",
    ),
    lambda w: _sign(w) * np.minimum(np.abs(w) + RHO, 1),
    _same,
    lambda z: np.select(
        [np.abs(z) < RHO, np.abs(z) <= 1],
        [(RHO**2 - z * z) / (2 * MU), RHO * (RHO - np.abs(z)) / MU],
        np.inf,
    ),
)
BNN = Objective(
    (
        "P(w) = sign(w) on [-1, 1]; free beyond, where we let it go on with slope 1 / µ",
        "T(z) = z clamped to [-1, 1]",
        "r(z) = (1 - z²) / (2µ) or anything larger between -1 and +1; (1 - 1 / µ) (|z| - 1)² / 2 "
        "beyond, by our choice of P",
    ),
    lambda w: _sign(w) * (1 + np.maximum(np.abs(w) - 1, 0) / MU),
    lambda z: np.clip(z, -1, 1),
    lambda z: np.where(
        np.abs(z) < 1, (1 - z * z) / (2 * MU), (1 - 1 / MU) * (np.abs(z) - 1) ** 2 / 2
    ),
)

LU = "Lu et al., 2023 (ProxConnect++)"
BARE = "Here it is the bare pair, on weights, without the rest of that paper."
CATALOGUE = (
    Page(
        "fp", pb.full_precision, 1.0, ("fp",), "the float baseline",
        "As the float network to compare with; it is never binary.", IDENTITY,
        code="pb.full_precision",
    ),
    Page(
        "bc", pb.binary_connect, 1.0, ("bc", "ptb"), "Courbariaux et al., 2015 (BinaryConnect)",
        "As the simplest hard pair, when a network must be exactly ±1 from the first step on.",
        BC, code="pb.binary_connect",
        note="PTB has the same pair, but trains in float and takes the sign afterwards.",
    ),
    Page(
        "pc", pb.prox_connect(), RHO, ("pc",), "Dockhorn et al., 2021 (ProxConnect)",
        "When fine-tuning: it goes from the float network to the sign without a jump.", LINE,
        code="pb.prox_connect()",
        note="L is a line through 0 here (varrho = 0); B is 1 even where L is flat.",
    ),
    Page(
        "lq", replace(pb.prox_connect(None), name="LQ"), RHO, ("pq", "rpc"),
        "Bai et al., 2018 (ProxQuant); the general L is of Dockhorn et al., 2021",
        "To compare with ProxQuant; under the rule PC the same map is a sound ProxConnect.", TIED,
        code="pb.prox_connect(None)",
        note="L leaves 0 at the height varrho = s. The pair is admitted; the methods PQ and rPC "
        "are not of the family all the same, because their steps start at the quantized weight.",
    ),
    Page(
        "bnn", pb.bnn, 1.0, ("bnn",), "Hubara et al., 2016 (BNN)",
        "As the usual baseline of hard networks, where weights fill [-1, 1]; at the size of a "
        "transformer's weights (0.02) it is BC.", BNN, code="pb.bnn",
    ),
    Page(
        "bnn-plus", pb.bnn_plus, 5.0, ("bnn+",), "Darabi et al., 2018 (BNN+)",
        "To compare with; for training take BNN++, which keeps this B. Beyond |w| = 2.3994 / s B "
        "is negative, so that large weights step against their gradient.", code="pb.bnn_plus",
        note="This is the pair of the ProxConnect++ paper; the original has a regularizer too.",
    ),
    Page(
        "bnn-plus-plus", pb.bnn_plus_plus, 5.0, ("bnn++",), LU,
        "As the first choice of the smooth pairs, with a strength that grows; harden at the end.",
        _smooth(pb.bnn_plus_plus, 5.0, "SS"), code="pb.bnn_plus_plus",
        note="F overshoots to 1.1997 at |w| = 2.3994 / s and B is negative beyond: that is "
        "allowed, since P and not F must never fall.",
    ),
    Page(
        "monotone-bnn-plus-plus", pb.monotone_bnn_plus_plus, 5.0, (), "proxbit, after " + LU,
        "Instead of BNN++ when F should never fall, or should be exactly ±1 from some weight on.",
        _smooth(pb.monotone_bnn_plus_plus, 5.0, "SS / 1.1997 up to its peak"),
        code="pb.monotone_bnn_plus_plus",
    ),
    Page(
        "bi-real", pb.bi_real, 1.0, ("bi-real",), "Liu et al., 2018 (Bi-Real Net)",
        "To compare with; Poly+ at strength 1.41 has the same B and an objective.",
        code="pb.bi_real", note=BARE,
    ),
    Page(
        "r-bnn", pb.r_bnn, 2.0, ("r-bnn",), "Lin et al., 2020 (Rotated BNN)",
        "To compare with; Poly+ keeps this B and has an objective.", code="pb.r_bnn", note=BARE,
    ),
    Page(
        "poly-plus", pb.poly_plus, 2.0, ("poly+",), LU,
        "As a smooth pair that never overshoots and is exactly ±1 from |w| = 1.41 / s on, s >= 1.",
        _smooth(pb.poly_plus, 2.0, "the two parabolas"), code="pb.poly_plus",
    ),
    Page(
        "ede", pb.ede, 2.0, ("ede",), "Qin et al., 2020 (IR-Net)",
        "To compare with; EDE+ keeps this B and has an objective.", code="pb.ede", note=BARE,
    ),
    Page(
        "ede-plus", pb.ede_plus, 2.0, ("ede+",), LU,
        "As a smooth pair that never falls and reaches every weight with some gradient.",
        _smooth(pb.ede_plus, 2.0, "k tanh(s z)"), code="pb.ede_plus",
    ),
    Page(
        "react", replace(pb.shifted(pb.bnn, 0.5), name="ReAct"), 1.0, ("react",),
        "Liu et al., 2020 (ReActNet), as read by " + LU,
        "When the weights of a channel are not centred on 0: the shift a is learned.",
        code="pb.shifted(pb.bnn, a)",
        note="BNN around a, drawn at a = 0.5. It inherits BNN's verdict and, moved by a, its P, T "
        "and r; P is known up to a constant only, and the picture has P(0) = 0.",
    ),
)  # fmt: skip


@cache
def verdict_of(page: Page) -> Verdict:
    """The verdict at the strength of the picture."""
    return check(page.pair, page.strength)


def map_formula(f: object, page: Page) -> str:
    """The formula of one map, as the table of methods has it."""
    if page.file == "react":
        bare = pb.bnn.forward if f is page.pair.forward else pb.bnn.backward
        return formula(bare).replace("\\|", "|").replace("w", "w - a")
    return ALSO[f] if f in ALSO else formula(f).replace("\\|", "|")  # type: ignore[index]


def where(formulas: str) -> str:
    """What the letters of the formulas mean."""
    parts = []
    if re.search(r"\bs\b", formulas) or "SS" in formulas or "L(w)" in formulas:
        parts.append("s is the strength")
    if "SS" in formulas and "tanh u +" not in formulas:
        parts.append("u = s w / 2 and SS(w) = tanh u + u sech² u")
    if "|z|" in formulas:
        parts.append("z = s w, stopped at ±√2")
    if re.search(r"\bk\b", formulas):
        parts.append("k = max(1/s, 1)")
    return f"Here {', '.join(parts)}.\n\n" if parts else ""


def range_of(page: Page) -> str:
    """The verdict over the strengths that the page's method goes through."""
    for method in (METHODS[key] for key in page.methods):
        low, high = float(method.schedule(0.0)), float(method.schedule(1.0))
        if low < high and method.rule == PC:
            word = "admitted" if check(page.pair, (low, high)).admitted else "refused"
            return f"From strength {low:g} to {high:g}, the range of `{page.methods[0]}`: {word}."
    return ""


def recovered(page: Page) -> str:
    """P, T and r, after a comparison with what ``recover`` finds."""
    if page.objective is None:
        return ""
    compare(page, page.objective)
    rows = "".join(f"{_wrap(f'- {words}')}\n" for words in page.objective.words)
    return f"## What it optimizes\n\nThe loss of T(w) plus r(w), by way of the prox P:\n\n{rows}\n"


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
    return f"## Admitted instead\n\n{rows}\n" if rows else ""


def text_of(page: Page) -> str:
    """One page."""
    f, b = (map_formula(g, page) for g in (page.pair.forward, page.pair.backward))
    names = ", ".join(f"`{key}`" for key in page.methods)
    method = f"{'Method' if len(page.methods) == 1 else 'Methods'}: {names}. " if names else ""
    verdict = verdict_of(page)
    wide = range_of(page)
    return (
        f"# {page.pair.name}\n\n"
        f"<!-- written by tools/write_pair_pages.py -->\n\n"
        f"{_wrap(f'Proposed by: {page.source}. {method}In Python: `{page.code}`.')}\n\n"
        f"    F(w) = {f}\n    B(w) = {b}\n\n"
        f"{where(f + ' ' + b)}"
        + (f"{_wrap(page.note)}\n\n" if page.note else "")
        + f"![{page.pair.name}: {_alternative(verdict.admitted)}]({page.file}.svg)\n\n"
        f"## Verdict\n\n{_wrap(f'At strength {page.strength:g} it is {verdict}. {wide}')}\n\n"
        + recovered(page)
        + instead(page)
        + f"## When to use it\n\n{_wrap(page.use)}\n\n[All pairs](README.md)\n"
    )


def _wrap(text: str) -> str:
    return textwrap.fill(text, 100, subsequent_indent="  " if text.startswith("- ") else "")


def _alternative(admitted: bool) -> str:
    return "F, B, P, T, r and the envelope of r" if admitted else "F, B and why it is refused"


def index() -> str:
    """The table of all pairs."""
    rows = [
        f"| [{page.pair.name}]({page.file}.md) | {_cell(page, page.pair.forward)} | "
        f"{_cell(page, page.pair.backward)} | {_word(page)} | {page.source} |"
        for page in CATALOGUE
    ]
    table = "\n".join(["| pair | F | B | verdict | proposed by |", "|---|---|---|---|---|", *rows])
    return (
        "# Pairs\n\n<!-- written by tools/write_pair_pages.py -->\n\n"
        "Every pair of the catalogue: F is what the network sees, B what multiplies the gradient. "
        "The\nverdict is Corollary 1's ([theory](../theory.md)): an admitted pair optimizes a real "
        "objective.\n\n"
        f"{table}\n\n![All pairs, F above B](gallery.svg)\n\n"
        "In pictures a dot is the value taken and a ring a value only approached. Your own pair:\n"
        "`proxbit check my_pairs.py:name --plot name.svg`.\n"
    )


def _cell(page: Page, f: object) -> str:
    return map_formula(f, page).replace("|", "\\|")


def _word(page: Page) -> str:
    return "admitted" if verdict_of(page).admitted else "refused"


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
