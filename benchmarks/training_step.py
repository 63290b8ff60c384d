"""Time and peak memory of one training step: float, proxbit, and the same weights in its peers.

A step is forward, cross-entropy, backward, ``optimizer.step()`` and ``zero_grad()`` under Adam.
Each contender takes turns with the float network, both warm, and a ratio compares neighbouring
steps, so a machine that slows down for a while slows both. Contenders come in a shuffled order.
Freed memory stays in the process, so nobody pays page
faults. Memory is measured apart from time: the peak bytes of torch's allocator over building the
model and two steps, above those of float, in copies of the binary weights.

    python benchmarks/training_step.py --model all --markdown docs/performance.md
"""

import argparse
import ctypes
import gc
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from contenders import Contender, Learner, contenders, inner_layers, installed
from evidence import environment, write_section
from rich.console import Console
from rich.markdown import Markdown
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from proxbit.core.methods import METHODS
from proxbit.models import resnet20
from proxbit.util.compat import allow_torchvision

PACKAGES = ("proxbit", "torch", "timm", "torchao", "brevitas")
WARM_UP = 2


@dataclass(frozen=True)
class Setting:
    """A model and the batch it is trained on."""

    package: str
    build: Callable[[], nn.Module]
    batch: int
    side: int
    classes: int
    layout: torch.memory_format = torch.contiguous_format

    def data(self, batch: int | None) -> tuple[Tensor, Tensor]:
        n = batch or self.batch
        images = torch.randn(n, 3, self.side, self.side).to(memory_format=self.layout)
        return images, torch.randint(self.classes, (n,))


@dataclass(frozen=True)
class Row:
    """One line of the table.

    ``spread`` is half the interquartile range of the ratio, ``best`` the ratio of the two minima,
    which other work on the machine disturbs least.
    """

    model: str
    batch: int
    task: str
    method: str
    ratio: float
    spread: float
    best: float
    ms: float
    rounds: int
    peak_mib: float
    extra_copies: float


# --- models ---------------------------------------------------------------------------------


def deit_tiny() -> nn.Module:
    allow_torchvision()
    import timm

    model: nn.Module = timm.create_model("deit_tiny_patch16_224", pretrained=False)
    return model


SETTINGS = {
    "resnet20": Setting("proxbit", resnet20, batch=128, side=32, classes=10),
    "deit_tiny": Setting("timm", deit_tiny, batch=8, side=224, classes=1000),
}


# --- measurement ----------------------------------------------------------------------------


def keep_freed_memory() -> None:
    """Let glibc keep what a step frees, so that no contender pays for fetching it again.

    By default the page faults of a step depend on the size of the *other* models in the process:
    float ResNet-20 has 33,000 a step (13 % of its time) alone and none beside a bigger model.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
        mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, the most that glibc takes
    gc.freeze()  # the imports, which each collection before a turn would look through again


def enrol(setting: Setting, contender: Contender, seed: int) -> Learner:
    """Every contender starts from the same weights."""
    torch.manual_seed(seed)
    model = setting.build().to(memory_format=setting.layout)  # type: ignore[call-overload]
    return contender.learner(model.train())


def time_beside(
    learner: Learner, base: Learner, data: tuple[Tensor, Tensor], rounds: int
) -> list[tuple[float, float]]:
    """Seconds of a step of each, in turn, after both were warmed; who begins changes every round.

    Neighbours in time: what else the machine does falls on both alike.
    """
    for _ in range(WARM_UP):
        base.step(*data)
        learner.step(*data)
    gc.collect()
    table = []
    for round_number in range(rounds):
        order = (learner, base) if round_number % 2 else (base, learner)
        seconds = {id(each): time_step(each, data) for each in order}
        table.append((seconds[id(learner)], seconds[id(base)]))
    return table


def time_step(learner: Learner, data: tuple[Tensor, Tensor]) -> float:
    start = time.perf_counter()
    learner.step(*data)
    return time.perf_counter() - start


def peak_bytes(enrol: Callable[[], Learner], data: tuple[Tensor, Tensor]) -> int:
    """Highest sum of torch's live allocations from building the learner through two steps.

    The second step counts: the first allocates the state of Adam.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # it logs each start and stop otherwise
    gc.collect()  # what an earlier learner left in cycles must not be freed on our account
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        learner = enrol()
        for _ in range(2):
            learner.step(*data)
    live = peak = 0
    for event in allocations(trace):
        live += event
        peak = max(peak, live)
    return peak


def allocations(trace: Any) -> Iterator[int]:
    """Bytes allocated (positive) and freed (negative), in the order they happened."""
    events = [e for e in trace.profiler.kineto_results.events() if e.name() == "[memory]"]
    return (e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()))


