"""Write the generated parts of README.md and docs/ from the code; ``--check`` only compares."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import proxbit as pb
from proxbit import maps, prox
from proxbit.methods import METHODS, PAPER, PC, PQ, PTB, RPC, Method

ROOT = Path(__file__).resolve().parents[1]

FORMULAS = {
    maps.identity: "w",
    maps.one: "1",
    maps.sign: "sign(w)",
    maps.inside: "1[\\|w\\| <= 1]",
    maps.triangle: "max(2 - 2\\|w\\|, 0)",
    maps.sign_swish: "SS(w) = tanh u + u sech² u, u = s w / 2",
    maps.sign_swish_slope: "SS'(w) = s sech² u (1 - u tanh u)",
    maps.poly: "k (√2 z - z\\|z\\|/2), z = s w within ±√2",
    maps.poly_slope: "max(k s (√2 - \\|z\\|), 0)",
    maps.soft_sign: "k tanh(s w)",
    maps.soft_sign_slope: "k s sech²(s w)",
    prox.linear_quantizer: "L(w): a line, then ±1 from \\|w\\| = 1 - s on",
}
RULES = {PC: "PC", PQ: "PQ", RPC: "rPC", PTB: "PTB"}


def formula(f: object) -> str:
    """The formula of a map, partial application or not."""
    return FORMULAS[f.func if isinstance(f, partial) else f]  # type: ignore[index]


def methods_table() -> str:
    """Name, maps and rule of every method."""
    lines = [
        "| method | name | F: the network sees | B: the gradient times | rule |",
        "|---|---|---|---|---|",
    ]
    for key, method in METHODS.items():
        f, b = formula(method.pair.forward), formula(method.pair.backward)
        if method.learn_shift:
            f, b = f.replace("w", "w - a"), b.replace("w", "w - a")
        lines.append(f"| {method.name} | `{key}` | {f} | {b} | {RULES[method.rule]} |")
    return "\n".join(lines)


def settings_table() -> str:
    """Strength, unit and scale of every method, in both settings."""
    lines = [
        "| method | default: strength | unit | scale | paper: strength | unit | scale |",
        "|---|---|---|---|---|---|---|",
    ]
    for key, method in METHODS.items():
        cells = [*_settings(method), *_settings(PAPER[key])]
        lines.append(f"| {method.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _settings(method: Method) -> tuple[str, str, str]:
    strength = str(method.schedule)
    if method.pair.forward in (maps.identity, maps.sign) and method.pair.backward in (
        maps.one,
        maps.inside,
        maps.triangle,
    ):
        strength = "none"
    if method.by_rate:
        strength = f"rate times λ, λ {strength}"
    return strength, method.unit, str(method.scale)


GENERATED = {
    "README.md": {"methods": methods_table},
    "docs/methods.md": {"methods": methods_table, "settings": settings_table},
}


def fill(text: str, name: str, body: str) -> str:
    """The text with the part between the markers of ``name`` replaced."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n{body}\n{end}{after}"


def main(check: bool) -> int:
    """Write every page, or say which is out of date."""
    stale = []
    for path, parts in GENERATED.items():
        page = ROOT / path
        old = new = page.read_text(encoding="utf-8")
        for name, make in parts.items():
            new = fill(new, name, make())
        if new != old and check:
            stale.append(path)
        elif new != old:
            page.write_text(new, encoding="utf-8")
    if stale:
        print(f"out of date, run python tools/write_docs.py: {', '.join(stale)}")
    return 1 if stale else 0


if __name__ == "__main__":
    assert pb.METHODS is METHODS
    raise SystemExit(main("--check" in sys.argv[1:]))
