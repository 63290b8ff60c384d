"""``proxbit pack``, ``inspect``, ``run``, ``bench`` and ``export``: packed networks in use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from proxbit.cli.errors import MISTAKE, advising, mistakes, say
from proxbit.cli.options import FORCE, JSON, JSON_LINES, SIDE, SKELETON, Name, option, progress_bar
from proxbit.util.text import visible

MOST_THREADS = 1024
_FILE = Annotated[
    str, typer.Argument(metavar="FILE", help="A file that proxbit pack or pb.save wrote.")
]
_PRECISION = Annotated[
    str, option("exact, or input8: faster, the inputs of BW layers rounded to 8 bits.")
]


def pack(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    out: Annotated[Name, option("The file.", "--out", "-o", shown="RUN/net.safetensors")] = None,
    float_rest: Annotated[
        str, option("Type of all that is not binary: float32, or float16 at half the size.")
    ] = "float32",
    tables: Annotated[
        str, option("Type of embeddings and classifiers: float, or int8 at a quarter of the size.")
    ] = "float",
    precision: Annotated[
        str, option("input8 also compares with BW inputs rounded to 8 bits; the file is the same.")
    ] = "exact",
    force: FORCE = False,
) -> None:
    """Pack the best hard network of a run into one file with one bit per binary weight.

    The file knows its architecture, its classes and its input. It is written,
    read again, and compared with the run's network on a batch of test images.

    proxbit pack runs/1

    proxbit pack runs/1 -o small.safetensors --float-rest float16 --tables int8
    """
    from proxbit.deploy.runs import pack_run

    with mistakes(), advising():
        done = pack_run(
            run, out, float_rest=float_rest, tables=tables, precision=precision, force=force
        )
    say(done.summary)
    say(f"\nwritten: {done.path}\n{done.size_line}")
    say(f"the file beside the run: {done.agreement}")
    if done.rounded is not None:
        say(f"with inputs of 8 bits: {done.rounded}")


def inspect(file: _FILE, as_json: JSON = False) -> None:
    """Show what a packed file holds: its header, its layers, its true size.

    It runs nothing and does not build the network, so any packed file will do.

    proxbit inspect net.safetensors --json
    """
    from proxbit.deploy.packed_networks import inspect_file

    with mistakes():
        found = inspect_file(file)
    typer.echo(json.dumps(found.to_dict())) if as_json else say(found)


def run(
    file: _FILE,
    images: Annotated[list[str], typer.Argument(metavar="IMAGE...", help="Image files.")],
    top: Annotated[int, option("How many classes to name.")] = 5,
    precision: _PRECISION = "exact",
    skeleton: SKELETON = None,
    largest_side: SIDE = 1024,
    as_json: JSON_LINES = False,
) -> None:
    """Name what is in image files: the classes with the highest scores.

    Images are resized, cut and normalized as the file says, in grey or colour.
    One that cannot be read is named, the others go on, and the status is 2.

    proxbit run net.safetensors shoe.png shirt.jpg
    """
    from proxbit.deploy.image_inputs import InputForm, read_image, recognize
    from proxbit.deploy.packed_networks import packed_network
    from proxbit.engine.packing import finish
    from proxbit.packfile.file import read

    with mistakes(), advising():
        _require_positive(top=top)
        held = read(file)
        form = InputForm.of(held.about.input, largest_side)
        net = packed_network(file, held, skeleton, precision, largest_side)
        finish(net, None)
    unread = 0
    for image in images:
        try:
            guesses = recognize(net, read_image(image, form, largest_side), held.about.labels, top)
            _name(image, guesses, as_json)
        except (ValueError, ImportError) as error:
            say(f"proxbit: {' '.join(str(error).split())}", err=True)
            unread += 1
    raise typer.Exit(MISTAKE if unread else 0)


def _name(image: str, guesses: list[Any], as_json: bool) -> None:
    """Print the guesses for one image."""
    if as_json:
        typer.echo(json.dumps({"image": image, "top": [asdict(guess) for guess in guesses]}))
        return
    lines = [f"  {100 * guess.share:5.1f} %  {visible(guess.label)}" for guess in guesses]
    say("\n".join([image, *lines]))


def bench(
    file: _FILE,
    batch_size: Annotated[int, option("Images per forward pass.")] = 1,
    threads: Annotated[int | None, option("Threads of both networks.", shown="torch's own")] = None,
    seconds: Annotated[float, option("How long to measure.")] = 5.0,
    precision: _PRECISION = "exact",
    skeleton: SKELETON = None,
    largest_side: SIDE = 1024,
    as_json: JSON = False,
) -> None:
    """Time a packed network beside the same one in float32, on this machine.

    The float one has the same hard weights and runs in plain torch. They take
    turns in a shuffled order, each warmed by a call just before. Both are tried
    with images contiguous and with their channels last; the better one counts.

    proxbit bench net.safetensors --batch-size 8 --threads 1
    """
    from proxbit.deploy.packed_networks import float_network, packed_network
    from proxbit.deploy.speed import measure, noise
    from proxbit.packfile.file import read

    with mistakes(), advising():
        _require_positive(
            batch_size=batch_size, threads=1 if threads is None else threads, seconds=seconds
        )
        held = read(file)
        shape = _shape(held.about, largest_side)
        packed = packed_network(file, held, skeleton, precision, largest_side)
        plain = float_network(file, held, skeleton, largest_side)
        columns = TextColumn("measuring"), BarColumn(20), TimeRemainingColumn()
        with _threads(threads), progress_bar(*columns) as update:
            images = noise(batch_size, *shape)
            found = measure(packed, plain, images, seconds, lambda share: update(completed=share))
    typer.echo(json.dumps({"file": file} | found.to_dict())) if as_json else say(found)


def _require_positive(**given: float) -> None:
    for name, value in given.items():
        if not value > 0:
            raise ValueError(f"--{name} must be above 0, not {value:g}")


def _shape(about: Any, largest_side: int) -> tuple[int, int, int]:
    """The shape of an image: as the file says, or as its architecture was built for."""
    from proxbit.deploy.image_inputs import InputForm, input_shape

    built = about.architecture or {}
    if about.input is None and {"channels", "image_size"} <= built.keys():
        given = {"shape": [built["channels"], *2 * [built["image_size"]]]}
        return input_shape(given, largest_side)
    form = InputForm.of(about.input, largest_side)
    return form.channels, form.height, form.width


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Compute with so many threads for a while."""
    import torch

    before = torch.get_num_threads()
    if count is not None and count > MOST_THREADS:
        raise ValueError(f"--threads must be at most {MOST_THREADS}, not {count}")
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
