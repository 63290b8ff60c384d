"""The main job on the embedded images: train in float, give it one-bit weights, compare."""

from __future__ import annotations

import math
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from proxbit.train.config import Config
from proxbit.train.display import Display
from proxbit.train.fitting import open_run

METHODS = ("bc", "bnn+", "bnn++")
FLOAT = Config(method="fp", epochs=5, rate=1e-2, warmup=0.2, optimizer="adam")
BINARY = Config(epochs=3, rate=3e-3, optimizer="adam")
QUICK: dict[str, Any] = {"limit": 3, "epochs": 2, "recalibrate": 2}
COLUMNS = ("float", "soft", "hard\nat once", "hard\nat the end", "bytes\nfloat", "bytes\npacked",
           "seconds")  # fmt: skip


def demo(console: Console, quick: bool = False) -> None:
    """Print one table; everything in it but the seconds follows from seed and thread count."""
    start, changes = time.perf_counter(), QUICK if quick else {}
    with tempfile.TemporaryDirectory() as folder, Display(console) as display:
        console.print("A float ResNet-8 on 8,000 images of clothes, then one bit per weight.")
        base = _train(replace(FLOAT, **changes), Path(folder) / "float", display)
        results = [
            _train(
                replace(BINARY, method=method, weights=str(Path(folder) / "float"), **changes),
                Path(folder) / method,
                display,
            )
            for method in METHODS
        ]
    console.print(_table(results, base))
    spent = time.perf_counter() - start
    console.print(f"Float training took {base['seconds']:.0f} s, all of it {spent:.0f} s.")


def _train(config: Config, out: Path, display: Display) -> dict[str, Any]:
    """One run under the bar; its final figures."""
    trainer = open_run(config, out)
    trainer.stage, trainer.watch = f"{config.method:>5}, epoch", display.watch
    for _ in trainer:
        pass
    return trainer.result()


def _table(results: list[dict[str, Any]], base: dict[str, Any]) -> Table:
    """One line per method."""
    n, share = base["n"], base["hard"]
    noise = 100 * math.sqrt(share * (1 - share) / n)
    table = Table(
        title="ResNet-8 on Fashion-MNIST, one bit per weight",
        caption=f"Accuracy in % of {n:,} test images (±{noise:.1f}), one run, seed {base['seed']}; "
        "after hardening, the signs stay and the rest trains on.",
    )
    table.add_column("method")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for each in results:
        shares = (f"{100 * each[k]:.2f}" for k in ("float", "soft", "hardened", "hard"))
        sizes = (f"{each[k]:,}" for k in ("bytes_float", "bytes_packed"))
        table.add_row(each["method"].upper(), *shares, *sizes, f"{each['seconds']:.0f}")
    return table
