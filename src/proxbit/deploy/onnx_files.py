"""ONNX files of finished runs and of packed files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from proxbit.deploy.packed_networks import packed_network
from proxbit.deploy.runs import finished_network
from proxbit.engine.loading import LARGEST_SIDE
from proxbit.export.onnx import OPSETS, OnnxFile, export_onnx
from proxbit.packfile.file import read
from proxbit.train.setup import input_of


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
