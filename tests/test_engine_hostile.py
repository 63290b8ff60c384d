"""Packed files from strangers: one sentence or sound contents, whatever the bytes are."""

import errno
import json
import os
import re
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from proxbit.packfile.bits import pack_bits
from proxbit.packfile.contents import About, Contents, PackedWeight, check_contents
from proxbit.packfile.file import read, write

Change = Callable[[dict[str, Any], dict[str, Any], bytearray], object]


def weight(name: str, *shape: int, **values: Any) -> PackedWeight:
    return PackedWeight(name, shape, pack_bits(torch.randn(shape)), torch.rand(shape[0]), **values)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file with a bit of everything."""
    path, generator = tmp_path_factory.mktemp("good") / "network", torch.Generator().manual_seed(0)
    weights = (
        weight("conv.weight", 4, 3, 3, 3, task="BWA"),
        weight("attn.in_proj_weight", 2, 5, rows=(0, 2), task="BWA"),
        weight("attn.in_proj_weight", 4, 5, rows=(2, 6), task="BWA"),
    )
    floats = {
        "head.weight": torch.randn(2, 2048, generator=generator), "head.bias": torch.randn(2),
        "bn.num_batches_tracked": torch.tensor(7),
    }  # fmt: skip
    about = About(replaced={"relu": "hardtanh"}, labels=("a", "b"), input={"shape": [3, 32, 32]})
    write(Contents(weights, floats, about), path, float_rest="float16", tables="int8")
    return path.read_bytes()


def sealed(content: bytes) -> bytes:
    """The content with a checksum that is right, as an attacker would write it."""
    zeros = re.sub(rb'(\\"crc32\\":\\").{8}', rb"\g<1>00000000", content, count=1, flags=re.DOTALL)
    return zeros.replace(b'\\"00000000\\"', b'\\"%08x\\"' % zlib.crc32(zeros), 1)


def framed(header: bytes, data: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def opened(content: bytes) -> tuple[dict[str, Any], dict[str, Any], bytearray]:
    """Frame, proxbit header and data of a file."""
    start = 8 + int.from_bytes(content[:8], "little")
    frame = json.loads(content[8:start])
    return frame, json.loads(frame.pop("__metadata__")["proxbit"]), bytearray(content[start:])


def closed(frame: dict[str, Any], header: Any, data: bytes) -> bytes:
    text = header if isinstance(header, str) else json.dumps(header, separators=(",", ":"))
    outer = {"__metadata__": {"proxbit": text}, **frame}
    return sealed(framed(json.dumps(outer, ensure_ascii=False).encode("utf-8", "replace"), data))


def refused(path: Path, content: bytes, said: str = "") -> None:
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=f"^cannot read '{re.escape(str(path))}': .*{said}"
    ) as error:
        read(path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 1000


def accepted_if_sound(path: Path, content: bytes) -> bool:
    """Whether a file is read; if so, what it holds must be sound."""
    path.write_bytes(content)
    try:
        contents = read(path)
    except ValueError as error:
        assert str(error).startswith(f"cannot read '{path}': ")
        return False
    check_contents(contents)
    assert contents.bytes_binary <= len(content) and contents.bytes_rest <= 4 * len(content)
    return True


def test_the_test_can_open_and_close_a_file(tmp_path, good):
    """So that the tests below refuse for the right reason."""
    (tmp_path / "a").write_bytes(good)
    (tmp_path / "b").write_bytes(closed(*opened(good)))
    assert sealed(good) == good
    a, b = read(tmp_path / "a"), read(tmp_path / "b")
    assert a.about == b.about and a.floats.keys() == b.floats.keys()
    assert all(torch.equal(v.bits, w.bits) for v, w in zip(a.weights, b.weights, strict=True))


def places(content: bytes) -> list[int]:
    """Every byte of the header, and some of the tensors, their ends among them."""
    start = 8 + int.from_bytes(content[:8], "little")
    return [*range(start + 1), *range(start + 1, len(content), 41), len(content) - 1]


def test_every_truncated_file_is_refused(tmp_path, good):
    for length in places(good):
        refused(tmp_path / "short", good[:length])


def test_every_changed_byte_is_seen(tmp_path, good):
    for position in places(good):
        changed = bytearray(good)
        changed[position] ^= 1 << position % 8
        refused(tmp_path / "flipped", bytes(changed))


@settings(max_examples=400)
@given(changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=3))
def test_changed_bytes_under_a_right_checksum_give_sound_contents_or_none(
    tmp_path_factory, good, changes
):
    changed, start = bytearray(good), int.from_bytes(good[:8], "little")
    for place, value in changes:
        changed[int(place * (start + 20))] = value
    accepted_if_sound(tmp_path_factory.getbasetemp() / "changed", sealed(bytes(changed)))


@settings(max_examples=200)
@given(cut=st.floats(0, 1), length=st.integers(0, 30), put=st.binary(max_size=30))
def test_spliced_bytes_under_a_right_checksum_give_sound_contents_or_none(
    tmp_path_factory, good, cut, length, put
):
    start = 8 + int.from_bytes(good[:8], "little")
    at = 8 + int(cut * (start - 8))
    header = (good[8:at] + put + good[at + length : start])[: start + 100]
    content = sealed(framed(header, good[start:]))
    accepted_if_sound(tmp_path_factory.getbasetemp() / "spliced", content)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**64) | st.text(max_size=3) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)  # fmt: skip


def places_in(value: Any) -> list[tuple[Any, Any]]:
    """Every place in nested JSON values that can be given another value."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    inner = [value[key] for key in keys if isinstance(value[key], dict | list)]
    return [(value, key) for key in keys] + [place for each in inner for place in places_in(each)]


