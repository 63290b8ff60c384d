"""The main job on the embedded images: train in float, give it one-bit weights, compare, pack."""

from __future__ import annotations

import math
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console
from rich.table import Table

from proxbit.deploy.packed_networks import float_network, packed_network
from proxbit.deploy.runs import PackedRun, pack_run
from proxbit.deploy.speed import Speed, measure, noise
from proxbit.packfile.file import read
from proxbit.train.config import Config
from proxbit.train.display import Display
from proxbit.train.fitting import open_run

METHODS = (("bc", "BW"), ("bnn++", "BW"), ("bnn++", "BWA"))
PACKED = METHODS[-2:]
FLOAT = Config(method="fp", epochs=5, lr=1e-2, warmup=0.2, optimizer="adam")
BINARY = Config(epochs=3, optimizer="adam")
QUICK: dict[str, Any] = {
    "max_steps_per_epoch": 3, "epochs": 1, "recalibrate": 2, "image_size": 14,
}  # fmt: skip
COLUMNS = ("float", "soft", "hard\nat once", "hard\nat the end", "seconds")
PACKED_COLUMNS = ("float\nbytes", "file\nbytes", "times\nsmaller", "other\nclass",
                  "outputs\nwithin", "float\nms", "packed\nms")  # fmt: skip


_End: TypeAlias = tuple[str, PackedRun, Speed]  # one network after packing, with its name


def demo(console: Console, quick: bool = False) -> None:
    """Print two tables; everything but the times depends on seed and thread count alone."""
    start, changes = time.perf_counter(), QUICK if quick else {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Display(console) as display:
            console.print("A float ResNet-8 on 8,000 images of clothes, then one bit per weight.")
            base = _train(replace(FLOAT, **changes), folder / "float", display)
            given = replace(BINARY, weights=str(folder / "float"), **changes)
            results = []
            for method, task in METHODS:
                config = replace(given, method=method, task=task)
                results.append(_train(config, folder / f"{method} {task}", display))
        console.print(_table(results, base))
        console.print("Now one bit per weight in a file too, which is read again and compared.")
        ends = [_pack(folder, *each, seconds=0.2 if quick else 2.0) for each in PACKED]
    console.print(_packed_table(ends))
    spent = time.perf_counter() - start
    console.print(f"Float training took {base['seconds']:.0f} s, all of it {spent:.0f} s.")


def _train(config: Config, out: Path, display: Display) -> dict[str, Any]:
    """One run under the bar; its final figures."""
    trainer = open_run(config, out)
    trainer.stage, trainer.watch = f"{config.method:>5}, epoch", display.watch
    for _ in trainer:
        pass
    return trainer.result()


def _pack(folder: Path, method: str, task: str, seconds: float) -> _End:
    """A trained network in a file: does it agree on every test image, how fast is it on one?"""
    done = pack_run(folder / f"{method} {task}", batches=None)
    held = read(done.path)
    packed, plain = (make(done.path, held) for make in (packed_network, float_network))
    speed = measure(packed, plain, noise(1, *(held.about.input or {})["shape"]), seconds)
    return f"{method.upper()} {task}", done, speed


def _table(results: list[dict[str, Any]], base: dict[str, Any]) -> Table:
    """One line per run."""
    n, share = base["n"], base["hard"]
    noise = 100 * math.sqrt(share * (1 - share) / n)
    table = Table(
        title="ResNet-8 on Fashion-MNIST, one bit per weight",
        caption=f"Accuracy in % of {n:,} test images (±{noise:.1f}), one run, seed {base['seed']}; "
        "after hardening, the signs stay and the rest trains on. BW: binary weights; BWA: and "
        "binary inputs.",
    )
    _head(table, COLUMNS)
    for each in results:
        shares = (f"{100 * each[k]:.2f}" for k in ("float", "soft", "hardened", "hard"))
        label = f"{each['method'].upper()} {each['task']}"
        table.add_row(label, *shares, f"{each['seconds']:.0f}")
    return table


def _packed_table(ends: list[_End]) -> Table:
    """One line per file."""
    _, first, speed = ends[0]
    table = Table(
        title="The same networks, packed",
        caption="The network of the file beside the hard one it came from: of "
        f"{first.agreement.images:,} test images, how many got another class; the largest "
        "difference of an output, relative to the largest output; and the median time of one image "
        f"beside float32 torch ({speed.threads} thread(s), {speed.kernels} kernels). A network "
        "this small gains little.",
    )
    _head(table, PACKED_COLUMNS)
    for name, done, speed in ends:
        agreed, held = done.agreement, done.summary.bytes_float
        table.add_row(
            name, f"{held:,}", f"{done.bytes:,}", f"{held / done.bytes:.1f}",
            f"{agreed.images - agreed.same:,}", f"{agreed.difference:.0e}",
            f"{speed.float32.median:.2f}", f"{speed.packed.median:.2f}",
        )  # fmt: skip
    return table


def _head(table: Table, columns: tuple[str, ...]) -> None:
    table.add_column("method")
    for name in columns:
        table.add_column(name, justify="right")
