"""How much faster packed networks, and float ones, are on several threads than on one.

    python benchmarks/threads.py [--model resnet50,vit_base] [--processes 5] [--markdown PAGE]

The ratio differs from process to process and stays much the same within one, probably by where the
network lies in memory. So there is a row for each of several processes; in each, both
networks run on one and on more threads in turns that begin warm, with nothing else in the process.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from evidence import environment, team, write_section
from network import SCALE, SCALED, enter, packed
from network_settings import SETTINGS
from pairing import facts, passes_of, table, turn
from training_step import keep_freed_memory, one_of

from proxbit.core.tasks import TASKS
from proxbit.engine import isa

PACKAGES = ("proxbit", "torch", "timm")
HEAD = ("network", "process", "ms on 1", "ms on {}", "ratio", "ratio of float torch", "meet in")
NEW_SECTION = "## Several threads\n\n{marks}\n"

Seconds = dict[str, list[float]]  # of a call, by contender and number of threads


def measure(model: str, task: str, threads: int, rounds: int) -> Seconds:
    """Float and packed network on one thread and on several, in a shuffled order each round."""
    torch.set_num_threads(threads)
    stage = enter(SETTINGS[model], 1)
    calls = {"float": stage.fastest(stage.model), task: packed(task, "exact", 1e-4, stage).calls}
    ways = [(who, n, f"{who} {n}") for who in calls for n in (1, threads)]
    passes: dict[str, tuple[int, int]] = {}
    found: Seconds = {}
    for who, n, name in ways:
        torch.set_num_threads(n)
        passes[name], found[name] = passes_of(calls[who]), []
    for _ in range(rounds):
        for who, n, name in random.sample(ways, len(ways)):
            torch.set_num_threads(n)
            found[name].append(turn(calls[who], passes[name]))
    return found


def one_process(model: str, task: str, threads: int, rounds: int) -> dict[str, Any]:
    """The same in a process of its own, and how far its cores are from each other."""
    code = f"import threads; threads.report({model!r}, {task!r}, {threads}, {rounds})"
    folder = Path(__file__).parent
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=folder).stdout
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def report(model: str, task: str, threads: int, rounds: int) -> None:
    """What a process tells the one that started it."""
    keep_freed_memory()
    near = team(threads)
    with torch.inference_mode():
        found = measure(model, task, threads, rounds)
    print(json.dumps({"seconds": found, **near}))


def ratio(found: Seconds, who: str, threads: int) -> float:
    """How many times faster on several threads: the median over rounds."""
    return statistics.median(
        one / many for one, many in zip(found[f"{who} 1"], found[f"{who} {threads}"], strict=True)
    )


def row(name: str, number: int, task: str, threads: int, told: dict[str, Any]) -> tuple[str, ...]:
    found = told["seconds"]
    clock = (f"{1000 * statistics.median(found[f'{task} {n}']):.2f}" for n in (1, threads))
    ratios = (f"{ratio(found, who, threads):.2f}" for who in (task, "float"))
    return name, str(number), *clock, *ratios, told.get("team", "").rpartition(" in ")[2]


def tables(told: dict[tuple[str, str], list[dict[str, Any]]], threads: int) -> str:
    """A row for each process, and the median of each network."""
    rows, lines = [], []
    for (model, task), processes in told.items():
        name = f"{model} {task}"
        rows += [row(name, i + 1, task, threads, each) for i, each in enumerate(processes)]
        middle = statistics.median(ratio(each["seconds"], task, threads) for each in processes)
        line = f"- {name} on {threads}: {middle:.2f}x, the median of {len(processes)}"
        if threads == 2 and task == "BWA" and model in SCALED:
            line += f"; aim {SCALE:g}x {'reached' if middle >= SCALE else 'missed'}"
        lines.append(line)
    head = [each.format(threads) for each in HEAD]
    return "\n".join([table(head, rows), "", *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--model", default=list(SCALED), type=one_of(SETTINGS), help="networks, or all")
    add("--tasks", default=["BWA"], type=one_of(TASKS), help=f"{', '.join(TASKS)} or all")
    add("--threads", default=2, type=int, help="how many threads, beside one")
    add("--processes", default=5, type=int, help="rows of each network")
    add("--rounds", default=15, type=int, help="turns on each number of threads, in each process")
    add("--markdown", type=Path, help="put the tables between this page's marks")
    args = parser.parse_args()
    about = environment(PACKAGES, args.rounds, 0)
    about |= {"threads": f"1 and {args.threads}", "kernels": isa()}
    print(facts(about))
    threads, told = args.threads, {}
    for model in args.model:
        for task in args.tasks:
            processes = range(args.processes)
            told[model, task] = [one_process(model, task, threads, args.rounds) for _ in processes]
    body = tables(told, threads)
    print(body)
    if args.markdown:
        write_section(args.markdown, "several-threads", about, body, NEW_SECTION)


if __name__ == "__main__":
    main()