@settings(max_examples=400)
@given(where=st.integers(0, 10**6), junk=JUNK, outer=st.booleans())
def test_junk_in_any_place_of_a_header_gives_sound_contents_or_none(
    tmp_path_factory, good, where, junk, outer
):
    frame, header, data = opened(good)
    places = places_in(frame if outer else header)
    owner, key = places[where % len(places)]
    owner[key] = junk
    path = tmp_path_factory.getbasetemp() / "junk"
    accepted_if_sound(path, closed(frame, header, data))


@settings(max_examples=100)
@given(content=st.binary(max_size=100), header=st.booleans())
def test_any_other_bytes_are_refused(tmp_path_factory, content, header):
    refused(tmp_path_factory.getbasetemp() / "other", framed(b"{", content) if header else content)


BITS = "conv.weight.bits"


def _frame(name: str, key: str, to: Any) -> Change:
    return lambda frame, header, data: frame[name].update({key: to})


def _header(key: str, to: Any) -> Change:
    return lambda frame, header, data: header.update({key: to})


def _group(key: str, to: Any) -> Change:
    return lambda frame, header, data: header["groups"][0].update({key: to})


def _weight(at: int, key: str, to: Any) -> Change:
    return lambda frame, header, data: header["groups"][0]["weights"][at].update({key: to})


def _data(name: str, value: bytes) -> Change:
    def change(frame: Any, header: Any, data: bytearray) -> None:
        end = frame[name]["data_offsets"][1]
        data[end - len(value) : end] = value

    return change


def _rename(old: str, new: str) -> Change:
    return lambda frame, header, data: frame.update({new: frame.pop(old)})


def _retype(name: str, dtype: str, shape: list[int]) -> Change:
    return lambda frame, header, data: frame[name].update({"dtype": dtype, "shape": shape})


def _end(frame: dict[str, Any]) -> int:
    return max(each["data_offsets"][1] for each in frame.values())


