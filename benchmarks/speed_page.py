"""Write the tables of docs/performance.md from results/speed/*.json, one for each machine."""

import json
from pathlib import Path
from typing import Any

from evidence import ROOT
from pairing import table

from proxbit.util.text import size

PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- speed:begin -->", "<!-- speed:end -->"
HEAD = ("contender", "times float", "ms", "file")


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN, 1)
    tables = "\n\n".join(machine(path) for path in sorted((ROOT / "results/speed").glob("*.json")))
    text = f"{before}{BEGIN}\n{tables}\n{END}{rest.split(END, 1)[1]}"
    PAGE.write_text(text, encoding="utf-8")


def machine(path: Path) -> str:
    held = json.loads(path.read_text(encoding="utf-8"))
    about = held["environment"]
    sets = ", ".join(about.get("instruction_sets", [])) or "not noted"
    lines = [
        f"## {about['cpu']}, {about['kernels']} kernels",
        f"Instruction sets: {sets}. {about['versions']}.",
        f"Commit {about['commit']}, {about['date']}.",
    ]
    if "limits" in about:
        lines.append(
            f"Measured on a larger CPU with `{about['limits']}`, which torch and OpenVINO heed; "
            "ONNX Runtime used all that this CPU has, so it is faster here than on a smaller one."
        )
    rows = [row for row in held["rows"] if not row["contender"].startswith("hard")]
    groups: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for row in rows:  # rows of one network may have been measured at different times
        groups.setdefault((row["network"], row["batch"], row["threads"]), []).append(row)
    for (network, batch, threads), some in groups.items():
        title = f"### {network}, batch {batch}, {threads} thread{'s' if threads > 1 else ''}"
        lines += [f"{title} ({about['kernels']})", table(HEAD, cells(some))]
        runs = {(row["commit"], row["date"]) for row in some if "commit" in row}
        if runs - {(about["commit"], about["date"])}:  # not of the last run
            lines.append(
                "; ".join(f"Commit {commit}, {date}" for commit, date in sorted(runs)) + "."
            )
    return "\n\n".join(lines)


def cells(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    base = next(row["ms"] for row in rows if row["contender"] == "float")
    return [
        (
            row["contender"],
            f"{row.get('times_float') or base / row['ms']:.2f}",
            f"{row['ms']:.2f}",
            "" if row["file_bytes"] is None else size(row["file_bytes"]),
        )
        for row in rows
    ]


if __name__ == "__main__":
    main()