def measure(
    name: str,
    field: Sequence[Contender],
    rounds: int,
    batch: int | None,
    seed: int,
    layout: torch.memory_format = torch.contiguous_format,
) -> list[Row]:
    """One row per contender; the first is the float that the others are compared with."""
    setting = replace(SETTINGS[name], layout=layout)
    torch.manual_seed(seed)
    data = setting.data(batch)
    peaks = [peak_bytes(partial(enrol, setting, c, seed), data) for c in field]
    base, seconds = enrol(setting, field[0], seed), dict[int, list[tuple[float, float]]]()
    for i in random.Random(seed).sample(range(len(field)), len(field)):
        seconds[i] = time_beside(enrol(setting, field[i], seed), base, data, rounds)
    copy = sum(layer.weight.nbytes for layer in inner_layers(setting.build()).values())
    rows = []
    for i, contender in enumerate(field):
        mine, floats = zip(*seconds[i], strict=True)
        ratio, spread = middle([m / f for m, f in seconds[i]])
        rows.append(
            Row(
                model=name,
                batch=len(data[0]),
                task=contender.task,
                method=contender.method,
                ratio=ratio,
                spread=spread,
                best=min(mine) / min(floats),
                ms=1000 * statistics.median(mine),
                rounds=rounds,
                peak_mib=peaks[i] / 2**20,
                extra_copies=(peaks[i] - peaks[0]) / copy,
            )
        )
    return rows


def middle(values: Sequence[float]) -> tuple[float, float]:
    """Median and half the interquartile range."""
    if len(values) < 2:
        return values[0], 0.0
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return median, (high - low) / 2


# --- reports --------------------------------------------------------------------------------


HEADER = ("task", "method", "time / float", "±", "best", "ms", "peak MiB", "extra copies")


def cells(row: Row) -> tuple[str, ...]:
    return (
        row.task,
        row.method,
        f"{row.ratio:.3f}",
        f"{row.spread:.3f}",
        f"{row.best:.3f}",
        f"{row.ms:.1f}",
        f"{row.peak_mib:.1f}",
        f"{row.extra_copies:+.2f}",
    )


def tables(rows: Sequence[Row]) -> str:
    """A Markdown table for each model."""
    lines = []
    for title in dict.fromkeys((row.model, row.batch) for row in rows):
        lines += ["", f"### {title[0]}, batch {title[1]}", ""]
        lines += [line(HEADER), line(["---"] * 2 + ["--:"] * 6)]
        lines += [line(cells(row)) for row in rows if row.model == title[0]]
    return "\n".join(lines)


def line(values: Sequence[str]) -> str:
    return f"| {' | '.join(values)} |"


NEW_SECTION = """## One training step

Forward, loss, backward, Adam step and `zero_grad`, in one process. Each contender runs beside the
float network, a step of one and a step of the other, both warm; contenders come in a shuffled
order, and freed memory is kept, so nobody pays page faults. *time / float*: median of the ratios of
neighbouring steps, ± half their interquartile range; the row *float* is a second float network
beside the first, so it shows the noise. *best*: the ratio of the fastest steps, which other work on
the machine disturbs least. *extra copies*: peak memory above float, in copies of the binary
weights. torchao's PARQ and brevitas binarize the same layers, weights only.

{marks}
"""


# --- command --------------------------------------------------------------------------------


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add(
        "--model",
        default=list(SETTINGS),
        type=one_of(SETTINGS),
        help=f"{', '.join(SETTINGS)} or all",
    )
    add("--methods", default="bc,pc,bnn++", type=one_of(METHODS), help="comma-separated, or all")
    add("--rounds", default=15, type=int, help="timed steps of each contender")
    add("--batch-size", type=int, help="instead of each model's own")
    add("--channels-last", action="store_true", help="images and filters, as `proxbit train` does")
    add("--threads", type=int, help="of torch, instead of its own choice")
    add("--seed", default=0, type=int)
    add("--json", type=Path, help="write the rows here")
    add("--markdown", type=Path, help="put the tables between this page's markers")
    return parser.parse_args()


def one_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """A parser of comma-separated names; "all" stands for every one."""

    def names(text: str) -> list[str]:
        found = list(known) if text == "all" else text.split(",")
        if unknown := sorted(set(found) - set(known)):
            message = f"{', '.join(unknown)}: choose from {', '.join(known)} or all"
            raise argparse.ArgumentTypeError(message)
        return found

    return names


def main() -> None:
    args, console = options(), Console()
    keep_freed_memory()
    if args.threads:
        torch.set_num_threads(args.threads)
    field = contenders(args.methods, console)
    names = [name for name in args.model if installed(SETTINGS[name].package, console)]
    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    choices = args.rounds, args.batch_size, args.seed, layout
    rows = [row for name in names for row in measure(name, field, *choices)]
    about = environment(PACKAGES, args.rounds, args.seed)
    console.print(Markdown(tables(rows)))
    if args.json:
        result = {"environment": about, "rows": [asdict(row) for row in rows]}
        args.json.write_text(json.dumps(result, indent=1))
    if args.markdown:
        body = tables(rows).strip()
        write_section(args.markdown, "training-step", about, body, NEW_SECTION)


if __name__ == "__main__":
    main()