HOSTILE: dict[str, tuple[Change, str]] = {
    # the frame
    "an unknown dtype": (_frame(BITS, "dtype", "F8_E4M3"), "has the dtype 'F8_E4M3'"),
    "a dtype that is a list": (_frame(BITS, "dtype", ["U8"]), "has the dtype"),
    "a shape below 0": (_frame(BITS, "shape", [-14]), "impossible shape"),
    "a shape of truth": (_frame(BITS, "shape", [True]), "impossible shape"),
    "a shape of text": (_frame(BITS, "shape", "14"), "impossible shape"),
    "a shape of a fraction": (_frame(BITS, "shape", [14.0]), "impossible shape"),
    "a huge shape": (_frame(BITS, "shape", [2**40] * 16), "bytes, which do not fit"),
    "too many dimensions": (_frame(BITS, "shape", [1] * 17), "impossible shape"),
    "a huge shape of nothing": (_frame(BITS, "shape", [0, 2**62]), "impossible shape"),
    "a shape that does not match": (_frame(BITS, "shape", [13]), "bytes, which do not fit"),
    "offsets below 0": (_frame(BITS, "data_offsets", [-14, 0]), "impossible offsets"),
    "offsets that run back": (_frame(BITS, "data_offsets", [14, 0]), "do not fit"),
    "offsets behind the end": (_frame(BITS, "data_offsets", [10**9, 10**9 + 14]), "overlaps|gap"),
    "one offset": (_frame(BITS, "data_offsets", [14]), "impossible offsets"),
    "overlapping tensors": (_frame(BITS, "data_offsets", [0, 14]), "overlaps another or leaves"),
    "a key too many": (_frame(BITS, "exec", "rm"), "is not described by"),
    "a tensor that is a number": (lambda f, h, d: f.update({"x": 3}), "is not described by"),
    "bytes behind the tensors": (lambda f, h, d: d.extend(b"12"), "tensors end at byte"),
    "a gap": (
        lambda f, h, d: (d.extend(b"1234"), f.update(
            {"x": {"dtype": "U8", "shape": [1], "data_offsets": [len(d) - 1, len(d)]}})),
        "overlaps another or leaves a gap",
    ),
    # tensors against the header
    "a tensor less": (_rename(BITS, "other"), "names, but the file lacks, the tensor 'conv"),
    "a tensor more": (
        lambda f, h, d: f.update(
            {"x": {"dtype": "U8", "shape": [0], "data_offsets": [_end(f)] * 2}}),
        "does not name the tensor 'x'",
    ),
    "a float twice": (lambda f, h, d: h["floats"].append("head.bias"), "'head.bias' twice"),
    "a weight twice": (
        lambda f, h, d: h["groups"].append(h["groups"][0]), "names the tensor .* twice",
    ),
    "signed bits": (_retype(BITS, "I8", [14]), "bits of torch.int8"),
    "bits in two dimensions": (_retype(BITS, "U8", [2, 7]), "14 bytes in one dimension"),
    "whole scales": (_retype("conv.weight.scale", "I32", [4]), "scale of torch.int32"),
    "scales in two dimensions": (_retype("conv.weight.scale", "F32", [2, 2]), "scale of"),
    "ones in the padding": (_data(BITS, b"\x80"), "ones behind the last of its 108 bits"),
    "no number for a scale": (_data("conv.weight.scale", b"\x00\x00\xc0\x7f"), "not finite"),
    "no limit for a scale": (_data("conv.weight.scale", b"\x00\x00\x80\x7f"), "not finite"),
    "no limit in a table": (_data("head.weight.scale", b"\x00\x00\x80\x7f"), "finite float32"),
    "a table of bytes": (_retype("head.weight.int8", "U8", [2, 2048]), "is not int8"),
    "a table of other rows": (_retype("head.weight.int8", "I8", [4, 1024]), "is not int8"),
    "a table without rows": (_retype("head.weight.int8", "I8", [4096]), "is not int8"),
    "a truth of 7": (_retype("bn.num_batches_tracked", "BOOL", [8]), "neither true nor false"),
    # the proxbit header
    "version 2": (_header("version", 2), "format version 2, and this proxbit reads 1"),
    "version 1.0": (_header("version", 1.0), "format version 1.0"),
    "version true": (_header("version", True), "format version True"),
    "no version": (lambda f, h, d: h.pop("version"), "format version None"),
    "a key less": (lambda f, h, d: h.pop("groups"), "its header has"),
    "another key": (_header("exec", "rm"), "its header has"),
    "an unknown rest": (_header("float_rest", "float8"), "unknown float_rest"),
    "floats of numbers": (_header("floats", [1]), "floats of its header are not all texts"),
    "floats as text": (_header("floats", "abc"), "for floats, not a list"),
    "a table of nothing": (_header("tables", {"x": "int8"}), "the table 'x' is not"),
    "a table of 4 bits": (_header("tables", {"head.weight": "int4"}), "is not an int8 one"),
    "a group that is text": (_header("groups", ["BW"]), "a group of its header has str"),
    "an unknown task": (_group("task", "BWW"), "unknown task 'BWW'"),
    "a register in BWA": (_group("register_bits", 8), "which BWA does not use"),
    "a register of truth": (_group("register_bits", True), "for register_bits, not a whole"),
    "a register of a fraction": (_group("register_bits", 0.0), "for register_bits"),
    "BWAA without a register": (_group("task", "BWAA"), "register of 0 bits"),
    "a slope of 0": (_group("slope", 0), "the slope 0"),
    "another pad value": (_group("pad_value", 2), "the pad value 2"),
    "no bits": (_group("parts", ["scale"]), "has the parts"),
    "unknown parts": (_group("parts", ["bits", "scale", "exec"]), "has the parts"),
    "parts twice": (_group("parts", ["bits", "bits"]), "has the parts"),
    "parts of lists": (_group("parts", [[], {}]), "has the parts"),
    "a shape of another size": (_weight(0, "shape", [4, 3, 3, 4]), "18 bytes in one dimension"),
    "a shape of one size": (_weight(0, "shape", [108]), "the shape \\(108,\\)"),
    "a shape with 0": (_weight(0, "shape", [0, 108]), "the shape \\(0, 108\\)"),
    "a weight's shape below 0": (_weight(0, "shape", [-4, -27]), "impossible shape"),
    "a weight's huge shape": (_weight(0, "shape", [2**40] * 16), "bytes in one dimension"),
    "a weight's endless shape": (_weight(0, "shape", [2] * 10_000), "impossible shape"),
    "three rows": (_weight(1, "rows", [0, 1, 2]), "impossible shape or rows"),
    "rows below 0": (_weight(1, "rows", [-1, 1]), "impossible shape or rows"),
    "a name that is a number": (_weight(0, "name", 3), "for name, not text"),
    "about as text": (_header("about", "x"), "for about, not an object"),
    "about something else": (_header("about", {"exec": "rm"}), "header: unknown option 'exec'"),
    "labels of numbers": (_header("about", {"labels": [1]}), "labels must be a list of text each"),
    "modules of numbers": (_header("about", {"replaced": {"a": 1}}), "an object of text each"),
    "a method that is null": (_header("about", {"method": None}), "method must be text"),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_file_is_refused_with_one_sentence(tmp_path, good, what):
    change, said = HOSTILE[what]
    frame, header, data = opened(good)
    change(frame, header, data)
    refused(tmp_path / "hostile", closed(frame, header, bytes(data)), said)


def _moved(
    frame: dict[str, Any], header: dict[str, Any], first: list[int], second: list[int]
) -> None:
    """Let the pieces of the attention cover other rows, under names that fit."""
    for at, rows in ((1, first), (2, second)):
        given_as = header["groups"][0]["weights"][at]
        old, new = (f"attn.in_proj_weight[{b}:{e}]" for b, e in (given_as["rows"], rows))
        given_as["rows"] = rows
        for part in ("bits", "scale"):
            frame[f"{new}.{part}"] = frame.pop(f"{old}.{part}")


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [([0, 2], [1, 5], "overlap"), ([0, 2], [3, 7], "gap"), ([4, 6], [0, 4], None),
     ([0, 2], [2, 5], "has 4 rows"), ([1, 3], [3, 7], "gap"), ([2, 0], [2, 6], "has 2 rows")],
)  # fmt: skip
def test_rows_must_follow_each_other(tmp_path, good, first, second, said):
    frame, header, data = opened(good)
    _moved(frame, header, first, second)
    content = closed(frame, header, data)
    if said is None:
        assert accepted_if_sound(tmp_path / "rows", content)
    else:
        refused(tmp_path / "rows", content, said)


