"""Train a small ResNet, then give it one-bit weights in three ways: about two minutes, 2 cores.

    python examples/demo.py [--quick]

The images (a part of Fashion-MNIST) come with the package. Everything follows from SEED and the
number of threads: a second run prints the same table but for the seconds. ``--quick`` only shows
that all of it works.
"""

import copy
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, OneCycleLR

import proxbit as pb
from proxbit.data import ImageSet, batches, fashion_mnist
from proxbit.models import resnet8

SEED = 0
BATCH = 128
METHODS = ("BC", "BNN+", "BNN++")
FROZEN = 0.15  # the last part of the steps keeps the signs and settles everything else
COLUMNS = (
    "float\n(start)", "soft", "hard\nat once", "hard\nat the end", "bytes\nfloat", "bytes\npacked",
    "seconds",
)  # fmt: skip

Batches = Iterator[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Plan:
    """How much to train and to test."""

    float_epochs: int
    binary_epochs: int
    train_images: int
    test_images: int

    @property
    def epoch(self) -> int:
        """Steps of one epoch."""
        return math.ceil(self.train_images / BATCH)


FULL = Plan(float_epochs=5, binary_epochs=3, train_images=8000, test_images=2000)
QUICK = Plan(float_epochs=1, binary_epochs=2, train_images=256, test_images=200)


@dataclass(frozen=True)
class Result:
    """What one method came to: three accuracies, two sizes, one time."""

    method: str
    soft: float
    hardened: float
    final: float
    bytes_float: int
    bytes_packed: int
    seconds: float


@dataclass(frozen=True)
class Bench:
    """The images, the plan and the progress bars: what every run shares."""

    images: ImageSet
    plan: Plan
    progress: Progress

    def train_batches(self) -> Batches:
        """Shuffled batches, epoch after epoch; every run sees the same ones."""
        images, n = self.images, self.plan.train_images
        x, y, generator = images.x_train[:n], images.y_train[:n], Generator().manual_seed(SEED)
        while True:
            yield from batches(x, y, BATCH, generator, mean=images.mean, std=images.std)

    def accuracy(self, model: nn.Module) -> float:
        """Percent of the test images that the model gets right."""
        images, n = self.images, self.plan.test_images
        x, y = images.x_test[:n], images.y_test[:n]
        model.eval()
        with torch.inference_mode():
            parts = batches(x, y, 500, mean=images.mean, std=images.std)
            right = sum(int((model(x).argmax(1) == y).sum()) for x, y in parts)
        return 100 * right / n


def train(model: nn.Module, rate: LRScheduler, data: Batches, bar: Iterator[int]) -> None:
    """An ordinary training loop, as long as the bar."""
    model.train()
    for _, (x, y) in zip(bar, data, strict=False):
        rate.optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        rate.optimizer.step()
        rate.step()


def train_float(bench: Bench) -> nn.Module:
    """A float network, trained from nothing."""
    torch.manual_seed(SEED)
    model = resnet8(in_channels=1)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a quarter faster
    steps = bench.plan.float_epochs * bench.plan.epoch
    optimizer = torch.optim.Adam(model.parameters())
    rate = OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps, pct_start=0.2)
    bar = iter(bench.progress.track(range(steps), description="float"))
    train(model, rate, bench.train_batches(), bar)
    return model


def fine_tune(float_model: nn.Module, method: str, bench: Bench) -> Result:
    """A binary copy of the float network: soft steps, hardening, then steps with frozen signs."""
    start = time.perf_counter()
    model = copy.deepcopy(float_model)
    report = pb.binarize(model, method, task="BW")
    steps = bench.plan.binary_epochs * bench.plan.epoch
    soft_steps = steps - math.ceil(FROZEN * steps)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    rate, data = CosineAnnealingLR(optimizer, steps), bench.train_batches()
    bar = iter(bench.progress.track(range(steps), description=method))
    pb.attach(model, optimizer, steps=soft_steps)
    train(model, rate, data, islice(bar, soft_steps))
    soft = bench.accuracy(model)
    pb.harden(model, tell=None)
    hardened = bench.accuracy(model)
    train(model, rate, data, bar)
    final = bench.accuracy(model)
    seconds = time.perf_counter() - start
    sizes = report.bytes_float, report.bytes_packed
    return Result(method, soft, hardened, final, *sizes, seconds)


def show(results: list[Result], float_accuracy: float, plan: Plan) -> Table:
    """One line per method."""
    n, share = plan.test_images, float_accuracy / 100
    noise = 100 * math.sqrt(share * (1 - share) / n)
    table = Table(
        title="ResNet-8 on Fashion-MNIST, one bit per weight",
        caption=f"Accuracy in % of {n:,} test images (±{noise:.1f}), one run, seed {SEED}; after "
        "hardening, the signs stay and the rest trains on.",
    )
    table.add_column("method")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for r in results:
        shares = (f"{a:.2f}" for a in (float_accuracy, r.soft, r.hardened, r.final))
        table.add_row(
            r.method, *shares, f"{r.bytes_float:,}", f"{r.bytes_packed:,}", f"{r.seconds:.0f}"
        )
    return table


def main(arguments: list[str]) -> None:
    """Train, binarize three times, show the table."""
    if arguments not in ([], ["--quick"]):
        raise SystemExit(__doc__)
    plan, console, start = QUICK if arguments else FULL, Console(), time.perf_counter()
    columns = TextColumn("{task.description:>6}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        bench = Bench(fashion_mnist(), plan, progress)
        model = train_float(bench)
        float_seconds = time.perf_counter() - start
        results = [fine_tune(model, method, bench) for method in METHODS]
    console.print(show(results, bench.accuracy(model), plan))
    total = time.perf_counter() - start
    console.print(f"Float training took {float_seconds:.0f} s, all of it {total:.0f} s.")


if __name__ == "__main__":
    main(sys.argv[1:])
