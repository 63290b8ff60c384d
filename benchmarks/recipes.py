"""Try recipes: short runs of ResNet-20 on CIFAR-10, fine-tuned, each a process of its own.

    python benchmarks/recipes.py --data npz:cifar10.npz --weights resnet20.safetensors \\
        rates method=bc,bnn++ lr=1e-3,3e-3

A round has a name and candidates: every combination of the options, which are those of ``proxbit
train``. Without options it is what it was before, for more seeds. Done candidates are skipped, an
interrupted one continues, and every result is one line of results/recipes.jsonl with all options
of its run, so that the tables can say how it differs from today's default. Accuracy is that of the
hard network on 5,000 images held back from training: the test images choose nothing.
"""

import argparse
import json
import math
import operator
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from evidence import environment, write_section

from proxbit.experiments.reproduce.blocks import skeleton
from proxbit.train.config import Config
from proxbit.train.setup import resolve

MODEL = "resnet20"
BASE = {
    "epochs": 1, "max_steps_per_epoch": 176, "val_split": 0.1, "normalize": "imagenet",
    "batch_size": 128, "precision": "no",  # on any machine: rows compare
}  # fmt: skip
PLACES = ("data", "weights", "data_root", "download", "workers", "cpu", "seed")

Options = dict[str, Any]  # of a run, all but where it lies and its seed
Line = dict[str, Any]  # rounds, seed, options, result
HEAD = (
    "| method | options | soft % | hard at once % | hard at the end % | seeds |\n"
    "| --- | --- | --: | --: | --: | --: |"
)
BUDGET = 5  # candidates that every method was given at least, in BW and BWA
TALLY = (
    "| task | method | candidates | the best | hard % | best of five % | default % |\n"
    "| --- | --- | --: | --- | --: | --: | --: |"
)
NEW_SECTION = "## What was tried\n\n{marks}\n"
KEPT = ("result", "about")  # of a run
PHASES = ("soft", "hardened")


def settle(asked: Options) -> Options:
    """All options of a run that asks for some."""
    given: Any = {"model": MODEL, "weights": "given", "new_head": False, "image_size": 32}
    config = Config(**(given | BASE | asked))
    settled = asdict(resolve(config, skeleton(MODEL)))
    return {name: value for name, value in settled.items() if name not in PLACES}


@cache
def _default(method: str, task: str, settings: str) -> Options:
    return settle({"method": method, "task": task, "settings": settings})


def asked_of(options: Options, named: Sequence[str] = ("settings", "task")) -> Options:
    """What a run asks for that is not the default of its method, task and settings today.

    ``named`` of these come first where they are not the usual ones.
    """
    default = _default(options["method"], options["task"], options["settings"])
    first = {name: options[name] for name in named if options[name] != getattr(Config(), name)}
    return first | {name: value for name, value in options.items() if value != default[name]}


def candidates(words: Sequence[str]) -> list[Options]:
    """Every combination of NAME=VALUE,VALUE... as all options of a run."""
    pairs = [word.partition("=")[::2] for word in words]
    names = [name for name, _ in pairs]
    lists = [[_value(name, text) for text in texts.split(",")] for name, texts in pairs]
    return [settle(dict(zip(names, values, strict=True))) for values in product(*lists)]


def _value(name: str, text: str) -> object:
    kinds = {each.name: str(each.type) for each in fields(Config)}
    if name not in kinds:
        raise SystemExit(f"{name!r} is no option of proxbit train: see proxbit train --help")
    kind = kinds[name].removesuffix(" | None")
    read: dict[str, Callable[[str], object]] = {
        "str": str, "int": int, "float": float, "bool": json.loads,
    }  # fmt: skip
    return read[kind](text)


