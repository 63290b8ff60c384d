"""``proxbit export``: networks for other runtimes."""

from __future__ import annotations

from typing import Annotated

import typer

from proxbit.cli.errors import advising, mistakes, say
from proxbit.cli.options import FORCE, SIDE, SKELETON, option


def export(
    source: Annotated[
        str, typer.Argument(metavar="RUN|FILE", help="Folder of a finished run, or a packed file.")
    ],
    out: Annotated[str, option("The ONNX file.", "--out", "-o")] = "net.onnx",
    operators: Annotated[
        str,
        option(
            "proxbit: one bit per weight, for ONNX Runtime with proxbit-runtime; standard: "
            "for every runtime, as large as floats; qonnx: for FINN and its family; matmulnbits: "
            "ONNX Runtime's own 2 bits for linear layers of BW."
        ),
    ] = "proxbit",
    opset: Annotated[int, option("Version of the standard operators: 18 to 23.")] = 18,
    fixed_batch: Annotated[
        bool, option("Take one input at a time: a batch of 1, fixed.", "--fixed-batch")
    ] = False,
    skeleton: SKELETON = None,
    largest_side: SIDE = 1024,
    force: FORCE = False,
) -> None:
    """Write a network as ONNX, to run it without torch.

    Classes, input size and normalization travel in the file's metadata, where
    python -m proxbit_runtime finds them.

    proxbit export runs/1 -o net.onnx

    proxbit export net.safetensors -o net.onnx --operators standard
    """
    from proxbit.deploy.runs import export_source

    with mistakes(), advising():
        written = export_source(
            source, out, operators=operators, opset=opset, fixed_batch=fixed_batch, force=force,
            skeleton=skeleton, largest_side=largest_side,
        )  # fmt: skip
    say(f"written: {written}")
    if operators == "proxbit":
        say("to run it: pip install onnxruntime proxbit-runtime")
