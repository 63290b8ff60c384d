"""The runs on CIFAR-10 that pages and pictures show, from the lines in results/.

Lines of ``proxbit reproduce`` (results/results.jsonl, results/long/) and of runs of their own
(results/runs.jsonl, written by benchmarks/run_lines.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from write_docs import ROOT

RESULTS = ROOT / "results"


class Run(NamedTuple):
    """One finished run on CIFAR-10, hard after its last epoch; from random weights if not ``full``.

    The method has the pair of its binary inputs behind it, if that is another's.
    """

    network: str
    task: str
    method: str
    epochs: int
    hard: float
    full: float | None
    bytes_packed: int
    bytes_float: int


def runs() -> Iterator[Run]:
    """Every run with one-bit weights, from both kinds of lines."""
    for name in ("results.jsonl", "long/results.jsonl"):
        for line in _lines(RESULTS / name):
            if (line["grid"], line["row"]) == ("cnn", "cifar10") and line["result"].get("hard"):
                yield _run(line["config"], line["result"], line["curve"][-1]["hard"])
    for line in _lines(RESULTS / "runs.jsonl"):
        yield _run(line["options"], line["result"], line["result"]["last"])


def _run(options: dict[str, Any], result: dict[str, Any], last: float) -> Run:
    inputs = options.get("input_pair")
    method = options["method"] if inputs is None else f"{options['method']}, inputs {inputs}"
    about = (options["model"], options["task"], method, options["epochs"])
    return Run(*about, last, result["float"], result["bytes_packed"], result["bytes_float"])


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
