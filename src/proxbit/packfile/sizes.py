"""The size of a packed file to the byte, before it is written and without its values."""

from __future__ import annotations

import json
import math

import torch

from proxbit.packfile.bits import is_table, row_count
from proxbit.packfile.container import WIDTHS
from proxbit.packfile.contents import Contents
from proxbit.packfile.file import KEY
from proxbit.packfile.header import header_text

# In the order in which safetensors lays tensors out, and as it spells them.
_NAMES = {
    torch.int64: "I64", torch.float64: "F64", torch.float32: "F32", torch.int32: "I32",
    torch.bfloat16: "BF16", torch.float16: "F16", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_ORDER = list(_NAMES.values())
Stored = dict[str, tuple[str, tuple[int, ...]]]


def file_bytes(contents: Contents, *, float_rest: str = "float32", tables: str = "float") -> int:
    """Bytes of the file that ``write`` would make of these contents; the values do not count."""
    held = stored(contents, float_rest, tables)
    chosen = [n for n, t in contents.floats.items() if tables == "int8" and is_table(t)]
    header = {"__metadata__": {KEY: header_text(contents, float_rest, chosen)}} | _frame(held)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False)
    return 8 + -(-len(text.encode()) // 8) * 8 + sum(map(_bytes, held.values()))


def stored(contents: Contents, float_rest: str, tables: str) -> Stored:
    """Type and shape of every tensor of that file, by its name there."""
    parts = [pair for w in contents.weights for pair in w.stored.items()]
    found: Stored = {name: (_NAMES[t.dtype], tuple(t.shape)) for name, t in parts}
    for name, t in contents.floats.items():
        found |= _float(name, t, float_rest, tables)
    return found


def bytes_of(contents: Contents, float_rest: str, tables: str) -> dict[str, int]:
    """Bytes that each tensor of these contents takes there: labels of weights, names of floats."""
    held = stored(contents, float_rest, tables)
    sizes = {w.label: w.nbytes for w in contents.weights}
    for name, t in contents.floats.items():
        sizes[name] = sum(_bytes(held[part]) for part in _float(name, t, float_rest, tables))
    return sizes


def _float(name: str, t: torch.Tensor, float_rest: str, tables: str) -> Stored:
    shape = tuple(t.shape)
    if tables == "int8" and is_table(t):
        return {f"{name}.int8": ("I8", shape), f"{name}.scale": ("F32", (row_count(shape),))}
    half = float_rest == "float16" and t.dtype in (torch.float32, torch.float64)
    return {name: ("F16" if half else _NAMES[t.dtype], shape)}


def _bytes(entry: tuple[str, tuple[int, ...]]) -> int:
    return WIDTHS[entry[0]] * math.prod(entry[1])


def _frame(held: Stored) -> dict[str, object]:
    """The header entry of each tensor; the digits of offsets depend on their order."""
    at, frame = 0, dict[str, object]()
    for name, entry in sorted(held.items(), key=lambda item: (_ORDER.index(item[1][0]), item[0])):
        end = at + _bytes(entry)
        frame[name] = {"dtype": entry[0], "shape": list(entry[1]), "data_offsets": [at, end]}
        at = end
    return frame
