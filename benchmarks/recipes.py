"""Try recipes: short runs of ResNet-20 on CIFAR-10, fine-tuned, each a process of its own.

    python benchmarks/recipes.py --data npz:cifar10.npz --weights resnet20.safetensors rates

A round is a list of candidates in ROUNDS. Done cells are skipped, an interrupted one continues, and
every result is one line of results/recipes.jsonl. Accuracy is that of the hard network on 5,000
images held back from training: the test images choose nothing.
"""

import argparse
import json
import math
import operator
import os
import statistics
import subprocess
import sys
from itertools import product
from pathlib import Path

from evidence import environment, write_section

BASE = {"model": "resnet20", "epochs": 1, "limit": 176, "hold_back": 0.1, "normalize": "imagenet"}

Cell = dict[str, object]
Line = dict[str, dict[str, object]]
HEAD = (
    "| method | options | soft % | hard at once % | hard at the end % | seeds |\n"
    "| --- | --- | --: | --: | --: | --: |"
)
BUDGET = 5  # candidates that every method was given at least, in BW and BWA
TALLY = (
    "| task | method | candidates | the best | hard % | best of five % |\n"
    "| --- | --- | --: | --- | --: | --: |"
)
NEW_SECTION = "## What was tried\n\n{marks}\n"


def grid(**choices: object) -> list[Cell]:
    """Every combination of the choices; a tuple is a choice, anything else is fixed."""
    lists = [value if isinstance(value, tuple) else (value,) for value in choices.values()]
    return [dict(zip(choices, values, strict=True)) for values in product(*lists)]


OTHERS = ("ptb", "pq", "rpc", "bnn", "bnn+", "bi-real", "r-bnn", "ede", "react")
EVERY = ("bc", "pc", "bnn", "bnn+", "bi-real", "r-bnn", "poly+", "ede", "ede+", "react")
BESIDE = ("pq", "rpc", "pc", "bnn", "bnn+")  # with binary inputs, besides BC and BNN++
ROUNDS: dict[str, list[Cell]] = {
    "rates": grid(rate=(3e-3, 1e-2, 1e-3), method=("bc", "bnn++")),
    "sharp": grid(method="bnn++", sharp=0.2, sharp_strength=2.0),
    "distill": grid(method=("bc", "bnn++"), distill=True),
    "methods": grid(method=OTHERS),
    "paper": grid(method=("bnn++", "bc"), settings="paper"),
    "repeat": grid(rate=3e-3, method=("bc", "bnn++")),
    "tasks": [
        *grid(task=("BWA", "BWAA"), method=("bc", "bnn")),
        *grid(task="BWAA", method="bnn++", input_strength="1:20"),
    ],
    "relu": grid(task="BWA", method="bc", relu="identity"),
    "inputs": grid(
        task="BWA", method="bnn++", input_strength=("1:20", "1", "2", "1:5", "2:10", "1:10:log")
    ),
    "inputs-sharp": grid(task="BWA", method="bnn++", input_strength="1:5", sharp=(0.3, 0.6)),
    "inputs-rate": [
        *grid(task="BWA", method="bc", rate=(1e-2, 1e-3)),
        *grid(task="BWA", method="bnn++", input_strength="1:5", rate=(1e-2, 1e-3)),
    ],
    "inputs-distill": [
        *grid(task="BWA", method="bc", distill=True),
        *grid(task="BWA", method="bnn++", input_strength="1:5", distill=True),
    ],
    "inputs-methods": grid(task="BWA", method=("bnn+", "pc")),
    "whole": grid(limit=352, method=("bc", "bnn++")),
    "whole-unit": grid(limit=352, method="bnn++", unit=("current", "initial")),
    "whole-log": grid(limit=352, method="bnn++", strength=("1:20:log", "1:40:log"), unit="current"),
    "whole-end": grid(limit=352, method="bnn++", strength="1:10", unit="current"),
    "whole-inputs": [
        *grid(limit=352, task="BWA", method=("bc", "bnn")),
        *grid(limit=352, task="BWA", method="bnn++", input_strength="1:5"),
    ],
    "steps": [
        *grid(method="bnn++", warmup=0.2),
        *grid(method="bnn++", clip_norm=1.0),
    ],
    "final": grid(method=("pq", "rpc"), strength=("0:3", "0:30")),
    "tune": [
        *grid(method="ede+", strength=("0.2:10:log", "0.2:40:log", "1:40:log")),
        *grid(method="poly+", strength=("0.1:10:log", "0.1:40:log", "1:40:log")),
        *grid(method="react", rate=1e-3),
        *grid(method="pc", strength=("0:0.5", "0:1", "0:2")),
        *grid(method="bnn+", strength=("1", "2")),
        *grid(method="bc", scale="layer"),
        *grid(method="bnn++", scale="layer"),
    ],
}
LONG: Cell = {"epochs": 6, "limit": 352}
SIGNS_SOON: Cell = {"method": "bnn++", "strength": "1:3:log", "sharp": 0.5}  # the default
NO_SIGNS: Cell = {"sharp": 0.0}
TASKS = ("BW", "BWA", "BWAA")
SOFT = ("bnn++", "poly+", "ede+")


