"""Send every model of the zoo the whole way, and print or write what became of it.

Usage: python tools/models/sweep.py [NAME ...] [--markdown docs/models.md]

A name is that of a family as in timm/resnet26, or a library. The status is 1 where a promise was
broken; the table is written all the same, with the failures in it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import torch
from journey import METHODS, STEPS, Record, travel
from zoo import ENTRIES, prepare

from proxbit.util.text import size

BEGIN, END = "<!-- sweep:begin -->", "<!-- sweep:end -->"
HEADS = (
    "model", "job", "binary layers in BW", "BWA", "float", "packed in BW", "BWA", "outputs in BW",
    "BWA", "weights used", "remarks",
)  # fmt: skip


def row(records: Sequence[Record]) -> str:
    """One model: its two tasks side by side."""
    entry = records[0].entry
    every = [line for r in records for line in (*r.remarks, *_constant(r), *_failures(r))]
    used = {"?" if r.error else "all" if not r.unused else f"{len(r.unused)} not" for r in records}
    cells = (
        f"{entry.library} `{entry.name}`{_options(entry.options)}", entry.job,
        *(f"{r.binary} of {r.layers}" for r in records),
        size(records[0].bytes_float),
        *(size(r.bytes_packed) for r in records),
        *(_outputs(r) for r in records),
        ", ".join(sorted(used)), "; ".join(dict.fromkeys(every)),
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _options(options: tuple[tuple[str, object], ...]) -> str:
    given = ", ".join(f"{name}={value!r}" for name, value in options)
    return f" with `{given}`" if given else ""


def _outputs(record: Record) -> str:
    if record.error:
        return "?"
    return "equal" if record.difference == 0 else f"{record.difference:.0e}"


def _constant(record: Record) -> list[str]:
    inputs = "input" if record.constant == 1 else "inputs"
    silent = "" if record.told else ", which the report cannot know"
    text = f"{record.task}: {record.constant} {inputs} of one sign{silent}"
    return [text] * bool(record.constant)


def _failures(record: Record) -> list[str]:
    return [f"**{record.task} breaks: {text}**" for text in record.broken]


def table(records: Sequence[Record]) -> str:
    """Versions, counts and a row for each model."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(f"{record.entry.library}/{record.entry.name}", []).append(record)
    whole = sum(not any(r.broken for r in group) for group in groups.values())
    dull = sum(any(r.constant for r in group) for group in groups.values())
    names = ("torch", "timm", "torchvision", "transformers")
    versions = ", ".join(f"{name} {metadata.version(name).partition('+')[0]}" for name in names)
    return "\n".join(
        [
            f"With {versions}: {whole} of {len(groups)} models keep every promise. In BWA "
            f"{dull} of them have binary inputs of one sign.",
            "",
            f"| {' | '.join(HEADS)} |",
            "|---" * len(HEADS) + "|",
            *(row(group) for group in groups.values()),
        ]
    )


def write(page: Path, text: str) -> None:
    """Put the table between its marks."""
    old = page.read_text(encoding="utf-8")
    before, rest = old.split(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}", encoding="utf-8")


def chosen(names: Sequence[str]) -> list[str]:
    """The models that were named, by themselves or by their library; all without names."""
    found = [key for key in ENTRIES if not names or {key, key.partition("/")[0]} & set(names)]
    if not found:
        raise SystemExit(f"no model is called {', '.join(names)}: see tools/models/zoo.py")
    return found


def main() -> None:
    """Run, print a line each, and write the page if one was named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("names", nargs="*", help="which; default all")
    parser.add_argument("--markdown", type=Path, help="the page whose table is written")
    given = parser.parse_args()
    if given.markdown and given.names:
        parser.error("--markdown writes the whole table: name no models")
    prepare()
    torch.set_num_threads(1)  # tensors are tiny
    records = []
    for key in chosen(given.names):
        for task in METHODS:
            records.append(travel(ENTRIES[key], task))
            verdict = "; ".join(records[-1].broken) or "ok"
            print(f"{key} {task}: {verdict} ({records[-1].seconds:.1f} s)", flush=True)
    if given.markdown:
        write(given.markdown, table(records))
    broken = sum(bool(record.broken) for record in records)
    print(f"{len(records) - broken} of {len(records)} whole, {STEPS} steps of training each")
    raise SystemExit(1 if broken else 0)


if __name__ == "__main__":
    main()