def run(options: Options, places: Options, work: Path, threads: int) -> Options:
    """Train one candidate, or continue it; its final figures."""
    folder = work / f"{name_of(options)},seed={places['seed']}"
    if (folder / "last.safetensors").exists():
        arguments = ["--resume", str(folder)]
    else:
        work.mkdir(parents=True, exist_ok=True)
        asked = folder.with_name(f"{folder.name}.json")
        asked.write_text(json.dumps(options | places))
        arguments = ["--config", str(asked), "--out", str(folder)]
    command = [sys.executable, "-m", "proxbit", "train", "--quiet", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    result, about = (json.loads((folder / f"{name}.json").read_text()) for name in KEPT)
    figures = {name: value for name, value in result.items() if name not in options | places}
    return figures | {name: about[name] for name in ("commit", "proxbit", "torch", "started")}


def name_of(options: Options) -> str:
    """A folder name that says what differs from the default."""
    odd = {"method": options["method"]} | asked_of(options)
    return ",".join(f"{name}={value}" for name, value in odd.items()).replace("/", "-")


def tally(lines: Sequence[Line]) -> str:
    """What each method was given in half an epoch of a task, its best, and that at equal cost."""
    short = [line for line in lines if line["seed"] == 0]  # a seed is a split: one for all
    short = [line for line in short if BASE.items() <= line["options"].items()]
    places = {_place(line) for line in short}
    rows = [_tallied([line for line in short if _place(line) == place]) for place in places]
    return "### candidates\n\n" + "\n".join([TALLY, *(text for *_, text in sorted(rows))])


def _tallied(own: Sequence[Line]) -> tuple[str, float, str]:
    """Task and figure to sort by, and the row of one method."""
    task, method = _place(own[0])
    best = max(own, key=_hard)
    equal = expected_best([_hard(line) for line in own], BUDGET)
    few = "" if len(own) >= BUDGET else f" ({len(own)})"
    asked = [asked_of(line["options"], ("settings",)) for line in own]
    default = next((f"{_hard(own[i]):.2f}" for i, odd in enumerate(asked) if not odd), "")
    figures = f"{_hard(best):.2f} | {equal:.2f}{few} | {default}"
    words = _words(asked[own.index(best)])
    return task, -equal, f"| {task} | {method} | {len(own)} | {words} | {figures} |"


def _place(line: Line) -> tuple[str, str]:
    return line["options"]["task"], line["options"]["method"]


def _hard(line: Line) -> float:
    return 100 * float(line["result"]["hard"])


def expected_best(figures: list[float], budget: int) -> float:
    """The best of so many figures, on average over every choice of that many among all."""
    budget = min(budget, len(figures))
    ways = [math.comb(smaller, budget - 1) for smaller in range(len(figures))]
    return math.fsum(map(operator.mul, sorted(figures), ways)) / sum(ways)


def tables(lines: Sequence[Line]) -> str:
    """One table per round, best hard accuracy first; seeds of one candidate share a row."""
    parts = []
    for name in dict.fromkeys(name for line in lines for name in line["rounds"]):
        rows = sorted((_row(same) for same in _by_options(lines, name)), reverse=True)
        parts.append(f"### {name}\n\n{HEAD}\n" + "\n".join(text for _, text in rows))
    return "\n\n".join(parts)


def _by_options(lines: Sequence[Line], name: str) -> list[list[Line]]:
    """The lines of a round, those of one candidate together."""
    groups: dict[str, list[Line]] = {}
    for line in (line for line in lines if name in line["rounds"]):
        groups.setdefault(json.dumps(line["options"], sort_keys=True), []).append(line)
    return list(groups.values())


def _row(same: Sequence[Line]) -> tuple[float, str]:
    """The hard accuracy of one candidate, and its row."""
    hard, options = [_hard(line) for line in same], same[0]["options"]
    soft, at_once = (100 * statistics.mean(line["result"][k] for line in same) for k in PHASES)
    spread = f" ± {statistics.stdev(hard):.2f}" if len(hard) > 1 else ""
    figures = f"{soft:.2f} | {at_once:.2f} | {statistics.mean(hard):.2f}{spread} | {len(hard)}"
    words = _words(asked_of(options))
    return statistics.mean(hard), f"| {options['method']} | {words} | {figures} |"


def _words(asked: Options) -> str:
    return ", ".join(f"{name} {value}" for name, value in asked.items()) or "default"


def read(path: Path) -> list[Line]:
    """The lines of a file; none if there is no such file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wanted(lines: Sequence[Line], name: str, words: Sequence[str]) -> list[Options]:
    """The candidates of a round: as they are given now, or as they were."""
    if words:
        return candidates(words)
    if not any(name in line["rounds"] for line in lines):
        known = ", ".join(dict.fromkeys(each for line in lines for each in line["rounds"]))
        raise SystemExit(f"no round {name!r} yet: give its options, or one of {known}")
    return [same[0]["options"] for same in _by_options(lines, name)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("round")
    parser.add_argument("options", nargs="*", metavar="NAME=VALUE,VALUE")
    parser.add_argument("--data", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--results", type=Path, default=Path("results/recipes.jsonl"))
    parser.add_argument("--work", type=Path, default=Path("runs/recipes"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--markdown", type=Path, help="put the tables between this page's marks")
    given = parser.parse_intermixed_args()
    for seed, options in product(
        given.seeds, wanted(read(given.results), given.round, given.options)
    ):
        same = {"seed": seed, "options": options}
        if any(same.items() <= line.items() for line in read(given.results)):
            continue
        places = {"data": given.data, "weights": given.weights, "seed": seed}
        result = run(options, places, given.work, given.threads)
        given.results.parent.mkdir(parents=True, exist_ok=True)
        with given.results.open("a") as file:
            file.write(json.dumps({"rounds": [given.round], **same, "result": result}) + "\n")
        figures = " ".join(f"{100 * result[k]:.2f}" for k in (*PHASES, "hard"))
        print(f"{name_of(options)},seed={seed}: soft, hard at once, hard {figures}", flush=True)
    if given.markdown:
        lines = read(given.results)
        about = environment(("proxbit", "torch"), len(lines), 0)
        body = f"{tally(lines)}\n\n{tables(lines)}"
        write_section(given.markdown, "recipes", about, body, NEW_SECTION)


if __name__ == "__main__":
    main()