def write_out(before: Cell, methods: tuple[str, ...], tasks: tuple[str, ...] = TASKS) -> None:
    """Name in the cells so far what was the default when they ran, where they leave it open."""
    for cell in (cell for cells in ROUNDS.values() for cell in cells if "settings" not in cell):
        if cell["method"] in methods and cell.get("task", "BW") in tasks:
            cell |= {name: value for name, value in before.items() if name not in cell}


write_out({"strength": "1:20"}, ("bnn++",))
write_out({"unit": "initial"} | NO_SIGNS, SOFT)
ROUNDS |= {
    "logarithm": grid(method="bnn++"),
    "logarithm-inputs": grid(task="BWA", method="bnn++", **NO_SIGNS),
    "plus-unit": grid(method=("poly+", "ede+"), unit="current"),
    "originals": grid(method=("r-bnn", "ede"), strength=("0.1:10:log", "1:10:log"), unit="current"),
    "equal": [
        *grid(method=("pq", "rpc"), strength="0:1"),
        *grid(method=("ptb", "pq", "rpc", "bnn", "bi-real"), rate=(1e-3, 1e-2)),
        *grid(method=("bnn+", "r-bnn", "ede"), rate=1e-3),
        *grid(method="react", rate=1e-2),
        *grid(method=("ptb", "bnn", "bi-real", "react", "pc"), scale="layer"),
        *grid(method=("ptb", *EVERY), latent_decay=1e-4),
    ],
    "inputs-equal": [
        *grid(task="BWA", method=BESIDE),
        *grid(task="BWA", method=BESIDE, rate=1e-2),
        *grid(task="BWA", method=("pq", "rpc", "pc", "bnn"), rate=1e-3),
        *grid(task="BWA", method="bnn++", rate=1e-2),
        *grid(task="BWA", method=("pq", "rpc", "pc"), rate=3e-2),
        *grid(task="BWA", method=("pq", "rpc"), rate=1e-2, input_strength="0:2"),
        *grid(task="BWA", method="pc", rate=1e-2, input_strength="0:1"),
        *grid(task="BWA", method="bnn+", rate=1e-2, input_strength=("1", "2")),
        *grid(task="BWA", method="bnn+", rate=1e-2, strength="1", input_strength="1"),
        *grid(task="BWA", method="bnn", rate=1e-2, relu="identity"),
        *grid(task="BWA", method="bnn", rate=1e-2, distill=True),
    ],
    "inputs-rate-whole": [
        *grid(limit=352, task="BWA", method=("bnn++", "pc"), rate=1e-2),
        *grid(limit=352, task="BWA", method=("bnn++", "pc")),
    ],
    "wrapped": [
        *grid(task="BWAA", method="bnn++", sharp=(0.0, 0.2)),
        *grid(task="BWAA", method="bnn++", input_strength="1:10", **NO_SIGNS),
        *grid(task="BWAA", method="bc"),
    ],
    "longer": [
        *grid(**LONG, method=("bc", "bnn++")),
        *grid(**LONG, **SIGNS_SOON),
        *grid(**LONG, **SIGNS_SOON, sharp_strength=1.0),
    ],
    "signs-soon": [
        *grid(**SIGNS_SOON),
        *grid(limit=352, **SIGNS_SOON),
        *grid(task="BWA", **SIGNS_SOON),
        *grid(method="bnn++", strength="1:3:log"),
    ],
    "signs-others": grid(method=("poly+", "ede+"), strength="1:3:log", sharp=0.5),
    "sharp-again": grid(task=("BWA", "BW"), method="bnn++", sharp=0.2),
    "frozen": grid(method=("bnn++", "bc"), frozen=(0.05, 0.3)),
    "decay": grid(method="bnn++", latent_decay=(1e-4, 1e-2)),
    "optimizer": grid(method=("bnn++", "bc"), optimizer="sgd"),
}
write_out({"strength": "1:20:log"}, ("bnn++",))
write_out({"strength": "1:40:log"}, SOFT)
write_out(NO_SIGNS, SOFT, ("BW",))
write_out({"sharp": 0.2}, (*SOFT, "pc"), ("BWA", "BWAA"))
write_out({"input_strength": "0.5"}, ("bnn+",), ("BWA", "BWAA"))
write_out({"rate": 3e-3}, ("bc", "bnn++", *BESIDE), ("BWA", "BWAA"))
write_out({"relu": "hardtanh"}, ("bnn++", "bnn", "bnn+"), ("BWA", "BWAA"))
ROUNDS |= {
    "relu-again": [
        *grid(task="BWA", rate=1e-2, relu=("identity", "prelu", "hardtanh"), **SIGNS_SOON),
        *grid(task="BWA", rate=1e-2, relu="identity", method="bc"),
        *grid(task="BWA", rate=1e-2, relu="identity", method="pc", sharp=0.2),
        *grid(task="BWA", rate=1e-2, relu="identity", method="bnn+", input_strength="2"),
    ],
}


