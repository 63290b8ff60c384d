"""Packed networks as files: bits, scales, all other tensors and a checked header in safetensors.

``docs/format.md`` describes every byte. Nothing that is read can run code.
"""

from __future__ import annotations

import zlib
from collections import Counter
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from proxbit.packfile.bits import from_int8, is_table, row_count, to_half, to_int8
from proxbit.packfile.container import MOST_DIMENSIONS, MOST_HEADER, Container, read_container
from proxbit.packfile.contents import Contents, check_contents
from proxbit.packfile.header import FLOAT_RESTS, NO_CRC, Header, header_text, parse_header
from proxbit.util.files import write_atomically
from proxbit.util.text import require_known, saying

KEY = "proxbit"
TABLES = ("float", "int8")
_CRC = b'\\"crc32\\":\\"'  # as it stands in a JSON text inside a JSON text
_STORED = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64,
)  # fmt: skip


def write(
    contents: Contents, path: str | Path, *, float_rest: str = "float32", tables: str = "float"
) -> None:
    """Put a packed network into a file, whole or not at all.

    Args:
        contents: What the file will hold.
        path: Where; an older file is replaced in one step.
        float_rest: "float32" stores float tensors as they are, "float16" in half of the space.
        tables: "int8" stores float tensors of 4,096 values or more in two or more dimensions
            (embeddings, classifiers) as int8 with one scale per row.
    """
    require_known("float_rest", float_rest, FLOAT_RESTS)
    require_known("tables", tables, TABLES)
    check_contents(contents)
    chosen = [n for n, t in contents.floats.items() if tables == "int8" and is_table(t)]
    stored = _stored(contents, float_rest, chosen)
    content = _sealed(save(stored, {KEY: header_text(contents, float_rest, chosen)}))
    if int.from_bytes(content[:8], "little") > MOST_HEADER:
        raise ValueError(f"the header would be longer than {MOST_HEADER} bytes: too many tensors")
    _require_place(Path(path))
    write_atomically(Path(path), content)


def read(path: str | Path) -> Contents:
    """Read back what :func:`write` stored; one sentence for any file that is not exactly that.

    Tensors that were stored as float16 or int8 come back as float32.
    """
    try:
        return _contents(read_container(Path(path)))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"cannot read '{path}': {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"cannot read '{path}': {error}") from None


def _stored(contents: Contents, float_rest: str, tables: list[str]) -> dict[str, Tensor]:
    """Every tensor of the file under its name there."""
    pairs = [pair for w in contents.weights for pair in w.stored.items()]
    for name, given in contents.floats.items():
        pairs += _floats(name, given.detach().cpu(), float_rest, name in tables)
    twice = _repeated(["__metadata__", *(name for name, _ in pairs)])
    if twice is not None:
        raise ValueError(f"the name {twice!r} is taken in a file: rename the tensor")
    # Tied tensors share memory, which safetensors refuses.
    return {name: t.detach().cpu().contiguous().clone() for name, t in pairs}


def _repeated(names: list[str]) -> str | None:
    """A name that occurs twice."""
    return next((name for name, n in Counter(names).most_common(1) if n > 1), None)


def _floats(name: str, given: Tensor, float_rest: str, table: bool) -> list[tuple[str, Tensor]]:
    if given.dtype not in _STORED or given.dim() > MOST_DIMENSIONS:
        raise ValueError(f"{name!r} is {given.dtype} of {given.dim()} dimensions: not storable")
    if table:
        values, scale = to_int8(name, given)
        return [(f"{name}.int8", values), (f"{name}.scale", scale)]
    return [(name, to_half(name, given) if float_rest == "float16" else given)]


def _require_place(path: Path) -> None:
    if path.is_dir():
        raise ValueError(f"'{path}' is a folder: name a file in it")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder '{path.parent}' to write into: create it")


def _sealed(content: bytes) -> bytes:
    """The content with its checksum in it."""
    at = _crc_place(content)
    return content[:at] + _crc(content).encode() + content[at + len(NO_CRC) :]


def _crc(content: bytes) -> str:
    """The CRC-32 of a file, taken with zeros in the place of its digits."""
    at = _crc_place(content)
    front = zlib.crc32(NO_CRC.encode(), zlib.crc32(content[:at]))
    return f"{zlib.crc32(memoryview(content)[at + len(NO_CRC) :], front):08x}"


def _crc_place(content: bytes) -> int:
    at = content.find(_CRC)
    if at < 0:
        raise ValueError("its header does not spell the checksum as this version does")
    return at + len(_CRC)


def _contents(box: Container) -> Contents:
    """The contents of a sound frame, if they are sound too."""
    if KEY not in box.metadata:
        raise ValueError("it is a safetensors file, but not a packed network of proxbit")
    header = parse_header(box.metadata[KEY])
    if header.crc32 != _crc(box.content):
        raise ValueError("it was changed or damaged: its content does not match its checksum")
    _require_names(header, box)
    tensors = _tensors(box)
    weights = tuple(entry.weight(tensors) for entry in header.weights)
    floats = {name: _float(name, header, tensors) for name in header.floats}
    contents = Contents(weights, floats, header.about, header.tied)
    check_contents(contents)
    return contents


def _require_names(header: Header, box: Container) -> None:
    """Require that a file has the tensors that its header names, each once, and no others."""
    names = [name for entry in header.weights for name in entry.stored.values()]
    for name in header.floats:
        names += [f"{name}.int8", f"{name}.scale"] if name in header.tables else [name]
    twice = _repeated(names)
    if twice is not None:
        raise ValueError(f"its header names the tensor {twice[:80]!r} twice")
    odd = min(box.places.keys() ^ set(names), default=None)
    if odd is not None:
        verb = "does not name" if odd in box.places else "names, but the file lacks,"
        raise ValueError(f"its header {verb} the tensor {odd[:80]!r}")


def _tensors(box: Container) -> dict[str, Tensor]:
    for name, place in box.places.items():
        if box.dtypes[name] == "BOOL" and box.content[place].translate(None, b"\0\1"):
            raise ValueError(
                f"its tensor {name[:80]!r} holds bytes that are neither true nor false"
            )
    with saying("safetensors refuses its tensors"):  # a second reader with a mind of its own
        return load(box.content)


def _float(name: str, header: Header, tensors: dict[str, Tensor]) -> Tensor:
    if name in header.tables:
        return _table(name, tensors[f"{name}.int8"], tensors[f"{name}.scale"])
    given = tensors[name]
    widen = header.float_rest == "float16" and given.dtype == torch.float16
    return given.float() if widen else given


def _table(name: str, values: Tensor, scale: Tensor) -> Tensor:
    kinds = values.dtype == torch.int8 and scale.dtype == torch.float32
    rows = row_count(tuple(values.shape)) if values.dim() >= 2 and values.numel() else None
    if not kinds or tuple(scale.shape) != (rows,) or not bool(scale.isfinite().all()):
        raise ValueError(f"its table {name[:80]!r} is not int8 with a finite float32 per row")
    return from_int8(values, scale)
