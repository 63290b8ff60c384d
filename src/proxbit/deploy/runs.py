"""From the folder of a finished run to a packed file, with proof that both agree, or to ONNX."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from proxbit.binarization.conversion import restore
from proxbit.deploy.packed_networks import packed_network
from proxbit.engine import Summary, load, pack, save, summary
from proxbit.engine.loading import LARGEST_SIDE
from proxbit.engine.packing import PRECISIONS
from proxbit.export.onnx import OPSETS, OnnxFile, export_onnx
from proxbit.packfile.file import TABLES, read
from proxbit.packfile.header import FLOAT_RESTS
from proxbit.train.fitting import load_network, read_result
from proxbit.train.run_folder import RunFolder
from proxbit.train.setup import PreparedRun, input_of
from proxbit.util.text import require_known, smaller

FILE = "net.safetensors"


@dataclass(frozen=True)
class Agreement:
    """How the outputs of two networks compare on the same images.

    Attributes:
        images: How many images.
        same: How many of them got the same decision.
        difference: The largest difference of an output, relative to the largest output.
    """

    images: int
    same: int
    difference: float

    def __str__(self) -> str:
        """One clause."""
        return (
            f"the same decision on {self.same:,} of {self.images:,} test images, outputs within "
            f"{self.difference:.1e} of the largest"
        )


@torch.inference_mode()
def compare(hard: nn.Module, packed: nn.Module, batches: Iterable[Tensor]) -> Agreement:
    """Run both networks on the same images."""
    images = same = 0
    most = apart = 0.0
    for x in batches:
        one, other = hard(x), packed(x)
        images += len(x)
        same += int((one.argmax(1) == other.argmax(1)).sum())
        most = max(most, float(one.abs().max()))
        apart = max(apart, float((one - other).abs().max()))
    return Agreement(images, same, apart / most if most else apart)


@dataclass(frozen=True, eq=False)
class PackedRun:
    """The result of packing a run.

    Attributes:
        path: The file.
        bytes: Its size.
        summary: What it weighs, layer by layer, and its operations for one image.
        agreement: The network of the file beside the hard one of the run.
        rounded: The same with inputs rounded to 8 bits, where that was asked for.
    """

    path: Path
    bytes: int
    summary: Summary
    agreement: Agreement
    rounded: Agreement | None = None

    @property
    def size_line(self) -> str:
        """The true size beside the float one."""
        held = self.summary.bytes_float
        words = smaller(held / self.bytes)
        return f"{self.bytes:,} bytes in the file, {held:,} as float32: {words}"


def pack_run(
    run: str | Path,
    out: str | Path | None = None,
    *,
    float_rest: str = "float32",
    tables: str = "float",
    precision: str = "exact",
    force: bool = False,
    batches: int | None = 1,
) -> PackedRun:
    """Pack the best hard network of a finished run, write it, read it again and compare.

    Args:
        run: Folder of the run.
        out: The file to write; net.safetensors in the folder of the run by default.
        float_rest: As for :func:`proxbit.save`.
        tables: As for :func:`proxbit.save`.
        precision: As for :func:`proxbit.pack`; it changes no bit of the file.
        force: Whether an older file may be replaced.
        batches: How many batches of test images to compare on; None for all.
    """
    path, folder = Path(run) / FILE if out is None else Path(out), RunFolder(run)
    folder.options()  # what is no run is told before where its file would go
    _require_free(folder, path, force)
    given = {"float_rest": float_rest, "tables": tables, "precision": precision}
    for (what, value), known in zip(given.items(), (FLOAT_RESTS, TABLES, PRECISIONS), strict=True):
        require_known(what, value, known)
    hard, job = finished_network(run)
    loader = job.loader("test", False, torch.device("cpu"))
    images = [x for x, _ in islice(loader.epoch(0), batches)]
    one = images[0][:1]
    packed = pack(hard, precision=precision)
    save(
        packed, path, float_rest=float_rest, tables=tables, labels=job.data.classes,
        input=input_of(job),
    )  # fmt: skip
    net = load(path, restore(copy.deepcopy(hard)), one)
    rounded = None if precision == "exact" else compare(hard, packed, images)
    agreement = compare(hard, net, images)
    found = summary(net, one, float_rest=float_rest, tables=tables)
    return PackedRun(path, path.stat().st_size, found, agreement, rounded)


def finished_network(run: str | Path) -> tuple[nn.Module, PreparedRun]:
    """The best hard network of a run, and the run; refuses one that has none yet, or never will."""
    if RunFolder(run).options() and read_result(run) is None:
        raise ValueError(
            f"the run in '{run}' is not finished: continue with  proxbit train --resume {run}"
        )
    hard, job = load_network(run)
    if not job.method.binary:
        raise ValueError(f"the run in '{run}' is a float one ({job.config.method}): it has no bits")
    return hard, job


def _require_free(folder: RunFolder, path: Path, force: bool) -> None:
    own = (folder.config, folder.metrics, folder.last, folder.model, folder.result)
    if path.resolve() in [each.resolve() for each in own]:
        raise ValueError(f"'{path}' belongs to the run itself: choose another --out")
    if path.is_dir():
        raise ValueError(f"'{path}' is a folder: name a file in it, such as {path / FILE}")
    if path.exists() and not force:
        raise ValueError(f"'{path}' exists: choose another --out, or replace it with --force")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder '{path.parent}' to write into: create it")


def export_source(
    source: str | Path,
    out: str | Path,
    *,
    operators: str = "proxbit",
    opset: int = OPSETS[0],
    fixed_batch: bool = False,
    force: bool = False,
    skeleton: str | None = None,
    largest_side: int = LARGEST_SIDE,
) -> OnnxFile:
    """Write the network of a run, or of a packed file, as ONNX, with its classes and its input.

    Args:
        source: The folder of a finished run, or what :func:`proxbit.save` wrote.
        out: The file to write.
        operators: As for :func:`proxbit.export_onnx`.
        opset: As for :func:`proxbit.export_onnx`.
        fixed_batch: As for :func:`proxbit.export_onnx`.
        force: Whether an older file may be replaced.
        skeleton: FILE.py:FUNCTION or a model's name, for a packed file without an architecture.
        largest_side: As for :func:`proxbit.load`.
    """
    if Path(out).exists() and not Path(out).is_dir() and not force:
        raise ValueError(f"'{out}' exists: choose another --out, or replace it with --force")
    how: dict[str, Any] = {"operators": operators, "opset": opset, "fixed_batch": fixed_batch}
    if Path(source).is_dir():
        hard, job = finished_network(source)
        form = input_of(job)
        example = torch.zeros(1, *form["shape"])
        return export_onnx(hard, out, example, labels=job.data.classes, input=form, **how)
    held = read(source)
    net = packed_network(source, held, skeleton, largest_side=largest_side)
    return export_onnx(net, out, **how)
