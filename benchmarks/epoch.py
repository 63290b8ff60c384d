"""The training loop against a bare PyTorch loop: same network, same images, step by step in turn.

    python benchmarks/epoch.py [--steps 60] [--processes 7] [--model resnet8] [--markdown PAGE]

Ours (data, phases, checks, bars) and bare steps alternate in pairs, ours, bare, bare, ours, so both
are equally warm. Where a network happens to lie in memory changes its speed by several percent for
as long as a process lives: so the ratio of medians is taken in several processes, in which either
network is built first in turn, and their median is reported. Data alone is timed afterwards.

    python benchmarks/epoch.py --parts --model timm/vit_tiny_patch16_224 --data folder:photographs
        --weights RUN --image-size 96 --batch-size 32

times `proxbit train` alone, with a teacher, with and without each of the parts that make it faster;
their steps alternate in a shuffled order in one process.
"""

import argparse
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from evidence import environment, write_section
from torch import Generator
from torch.nn import functional

import proxbit as pb
from proxbit.data import fashion_mnist, normalize
from proxbit.data.pixels import shifted
from proxbit.models import build
from proxbit.train.config import Config
from proxbit.train.fitting import open_run

PACKAGES = ("proxbit", "torch")
Part = tuple[dict[str, Any], bool, int]
# Options, torch's fused attention, bytes of decoded images in memory. The first one is "before".
PARTS: dict[str, Part] = {
    "float32, images decoded anew": ({"precision": "no"}, True, 0),
    "+ images in memory": ({"precision": "no"}, True, 2**30),
    "+ bfloat16": ({"precision": "bf16"}, True, 2**30),
    "+ plain attention: `--precision bf16`": ({"precision": "bf16"}, False, 2**30),
}
PATCHES: dict[str, Part] = {  # of a vision transformer
    f"+ `--patch-drop {share}`": ({"precision": "bf16", "patch_drop": share}, False, 2**30)
    for share in (0.5, 0.75)
}
NEW_SECTION = """## The training loop

`proxbit train` against a bare PyTorch loop: the same binary network on the same images, steps in
turn (ours, bare, bare, ours, ...), medians; the ratio is the median over processes, in which either
network is built first in turn. *data alone*: shuffle, crop, flip and normalize one batch.

{marks}
"""