def name_of(cell: Cell) -> str:
    """A folder name that says what differs from the base."""
    return " ".join(f"{key}={value}" for key, value in cell.items()).replace("/", "_")


def run(cell: Cell, common: Cell, work: Path, threads: int) -> dict[str, object]:
    """Train one candidate, or continue it; its final figures."""
    folder = work / name_of(cell).replace(" ", ",")
    if (folder / "last.safetensors").exists():
        arguments = ["--resume", str(folder)]
    else:
        work.mkdir(parents=True, exist_ok=True)
        options = work / "options.json"
        options.write_text(json.dumps(common | cell))
        arguments = ["--config", str(options), "--out", str(folder)]
    command = [sys.executable, "-m", "proxbit", "train", "--quiet", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    result: dict[str, object] = json.loads((folder / "result.json").read_text())
    about = json.loads((folder / "about.json").read_text())
    return result | {key: about[key] for key in ("commit", "proxbit", "torch", "started")}


def tally(lines: list[Line], known: dict[str, list[Cell]]) -> str:
    """What each method was given in half an epoch of a task, its best, and that at equal cost."""
    lines = [line for line in lines if line["cell"]["seed"] == 0]  # a seed is a split: one for all
    short = {name_of(c): c for cells in known.values() for c in cells if "limit" not in c}
    tried = ((cell, _results(lines, cell)) for cell in short.values())
    found = [(cell, _mean(results, "hard")) for cell, results in tried if results]
    rows = []
    for task, method in {_place(cell) for cell, _ in found}:
        own = [pair for pair in found if _place(pair[0]) == (task, method)]
        best, hard = max(own, key=operator.itemgetter(1))
        equal = expected_best([hard for _, hard in own], BUDGET)
        few = "" if len(own) >= BUDGET else f" ({len(own)})"
        options = _options({key: value for key, value in best.items() if key != "task"})
        text = f"| {task} | {method} | {len(own)} | {options} | {hard:.2f} | {equal:.2f}{few} |"
        rows.append((task, -equal, text))
    return "### candidates\n\n" + "\n".join([TALLY, *(text for *_, text in sorted(rows))])


def _place(cell: Cell) -> tuple[str, str]:
    return str(cell.get("task", "BW")), str(cell["method"])


def expected_best(figures: list[float], budget: int) -> float:
    """The best of so many figures, on average over every choice of that many among all."""
    budget = min(budget, len(figures))
    ways = [math.comb(smaller, budget - 1) for smaller in range(len(figures))]
    return math.fsum(map(operator.mul, sorted(figures), ways)) / sum(ways)


def tables(lines: list[Line], known: dict[str, list[Cell]]) -> str:
    """One table per round, best hard accuracy first; seeds of one candidate share a row."""
    parts = []
    for name, cells in known.items():
        rows = [(cell, _results(lines, cell)) for cell in cells]
        rows = sorted((row for row in rows if row[1]), key=lambda row: -_mean(row[1], "hard"))
        if rows:
            parts.append(f"### {name}\n\n{HEAD}\n" + "\n".join(_row(*row) for row in rows))
    return "\n\n".join(parts)


def _results(lines: list[Line], cell: Cell) -> list[Cell]:
    fitting = ({k: v for k, v in line["cell"].items() if k != "seed"} == cell for line in lines)
    return [line["result"] for line, fits in zip(lines, fitting, strict=True) if fits]


def _mean(results: list[Cell], key: str) -> float:
    return 100 * statistics.mean(float(result[key]) for result in results)  # type: ignore[arg-type]


def _row(cell: Cell, results: list[Cell]) -> str:
    hard = [100 * float(result["hard"]) for result in results]  # type: ignore[arg-type]
    spread = f" ± {statistics.stdev(hard):.2f}" if len(hard) > 1 else ""
    shares = f"{_mean(results, 'soft'):.2f} | {_mean(results, 'hardened'):.2f}"
    return (
        f"| {cell['method']} | {_options(cell)} | {shares} | {_mean(results, 'hard'):.2f}"
        f"{spread} | {len(hard)} |"
    )


def _options(cell: Cell) -> str:
    return ", ".join(f"{k} {value}" for k, value in cell.items() if k != "method") or "default"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rounds", nargs="+", choices=list(ROUNDS))
    parser.add_argument("--data", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--results", type=Path, default=Path("results/recipes.jsonl"))
    parser.add_argument("--work", type=Path, default=Path("runs/recipes"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--markdown", type=Path, help="put the tables between this page's marks")
    given = parser.parse_args()
    given.results.parent.mkdir(parents=True, exist_ok=True)
    lines = given.results.read_text().splitlines() if given.results.exists() else []
    done = {json.dumps(json.loads(line)["cell"], sort_keys=True) for line in lines}
    common = BASE | {"data": given.data, "weights": given.weights}
    for round_name, seed in product(given.rounds, given.seeds):
        for candidate in ROUNDS[round_name]:
            cell = candidate | {"seed": seed}
            if json.dumps(cell, sort_keys=True) in done:
                continue
            result = run(cell, common, given.work, given.threads)
            with given.results.open("a") as file:
                file.write(json.dumps({"cell": cell, "base": BASE, "result": result}) + "\n")
            shares = [f"{100 * result[k]:.2f}" for k in ("soft", "hardened", "hard")]  # type: ignore[operator]
            print(f"{name_of(cell)}: soft, hard at once, hard {' '.join(shares)}", flush=True)
    if given.markdown:
        found = [json.loads(line) for line in given.results.read_text().splitlines()]
        about = environment(("proxbit", "torch"), len(found), 0)
        body = f"{tally(found, ROUNDS)}\n\n{tables(found, ROUNDS)}"
        write_section(given.markdown, "recipes", about, body, NEW_SECTION)


if __name__ == "__main__":
    main()