BOMBS = {
    "brackets without end": ("[" * 200_000, "is not sound JSON"),
    "objects without end": ('{"a":' * 200_000, "is not sound JSON"),
    "a huge number": ('{"version":' + "9" * 5000 + "}", "is too long"),
    "a number past 64 bits": ('{"version":9223372036854775808}', "is too long"),
    "no number": ('{"version":NaN}', "not finite"),
    "no limit": ('{"version":-Infinity}', "not finite"),
    "no limit in digits": ('{"version":1e999}', "not finite"),
    "a key twice": ('{"version":1,"version":1}', "'version' stands in it twice"),
    "half a letter": ('{"version":"\\ud800"}', "is not sound JSON"),
    "nothing": ("", "is not sound JSON"),
    "a list": ("[1]", "format version None"),
    "a bare number": ("1", "format version None"),
    "no checksum": ('{"version":1}', "its header has"),
}


@pytest.mark.parametrize("what", BOMBS)
def test_a_header_that_is_no_sound_json_is_refused(tmp_path, good, what):
    text, said = BOMBS[what]
    frame, _, data = opened(good)
    refused(tmp_path / "bomb", closed(frame, text, data), said)


@pytest.mark.parametrize(
    "what", [each for each in BOMBS if "brackets" in each or "key" not in each]
)
def test_a_frame_that_is_no_sound_json_is_refused(tmp_path, what):
    text = BOMBS[what][0]
    refused(tmp_path / "bomb", framed(b'{"a":' + text.encode() + b"}", b""))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it has 0 bytes"),
        (b"1234567", "it has 7 bytes"),
        (b"\x89PNG\r\n\x1a\n" + bytes(64), "cut off or not a safetensors file"),
        ((2**64 - 1).to_bytes(8, "little") + b"{}", "cut off or not a safetensors file"),
        ((3).to_bytes(8, "little") + b"{}", "should have 3 bytes, but 2 are left"),
        (framed(b"", b""), "its header is not JSON"),
        (framed(b"[]", b""), "its header is not JSON"),
        (framed(b" {}", b""), "its header is not JSON"),
        (framed(b'{"\xff":1}', b""), "not UTF-8"),
        (framed(b'{"a":1,"a":2}', b""), "'a' stands in it twice"),
        (framed(b'{"__metadata__":{"proxbit":1}}', b""), "other things than texts"),
        (framed(b'{"__metadata__":"proxbit"}', b""), "other things than texts"),
        (framed(b"{}", b""), "not a packed network of proxbit"),
        (save({"w": torch.ones(2)}), "a safetensors file, but not a packed network"),
        (save({"w": torch.ones(2)}, {"format": "pt"}), "not a packed network"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path, content, said):
    refused(tmp_path / "other", content, said)


