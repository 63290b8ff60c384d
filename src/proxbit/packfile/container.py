"""A safetensors file whose frame is checked before anything in it is used.

The frame is 8 bytes with the length of the header, the header as JSON, and the tensors without a
gap. Nothing is trusted: every size is compared with the size of the file before memory is taken.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from proxbit.util.text import saying

MOST_HEADER = 8 << 20  # bytes, enough for 60,000 tensors; parsed JSON is far bigger than its text
MOST_DIMENSIONS = 16
MOST_SIZE = 1 << 40
WIDTHS = {
    "BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "F16": 2, "BF16": 2, "I32": 4, "F32": 4, "I64": 8,
    "F64": 8,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Container:
    """The bytes of a file whose frame is sound.

    Attributes:
        content: The whole file.
        metadata: What the header says beside the tensors.
        places: The place of each tensor's bytes in ``content``, by name.
        dtypes: The type of each tensor as safetensors spells it.
    """

    content: bytes
    metadata: dict[str, str]
    places: dict[str, slice]
    dtypes: dict[str, str]


def read_container(path: Path) -> Container:
    """The content of a safetensors file, or a ValueError that says what is wrong with its frame."""
    if not path.exists():
        raise FileNotFoundError(f"there is no file '{path}'")
    if not path.is_file():
        raise ValueError("it is a folder or a device, not a file")
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        front = _front(file, size)
        header = strict_json(_text(front[8:]), "its header")
        metadata, tensors = _parted(header)
        places = {name: _place(name, given, len(front)) for name, given in tensors.items()}
        _require_gapless(places, len(front), size)
        content = front + file.read(size - len(front))
    if len(content) != size:
        raise ValueError("it became shorter while it was read")
    return Container(content, metadata, places, {n: t["dtype"] for n, t in tensors.items()})


def _front(file: IO[bytes], size: int) -> bytes:
    """The length and the header."""
    if size < 8:
        raise ValueError(f"it has {size} bytes, and a safetensors file has at least 8")
    length = file.read(8)
    wanted = int.from_bytes(length, "little")
    if wanted > size - 8:
        raise ValueError(
            f"its header should have {wanted} bytes, but {size - 8} are left: "
            "it is cut off or not a safetensors file"
        )
    if wanted > MOST_HEADER:
        raise ValueError(f"its header has {wanted} bytes, more than {MOST_HEADER}")
    return length + file.read(wanted)


def _text(header: bytes) -> str:
    if not header.startswith(b"{"):
        raise ValueError("its header is not JSON: it is damaged or not a safetensors file")
    try:
        return header.decode()
    except UnicodeDecodeError:
        raise ValueError("its header is not UTF-8: it is damaged") from None


def strict_json(text: str, what: str) -> Any:
    """The values of a JSON text without repeated keys, NaN, numbers past 64 bits or half letters.

    >>> strict_json('{"a": 1, "a": 2}', "the header")
    Traceback (most recent call last):
    ValueError: the header is not sound JSON: the key 'a' stands in it twice
    """
    # Brackets without end are a RecursionError.
    with saying(f"{what} is not sound JSON", ValueError, RecursionError):
        values = json.loads(
            text,
            object_pairs_hook=_once,
            parse_int=_whole,
            parse_float=_finite,
            parse_constant=_finite,
        )
        json.dumps(values, ensure_ascii=False).encode()  # half of a surrogate pair is no letter
    return values


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice[:80]!r} stands in it twice")
    return values


def _whole(digits: str) -> int:
    if len(digits) > 20 or abs(int(digits)) >= 1 << 63:
        raise ValueError(f"the number {digits[:20]}... is too long")
    return int(digits)


def _finite(digits: str) -> float:
    if not math.isfinite(float(digits)):
        raise ValueError(f"the number {digits[:20]} is not finite")
    return float(digits)


def _parted(header: Any) -> tuple[dict[str, str], dict[str, Any]]:
    """Metadata and tensors."""
    tensors = dict(header)
    metadata = tensors.pop("__metadata__", {})
    texts = isinstance(metadata, dict) and all(isinstance(t, str) for t in metadata.values())
    if not texts:
        raise ValueError("its __metadata__ holds other things than texts")
    return metadata, tensors


def _place(name: str, given: Any, start: int) -> slice:
    """Where the bytes of one tensor are, if they can be there."""
    what = f"its tensor {name[:80]!r}"
    if not isinstance(given, dict) or given.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{what} is not described by dtype, shape and data_offsets")
    dtype, shape, offsets = given["dtype"], given["shape"], given["data_offsets"]
    if not isinstance(dtype, str) or dtype not in WIDTHS:
        raise ValueError(
            f"{what} has the dtype {str(dtype)[:80]!r}, not one of {', '.join(WIDTHS)}"
        )
    if not is_sizes(shape):
        raise ValueError(f"{what} has an impossible shape: {str(shape)[:80]}")
    if not is_sizes(offsets) or len(offsets) != 2:
        raise ValueError(f"{what} has impossible offsets: {str(offsets)[:80]}")
    begin, end = offsets
    if end - begin != math.prod(shape) * WIDTHS[dtype]:
        raise ValueError(f"{what} has {end - begin} bytes, which do not fit {dtype} of {shape}")
    return slice(start + begin, start + end)


def is_sizes(given: Any) -> bool:
    """Whether a JSON value is a list of whole numbers that can be sizes.

    >>> is_sizes([2, 0]), is_sizes([-1]), is_sizes([True]), is_sizes("12")
    (True, False, False, False)
    """
    if not isinstance(given, list) or len(given) > MOST_DIMENSIONS:
        return False
    return all(type(n) is int and 0 <= n <= MOST_SIZE for n in given)


def _require_gapless(places: dict[str, slice], start: int, size: int) -> None:
    at = start
    for name, place in sorted(places.items(), key=lambda each: (each[1].start, each[1].stop)):
        if place.start != at:
            raise ValueError(f"its tensor {name[:80]!r} overlaps another or leaves a gap")
        at = place.stop
    if at != size:
        raise ValueError(f"its tensors end at byte {at}, but it has {size} bytes: it is cut off")
