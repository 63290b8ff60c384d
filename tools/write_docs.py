"""Write the generated parts of docs/ from the code; ``--check`` only compares."""

from __future__ import annotations

import sys
from pathlib import Path

import proxbit as pb
from proxbit.core.methods import METHODS, PAPER, Method
from proxbit.theory.formulas import RULES, formulas, input_strength, strength

ROOT = Path(__file__).resolve().parents[1]


def methods_table() -> str:
    """Name, maps and rule of every method."""
    lines = [
        "| method | name | F: the network sees | B: the gradient times | rule |",
        "|---|---|---|---|---|",
    ]
    for key, method in METHODS.items():
        f, b = (formula.full.replace("|", "\\|") for formula in formulas(method))
        lines.append(f"| {method.name} | `{key}` | {f} | {b} | {RULES[method.rule]} |")
    return "\n".join(lines)


def settings_table() -> str:
    """Strength, unit and scale of every method, in both settings."""
    lines = [
        "| method | default: strength | inputs | unit | scale "
        "| paper: strength | inputs | unit | scale |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for key, method in METHODS.items():
        cells = [*_settings(method), *_settings(PAPER[key])]
        lines.append(f"| {method.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _settings(method: Method) -> tuple[str, ...]:
    return strength(method), input_strength(method), method.unit, str(method.scale)


GENERATED = {
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