def test_a_checksum_of_another_file_is_refused(tmp_path, good):
    content = bytearray(good)
    content[-1] ^= 1
    refused(tmp_path / "other", bytes(content), "does not match its checksum")


def test_a_checksum_in_another_spelling_is_refused(tmp_path, good):
    frame, header, data = opened(good)
    content = closed(frame, json.dumps(header), data)
    refused(tmp_path / "other", content, "does not spell the checksum")


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read(tmp_path / "none")
    for place in (tmp_path, Path("/dev/null")):
        with pytest.raises(ValueError, match="a folder or a device, not a file"):
            read(place)


def test_a_file_that_may_not_be_read_is_one_sentence(tmp_path, good, monkeypatch):
    path = tmp_path / "network"
    path.write_bytes(good)

    def fail(*_: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("pathlib.Path.open", fail)
    with pytest.raises(ValueError, match=r"cannot read .*: Permission denied"):
        read(path)


@pytest.mark.parametrize(
    "length", [17 << 20, 2**40 - 8, 2**63, 2**64 - 1], ids=["17 MiB", "1 TiB", "2^63", "2^64"]
)
def test_a_length_takes_no_memory_before_it_is_believed(tmp_path, length):
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.write(length.to_bytes(8, "little") + b"{")
        file.truncate(1 << 40)  # a hole: it takes no space on the disk
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="its header"):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
