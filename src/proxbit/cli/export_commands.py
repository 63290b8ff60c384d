"""``proxbit export``: networks for other runtimes."""

from __future__ import annotations

from typing import Annotated

import typer

from proxbit.cli.engine_commands import SIDE, SKELETON
from proxbit.cli.errors import mistakes, say
from proxbit.cli.train_commands import advising


def export(
    source: Annotated[
        str, typer.Argument(metavar="RUN|FILE", help="Folder of a finished run, or a packed file.")
    ],
    out: Annotated[str, typer.Option("--out", "-o", help="The ONNX file.")] = "net.onnx",
    operators: Annotated[
        str,
        typer.Option(
            help="proxbit: one bit per weight, for ONNX Runtime with proxbit-runtime; standard: "
            "for every runtime, as large as floats; qonnx: for FINN and its family; matmulnbits: "
            "ONNX Runtime's own 2 bits for linear layers of BW."
        ),
    ] = "proxbit",
    opset: Annotated[int, typer.Option(help="Version of the standard operators: 18 to 23.")] = 18,
    fixed_batch: Annotated[
        bool, typer.Option("--fixed-batch", help="Take one input at a time: a batch of 1, fixed.")
    ] = False,
    skeleton: SKELETON = None,
    largest_side: SIDE = 1024,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write a network as ONNX, to run it without torch.

    Classes, input size and normalization travel in the file's metadata, where
    python -m proxbit_runtime finds them.

    proxbit export runs/1 -o net.onnx

    proxbit export net.safetensors -o net.onnx --operators standard
    """
    from proxbit.deploy.onnx_files import export_source

    with mistakes(), advising():
        written = export_source(
            source, out, operators=operators, opset=opset, fixed_batch=fixed_batch, force=force,
            skeleton=skeleton, largest_side=largest_side,
        )  # fmt: skip
    say(f"written: {written}")
    if operators == "proxbit":
        say("to run it: pip install onnxruntime proxbit-runtime")