def bare_steps(model_name: str, batch: int, steps: int) -> Iterator[float]:
    """A loop without anything: an iterator that takes one step at a time."""
    torch.manual_seed(0)
    images, generator = fashion_mnist(), Generator().manual_seed(0)
    model = build(model_name, channels=1)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    pb.binarize(model, "bnn++")
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    pb.attach(model, optimizer, steps=steps)
    model.train()
    while True:
        for rows in torch.randperm(len(images.y_train), generator=generator).split(batch):
            down, right = torch.randint(5, (2, len(rows)), generator=generator)
            mirror = torch.rand(len(rows), generator=generator) < 0.5
            x = shifted(images.x_train[rows], down, right, mirror, pad=2)
            x = normalize(x, images.mean, images.std).contiguous(memory_format=torch.channels_last)
            loss = functional.cross_entropy(model(x), images.y_train[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield float(loss.detach())


def compare(model: str, batch: int, steps: int, bare_first: bool) -> tuple[float, float]:
    """Median seconds of a step, ours and bare, in turn."""
    ours, bare = [], []
    config = Config(
        model=model, batch_size=batch, epochs=1, max_steps_per_epoch=steps, frozen=0.0,
        precision="no",
    )  # fmt: skip
    other = bare_steps(model, batch, steps)
    if bare_first:
        next(other)
    trainer = open_run(config)
    trainer.begin()
    mark = [time.perf_counter()]

    def watch(_: object) -> None:
        """After each second step of ours, two bare ones: who goes first alternates."""
        now = time.perf_counter()
        ours.append(now - mark[0])
        for _ in range(2 * (len(ours) % 2)):
            start = time.perf_counter()
            next(other)
            bare.append(time.perf_counter() - start)
        mark[0] = time.perf_counter()

    trainer.watch = watch
    list(trainer)
    return statistics.median(ours[5:]), statistics.median(bare[5:])


def apart(model: str, batch: int, steps: int, bare_first: bool) -> tuple[float, float]:
    """The same in a process of its own."""
    code = f"import epoch; print(*epoch.compare({model!r}, {batch}, {steps}, {bare_first}))"
    folder = Path(__file__).parent
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder
    ).stdout
    ours, bare = (float(word) for word in said.split())
    return ours, bare


def data_alone(batch: int) -> float:
    """Seconds that the loader takes for a batch."""
    from proxbit.data import RECIPES, Loader

    loader = Loader(fashion_mnist(), batch_size=batch, recipe=RECIPES["crop"])
    start = time.perf_counter()
    count = sum(1 for _ in loader.epoch(0))
    return (time.perf_counter() - start) / count


def first_step() -> float:
    """Seconds from the start of a fresh process to the end of its first step."""
    code = (
        "import sys, time; from proxbit.train import Config, open_run; run = open_run(Config());"
        "run.watch = lambda _: sys.exit(print(time.time())); list(run)"
    )
    start = time.time()
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    return float(said) - start


def steps_with(config: Config, fused: bool, memory: int) -> Iterator[int]:
    """A training run that takes one step at a time; gives the images of each."""
    trainer = open_run(config)
    if hasattr(trainer.prepared.data, "memory"):
        trainer.prepared.data.memory.most = memory
        for row in range(trainer.prepared.data.count("train") if memory else 0):
            trainer.prepared.data.picture("train", row)  # as after the first epoch
    for network in (trainer.core, trainer.prepared.teacher):
        for module in network.modules() if network is not None else ():
            if hasattr(module, "fused_attn"):
                module.fused_attn = fused  # type: ignore[assignment]
    trainer.begin()
    trainer.model.train()
    for epoch in range(config.epochs):
        for x, y in trainer.train.epoch(epoch):
            trainer._step(x, y)
            yield len(x)


def parts_table(parts: dict[str, Part], options: dict[str, Any], steps: int) -> list[str]:
    """Images per second with each part added to those before it."""
    times: dict[str, list[float]] = {name: [] for name in parts}
    runs = {}
    for name, (changes, fused, memory) in parts.items():
        config = Config(**options, **changes, epochs=10**6, float_epochs=0, pretrain=0)
        runs[name] = steps_with(config, fused, memory)
    order, batch = list(parts), 0
    for _ in range(steps + 2):
        random.shuffle(order)
        for name in order:
            start = time.perf_counter()
            batch = next(runs[name])
            times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(each[2:]) for name, each in times.items()}
    first = medians[next(iter(parts))]
    rows = [
        f"| {name} | {batch / seconds:.1f} | {first / seconds:.2f} |"
        for name, seconds in medians.items()
    ]
    return ["| | images per second | ratio |", "| --- | --: | --: |", *rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--processes", type=int, default=7)
    parser.add_argument("--model", default="resnet8")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--markdown", type=Path, help="put the table between this page's marks")
    parser.add_argument("--parts", action="store_true", help="time the parts of a faster step")
    parser.add_argument("--data", default="fashion", help="for --parts")
    parser.add_argument("--weights", help="for --parts; with them there is a teacher")
    parser.add_argument("--image-size", type=int, help="for --parts")
    parser.add_argument("--patches", action="store_true", help="--parts with --patch-drop, too")
    given = parser.parse_args()
    if given.parts:
        options = {"model": given.model, "data": given.data, "weights": given.weights}
        options |= {"image_size": given.image_size, "batch_size": given.batch_size}
        options |= {"augment": "crop", "distill": True if given.weights else None}
        title = f"`{given.model}`, batches of {given.batch_size}"
        parts = PARTS | PATCHES if given.patches else PARTS
        table = [title, "", *parts_table(parts, options, given.steps)]
        print("\n".join(table))
        if given.markdown:
            about = environment(PACKAGES, given.steps, 0)
            name = "parts-" + given.model.split("/")[-1]
            write_section(given.markdown, name, about, "\n".join(table), "{marks}\n")
        return
    pairs = [
        apart(given.model, given.batch_size, given.steps, bare_first=i % 2 == 1)
        for i in range(given.processes)
    ]
    data = data_alone(given.batch_size)
    mine, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratios = sorted(ours / bare for ours, bare in pairs)
    table = [
        "| | ms per step, median | ratio |",
        "| --- | --: | --: |",
        f"| bare PyTorch loop | {1e3 * theirs:.1f} | 1.000 |",
        f"| `proxbit.train` | {1e3 * mine:.1f} | {statistics.median(ratios):.3f} |",
        f"| data alone | {1e3 * data:.1f} | {data / theirs:.3f} |",
    ]
    each = ", ".join(f"{ratio:.3f}" for ratio in ratios)
    table += ["", f"Ratios of the {len(ratios)} processes: {each}."]
    starts = sorted(first_step() for _ in range(3))
    table += ["", f"First step after {', '.join(f'{s:.1f}' for s in starts)} s (fresh processes)."]
    print("\n".join(table))
    if given.markdown:
        about = environment(PACKAGES, given.processes, 0)
        write_section(given.markdown, "epoch", about, "\n".join(table), NEW_SECTION)


if __name__ == "__main__":
    main()
