"""Whole networks in ONNX Runtime, by our operators: size, time to begin, time beside pb.load.

Weights are random. The two networks take turns in a shuffled order on one image, equally warm, and
must agree before they are timed.

    python benchmarks/onnx_networks.py deit_tiny resnet50 --task BWA --threads 1
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from network_settings import SETTINGS
from rich.console import Console
from torch import Tensor, nn

import proxbit as pb
from proxbit.core.tasks import TASKS
from proxbit.engine.timing import race
from proxbit.kernels.library import library_file
from proxbit.util.text import size, table


@dataclass(frozen=True)
class Exported:
    """A network in ONNX Runtime.

    Attributes:
        session: What runs it.
        seconds: Until the session was ready.
        bytes: Of the file.
    """

    session: Any
    seconds: float
    bytes: int

    def __call__(self, x: Tensor) -> Tensor:
        (entry,) = self.session.get_inputs()
        (out,) = self.session.run(None, {entry.name: x.numpy()})
        return torch.from_numpy(out)


def opened(path: Path, threads: int = 1) -> Exported:
    """An ONNX file with our operators, ready to run."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.register_custom_ops_library(library_file())
    begin = time.perf_counter()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return Exported(session, time.perf_counter() - begin, path.stat().st_size)


def exported(net: nn.Module, x: Tensor, threads: int = 1) -> Exported:
    """A hard or packed network, exported with our operators and opened."""
    with tempfile.TemporaryDirectory() as folder:
        example = torch.cat([x[:1], x[:1]])  # a batch of one would be taken for fixed
        written = pb.export_onnx(net, Path(folder) / "net.onnx", example, operators="proxbit")
        return opened(written.path, threads)


def hard_network(name: str, task: Any, x: Tensor) -> nn.Module:
    """With random weights, and batch statistics of its own."""
    model = SETTINGS[name].build()
    pb.binarize(model, "bnn", task, relu=None if task == "BW" else nn.Hardtanh)
    with torch.no_grad():
        model.train()(torch.cat([x, -x]))
    return pb.harden(model).eval().requires_grad_(False)


def files(name: str, task: str, folder: Path) -> tuple[Path, Path]:
    """The packed file and the ONNX file of a network, made if they are not there."""
    packed, onnx = folder / f"{name}-{task}.safetensors", folder / f"{name}-{task}.onnx"
    if not onnx.exists():
        side = SETTINGS[name].side
        x = torch.randn(1, 3, side, side)
        hard = hard_network(name, task, x)
        pb.save(pb.pack(hard), packed)
        pb.export_onnx(hard, onnx, torch.cat([x, x]), operators="proxbit")
    return packed, onnx


@torch.inference_mode()
def measure(name: str, task: str, folder: Path, threads: int, seconds: float) -> list[str]:
    """One line of the table."""
    side = SETTINGS[name].side
    x = torch.randn(1, 3, side, side)
    with torch.inference_mode(False):
        stored, onnx = files(name, task, folder)
        packed = pb.load(stored, SETTINGS[name].build(), x)
    other = opened(onnx, threads)
    wanted = packed(x)
    apart = (wanted - other(x)).abs().max() / wanted.abs().max()
    calls: dict[str, Callable[[], object]] = {
        "torch": partial(packed, x), "onnx": partial(other, x),
    }  # fmt: skip
    times = {who: 1e3 * statistics.median(each) for who, each in race(calls, seconds).items()}
    sizes = stored.stat().st_size, onnx.stat().st_size
    return [
        name, task, *map(size, sizes), f"{sizes[1] / sizes[0]:.2f}", f"{other.seconds:.2f}",
        f"{times['torch']:.2f}", f"{times['onnx']:.2f}", f"{times['torch'] / times['onnx']:.2f}x",
        f"{float(apart):.0e}",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SETTINGS))
    parser.add_argument("--task", choices=TASKS, default="BWA")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=6.0, help="for each network")
    parser.add_argument("--keep", type=Path, help="folder for the files, used again next time")
    parser.add_argument("--make", action="store_true", help="make the files only, with --keep")
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(given.threads)
    names = given.names or list(SETTINGS)
    with tempfile.TemporaryDirectory() as folder:
        place = given.keep or Path(folder)
        if given.make:
            for name in names:
                files(name, given.task, place)
            return
        lines = [measure(name, given.task, place, given.threads, given.seconds) for name in names]
    head = ["network", "task", "packed file", "ONNX file", "ratio", "session, s", "pb.load, ms"]
    head += ["ONNX Runtime, ms", "gain", "difference"]
    Console(width=160).print(table(head, lines))


if __name__ == "__main__":
    main()
