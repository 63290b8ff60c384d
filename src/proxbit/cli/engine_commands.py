"""``proxbit pack``, ``inspect``, ``run`` and ``bench``: packed networks on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from proxbit.cli.errors import MISTAKE, mistakes, say
from proxbit.cli.train_commands import advising
from proxbit.util.text import visible

MOST_THREADS = 1024
_FILE = Annotated[
    str, typer.Argument(metavar="FILE", help="A file that proxbit pack or pb.save wrote.")
]
_JSON = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SKELETON = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.py:FUNCTION",
        help="Function that builds the float model, if the file does not say how; it is executed.",
    ),
]
_PRECISION = Annotated[
    str, typer.Option(help="exact, or input8: faster, the inputs of BW layers rounded to 8 bits.")
]

SIDE = Annotated[
    int,
    typer.Option(min=1, help="Largest side, in pixels, of the images that the file may ask for."),
]


def pack(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", help="The file.", show_default="RUN/net.safetensors"),
    ] = None,
    float_rest: Annotated[
        str,
        typer.Option(help="Type of all that is not binary: float32, or float16 at half the size."),
    ] = "float32",
    tables: Annotated[
        str,
        typer.Option(
            help="Type of embeddings and classifiers: float, or int8 at a quarter of the size."
        ),
    ] = "float",
    precision: Annotated[
        str,
        typer.Option(
            help="input8 also compares with BW inputs rounded to 8 bits; the file is the same."
        ),
    ] = "exact",
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
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


def inspect(file: _FILE, as_json: _JSON = False) -> None:
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
    top: Annotated[int, typer.Option(help="How many classes to name.")] = 5,
    precision: _PRECISION = "exact",
    skeleton: SKELETON = None,
    largest_side: SIDE = 1024,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
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
    batch_size: Annotated[int, typer.Option(help="Images per forward pass.")] = 1,
    threads: Annotated[
        int | None, typer.Option(help="Threads of both networks.", show_default="torch's own")
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long to measure.")] = 5.0,
    precision: _PRECISION = "exact",
    skeleton: SKELETON = None,
    largest_side: SIDE = 1024,
    as_json: _JSON = False,
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
        with _threads(threads), _bar() as watch:
            found = measure(packed, plain, noise(batch_size, *shape), seconds, watch)
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


@contextmanager
def _bar() -> Iterator[Callable[[float], None]]:
    """A bar on a terminal, beside what is printed."""
    console = Console(stderr=True)
    columns = TextColumn("measuring"), BarColumn(20), TimeRemainingColumn()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda share: bar.update(task, completed=share)
