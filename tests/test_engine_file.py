"""Packed files: what is written comes back bit for bit, and nothing else is accepted."""

import errno
import json
import os
import re
import zlib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load

from proxbit.packfile import header as headers
from proxbit.packfile.bits import pack_bits, unpack_bits
from proxbit.packfile.contents import About, Contents, PackedWeight, check_weight
from proxbit.packfile.file import read, write

PAGE = (Path(__file__).parents[1] / "docs" / "format.md").read_text(encoding="utf-8")


def signs_of(*shape: int) -> torch.Tensor:
    return 2.0 * torch.randint(0, 2, shape) - 1


def weight(name: str, *shape: int, **values: Any) -> PackedWeight:
    values.setdefault("scale", torch.rand(shape[0]))
    return PackedWeight(name, shape, pack_bits(signs_of(*shape)), **values)


def example() -> Contents:
    """The network of docs/format.md."""
    torch.manual_seed(0)
    return Contents(
        (
            weight("conv.weight", 4, 3, 3, 3, task="BWA"),
            weight("attn.in_proj_weight", 2, 5, rows=(0, 2), task="BWA"),
            weight("attn.in_proj_weight", 4, 5, rows=(2, 6), task="BWA", scale=torch.rand(1)),
        ),
        {
            "head.weight": torch.randn(2, 2048), "head.bias": torch.randn(2),
            "bn.num_batches_tracked": torch.tensor(7),
        },
        About(
            replaced={"relu": "hardtanh"}, method="BNN++", task="BWA", labels=("cat", "dog"),
            input={"shape": [3, 32, 32]},
        ),
    )  # fmt: skip


def same_tensor(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    ours, theirs = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(ours, theirs)


def same(a: Contents, b: Contents) -> bool:
    """Equal to the last bit, in the same order."""
    plain = [f.name for f in fields(PackedWeight) if f.name not in headers.PARTS]
    return (
        a.about == b.about
        and len(a.weights) == len(b.weights)
        and all(getattr(v, n) == getattr(w, n)
                for v, w in zip(a.weights, b.weights, strict=True) for n in plain)
        and all(same_tensor(getattr(v, n), getattr(w, n))
                for v, w in zip(a.weights, b.weights, strict=True) for n in headers.PARTS)
        and list(a.floats) == list(b.floats)
        and all(same_tensor(a.floats[n], b.floats[n]) for n in a.floats)
    )  # fmt: skip


# Round trips


@st.composite
def packed_weights(draw: st.DrawFn, name: str) -> PackedWeight:
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=2, max_size=4)))
    task = draw(st.sampled_from(["BW", "BWA", "BWAA"]))
    size = draw(st.sampled_from([None, 1, shape[0]]))
    shift = torch.randn(shape[1]) if task != "BW" and draw(st.booleans()) else None
    return weight(
        name, *shape, scale=None if size is None else torch.randn(size), task=task, shift=shift,
        register_bits=draw(st.integers(2, 24)) if task == "BWAA" else 0,
        slope=draw(st.floats(0.01, 100)), pad_value=draw(st.sampled_from([1.0, -1.0, 0.0])),
    )  # fmt: skip


FLOATS = st.sampled_from(
    [torch.zeros(0, 3), torch.tensor(2.5), torch.randn(3, 5).t(), torch.arange(3),
     torch.ones(2) > 0, torch.randn(3).bfloat16(), torch.randn(3).double(), torch.randn(3).half(),
     torch.tensor([torch.nan, -torch.inf, -0.0]), torch.randint(0, 9, (2, 2)).to(torch.int16)]
)  # fmt: skip
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)  # fmt: skip
OBJECTS = st.none() | st.dictionaries(st.text(max_size=4), PLAIN, max_size=3)
TEXTS = st.text(max_size=6)
ABOUTS = st.builds(
    About, architecture=OBJECTS, replaced=st.dictionaries(TEXTS, TEXTS, max_size=3), method=TEXTS,
    task=TEXTS, labels=st.none() | st.lists(TEXTS, max_size=4).map(tuple), input=OBJECTS,
    made_by=TEXTS,
)  # fmt: skip
NAMES = st.lists(st.text(min_size=1, max_size=8), max_size=4, unique=True)


@st.composite
def networks(draw: st.DrawFn) -> Contents:
    weights = [draw(packed_weights(f"w/{name}")) for name in draw(NAMES)]
    floats = {f"f/{name}": draw(FLOATS) for name in draw(NAMES)}
    return Contents(tuple(weights), floats, draw(ABOUTS))


@settings(max_examples=150)
@given(contents=networks())
def test_a_network_comes_back_to_the_last_bit(tmp_path_factory, contents):
    path = tmp_path_factory.getbasetemp() / "network"
    write(contents, path)
    assert same(read(path), contents)


@settings(max_examples=40)
@given(shape=st.lists(st.integers(1, 7), min_size=2, max_size=5).map(tuple))
def test_signs_of_every_shape_come_back(tmp_path_factory, shape):
    path, signs = tmp_path_factory.getbasetemp() / "signs", signs_of(*shape)
    write(Contents((PackedWeight("w", shape, pack_bits(signs), None),), {}), path)
    (back,) = read(path).weights
    assert torch.equal(unpack_bits(back.bits, back.shape), signs)


def test_the_rows_of_a_tensor_come_back_in_their_order(tmp_path):
    pieces = [weight("w", 2, 5, rows=(begin, begin + 2)) for begin in (2, 0, 4)]
    contents = Contents(tuple(pieces), {})
    write(contents, tmp_path / "rows")
    assert same(read(tmp_path / "rows"), contents)


def test_tied_tensors_and_parameters_are_stored_as_they_are(tmp_path):
    shared = torch.nn.Parameter(torch.randn(3, 2))
    contents = Contents((), {"a": shared, "b": shared, "c": shared[1:]})
    write(contents, tmp_path / "tied")
    assert same(read(tmp_path / "tied"), contents)


def test_the_same_network_gives_the_same_file(tmp_path):
    for name in ("a", "b"):
        write(example(), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_bytes_of_contents_are_those_of_their_tensors():
    contents = example()
    assert contents.bytes_binary == (14 + 4 * 4) + (2 + 2 * 4) + (3 + 4)
    assert contents.bytes_rest == 4096 * 4 + 2 * 4 + 8


# Smaller floats


@settings(max_examples=40)
@given(size=st.floats(1e-9, 6e4), kind=st.sampled_from([torch.float32, torch.float64]))
def test_float16_rounds_floats_once_and_nothing_else(tmp_path_factory, size, kind):
    path = tmp_path_factory.getbasetemp() / "half"
    whole, half = torch.arange(3), torch.randn(3).bfloat16()
    given_as = size * torch.tanh(torch.randn(4, 3)).to(kind)
    contents = Contents((weight("w", 3, 3),), {"f": given_as, "n": whole, "b": half})
    write(contents, path, float_rest="float16")
    back = read(path)
    oracle = torch.from_numpy(given_as.numpy().astype(np.float16).astype(np.float32))
    rest = {"f": oracle, "n": whole, "b": half}
    assert same(back, replace(contents, floats=rest))
    assert load(path.read_bytes())["f"].dtype == torch.float16


def test_float16_refuses_what_it_cannot_hold_and_keeps_infinities(tmp_path):
    path = tmp_path / "half"
    write(Contents((), {"ok": torch.tensor([torch.inf, 65504.0])}), path, float_rest="float16")
    assert read(path).floats["ok"].tolist() == [torch.inf, 65504.0]
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"'bn.var' reaches 70000, .* float_rest='float32'"):
        big = {"ok": torch.ones(1), "bn.var": torch.tensor([1.0, -70000.0])}
        write(Contents((), big), path, float_rest="float16")
    assert path.read_bytes() == before


@settings(max_examples=25)
@given(
    shape=st.sampled_from(
        [(64, 64), (2, 2048), (1, 64, 65), (8, 4, 16, 16), (1, 4, 32, 33), (1, 4096)]
    ),
    size=st.floats(1e-30, 1e30),
    float_rest=st.sampled_from(["float32", "float16"]),
)  # fmt: skip
def test_a_table_is_off_by_half_a_step_of_its_row(tmp_path_factory, shape, size, float_rest):
    path, table = tmp_path_factory.getbasetemp() / "table", size * torch.randn(shape)
    table.view(-1)[: shape[-1]] = 0  # a row without any size
    write(Contents((), {"t": table}), path, tables="int8", float_rest=float_rest)
    back = read(path).floats["t"]
    rows = shape[0] if shape[0] > 1 else int(np.prod(shape[:-1]))
    given_as, got = (t.double().reshape(rows, -1) for t in (table, back))
    step = given_as.abs().amax(1, keepdim=True) / 127
    assert back.dtype == torch.float32 and back.shape == shape
    assert bool(((got - given_as).abs() <= 0.50001 * step).all())


def test_a_row_too_small_for_a_scale_is_stored_as_zeros(tmp_path):
    tiny = torch.full((64, 64), 1e-45)  # the smallest float32 above 0
    write(Contents((), {"t": tiny}), tmp_path / "t", tables="int8")
    assert not load((tmp_path / "t").read_bytes())["t.int8"].any()
    assert not read(tmp_path / "t").floats["t"].any()


def test_tables_are_large_floats_of_two_dimensions_or_more(tmp_path):
    floats = {
        "table": torch.randn(64, 64), "small": torch.randn(63, 65), "flat": torch.randn(5000),
        "whole": torch.randint(0, 9, (64, 64)),
    }  # fmt: skip
    write(Contents((), floats), tmp_path / "t", tables="int8")
    stored = load((tmp_path / "t").read_bytes())
    assert stored.keys() == {"table.int8", "table.scale", "small", "flat", "whole"}
    back = read(tmp_path / "t").floats
    assert all(same_tensor(back[name], floats[name]) for name in ("small", "flat", "whole"))
    with pytest.raises(ValueError, match="'table' is not finite"):
        write(
            Contents((), {"table": torch.full((64, 64), torch.nan)}), tmp_path / "t", tables="int8"
        )


def transformer(width: int, depth: int) -> Contents:
    """The tensors of a vision transformer for 1,000 classes."""
    layers = {"attn.qkv": (3, 1), "attn.proj": (1, 1), "mlp.fc1": (4, 1), "mlp.fc2": (1, 4)}
    weights, floats = [], {}
    for block in range(depth):
        for name, (rows, columns) in layers.items():
            shape, at = (rows * width, columns * width), f"blocks.{block}.{name}"
            bits = torch.zeros(shape[0] * shape[1] // 8, dtype=torch.uint8)
            weights.append(PackedWeight(f"{at}.weight", shape, bits, torch.ones(shape[0])))
            floats[f"{at}.bias"] = torch.zeros(shape[0])
        for name in ("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"):
            floats[f"blocks.{block}.{name}"] = torch.zeros(width)
    floats["pos_embed"], floats["head.weight"] = (
        torch.zeros(1, 197, width),
        torch.zeros(1000, width),
    )
    floats["patch_embed.proj.weight"] = torch.zeros(width, 3, 16, 16)
    return Contents(tuple(weights), floats)


@pytest.mark.parametrize(("width", "share"), [(192, 0.0105), (384, 0.005)])
def test_names_take_120_bytes_each_and_little_of_a_real_network(tmp_path, width, share):
    contents = transformer(width, 12)
    write(contents, tmp_path / "vit")
    tensors = contents.bytes_binary + contents.bytes_rest
    names = (tmp_path / "vit").stat().st_size - tensors
    count = 2 * len(contents.weights) + len(contents.floats)
    assert 0 < names < share * tensors
    assert 110 < names / count < 130


# Writes that are refused or fail


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w: replace(w, task="BWB"), "unknown task 'BWB': did you mean 'BW'"),
        (lambda w: replace(w, task="BWAA"), "register of 0 bits, not 2 to 24"),
        (lambda w: replace(w, task="BWAA", register_bits=25), "register of 25 bits"),
        (lambda w: replace(w, register_bits=8), "which BW does not use"),
        (lambda w: replace(w, slope=0.0), "the slope 0.0"),
        (lambda w: replace(w, slope=float("nan")), "the slope nan"),
        (lambda w: replace(w, pad_value=0.5), "the pad value 0.5"),
        (lambda w: replace(w, shape=(9,)), r"the shape \(9,\)"),
        (lambda w: replace(w, shape=(3, 0)), r"the shape \(3, 0\)"),
        (lambda w: replace(w, shape=(3, 8)), "not 3 bytes in one dimension"),
        (lambda w: replace(w, bits=w.bits.float()), "bits of torch.float32"),
        (lambda w: replace(w, bits=w.bits | 128), "ones behind the last of its 9 bits"),
        (lambda w: replace(w, rows=(1, 3)), "covers the rows 1 to 3, but has 3 rows"),
        (lambda w: replace(w, rows=(-1, 2)), "covers the rows -1 to 2"),
        (lambda w: replace(w, scale=torch.ones(2)), "not 1 or 3 float32"),
        (lambda w: replace(w, scale=torch.ones(3, 1)), "not 1 or 3 float32"),
        (lambda w: replace(w, scale=torch.ones(3).double()), "scale of torch.float64"),
        (lambda w: replace(w, scale=torch.tensor([torch.inf])), "a scale that is not finite"),
        (lambda w: replace(w, shift=torch.ones(3)), "BW has float inputs"),
        (lambda w: replace(w, task="BWA", shift=torch.ones(2)), "shift of torch.float32"),
        (lambda w: replace(w, task="BWA", shift=torch.ones(6)), "not 3 float32"),
    ],
)
def test_a_weight_that_contradicts_itself_is_refused(tmp_path, change, said):
    odd = change(weight("fc.weight", 3, 3))
    with pytest.raises(ValueError, match=f"the binary weight 'fc.weight.*{said}"):
        check_weight(odd)
    with pytest.raises(ValueError, match=said):
        write(Contents((odd,), {}), tmp_path / "odd")
    assert not list(tmp_path.iterdir())


def test_shifts_are_one_per_channel_of_all_groups():
    grouped = weight("w", 4, 3, 1, task="BWA", shift=torch.ones(6))  # two groups of three channels
    check_weight(grouped)
    with pytest.raises(ValueError, match="shift"):
        check_weight(replace(grouped, shift=torch.ones(9)))  # three groups cannot share 4 outputs


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        (Contents((weight("w", 2, 2), weight("w", 2, 2)), {}), "overlap or leave a gap"),
        (Contents((weight("w", 2, 2, rows=(2, 4)),), {}), "overlap or leave a gap"),
        (Contents((weight("w", 2, 2, rows=(0, 2)), weight("w", 2, 2, rows=(1, 3))), {}), "overlap"),
        (Contents((weight("w", 2, 2, rows=(0, 2)), weight("w", 2, 3, rows=(2, 4))), {}), "differ"),
        (Contents((weight("w", 2, 2), weight("w", 2, 2, rows=(2, 4))), {}), "overlap"),
        (
            Contents((weight("w", 2, 2),), {"w": torch.ones(2, 2)}),
            "both a binary weight and a float",
        ),
        (Contents((weight("w", 2, 2),), {"w.bits": torch.ones(2)}), "'w.bits' is taken"),
        (Contents((), {"__metadata__": torch.ones(2)}), "'__metadata__' is taken"),
        (Contents((), {"z": torch.ones(2, dtype=torch.complex64)}), "'z' is torch.complex64"),
        (Contents((), {"\ud800": torch.ones(2)}), "plain JSON"),
        (Contents((), {}, About(architecture={"a": object()})), "plain JSON values"),
        (Contents((), {}, About(architecture={"a": float("nan")})), "plain JSON values"),
        (Contents((), {}, About(architecture={"a": 10**30})), "plain JSON values"),
        (Contents((), {}, About(method=3)), "method must be text, not 3"),
        (Contents((), {}, About(labels=(1, 2))), "labels must be a list of text each"),
    ],
)
def test_contents_that_no_reader_would_accept_are_not_written(tmp_path, contents, said):
    with pytest.raises(ValueError, match=said):
        write(contents, tmp_path / "odd")
    assert not list(tmp_path.iterdir())


def test_a_header_that_no_reader_would_accept_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr("proxbit.packfile.file.MOST_HEADER", 500)
    with pytest.raises(ValueError, match="longer than 500 bytes"):
        write(example(), tmp_path / "long")
    assert not list(tmp_path.iterdir())


def test_options_and_places_are_checked_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="did you mean 'float16'"):
        write(example(), tmp_path / "x", float_rest="float61")
    with pytest.raises(ValueError, match="did you mean 'int8'"):
        write(example(), tmp_path / "x", tables="int")
    with pytest.raises(ValueError, match="is a folder: name a file in it"):
        write(example(), tmp_path)
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*: create it"):
        write(example(), tmp_path / "none" / "x")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("where", ["os.fsync", "pathlib.Path.replace", "pathlib.Path.open"])
def test_a_write_that_fails_keeps_the_old_file(tmp_path, monkeypatch, where):
    path = tmp_path / "network"
    write(example(), path)
    old = path.read_bytes()

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(where, fail)
        with pytest.raises(OSError, match="No space left"):
            write(Contents((), {}), path)
    assert path.read_bytes() == old
    assert [each.name for each in tmp_path.iterdir()] == ["network"]


# The page


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    """The file that the page describes."""
    write(example(), tmp_path / "shown", float_rest="float16", tables="int8")
    return tmp_path / "shown"


def test_the_example_of_the_page_is_the_header_of_its_network(shown):
    (text,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    with safe_open(shown, "pt") as file:
        metadata = file.metadata()
    header = json.loads(metadata["proxbit"])
    assert metadata.keys() == {"proxbit"}
    assert header == {**json.loads(text), "crc32": header["crc32"]}
    assert list(header) == list(json.loads(text))


def test_the_reader_of_the_page_reads_what_was_written(shown):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {"path": shown}
    exec(code, names)
    for w in example().weights:
        assert np.array_equal(names["weights"][w.label], unpack_bits(w.bits, w.shape).numpy())
        assert np.array_equal(names["tensors"][f"{w.label}.scale"], w.scale.numpy())
    values, scale = (names["tensors"][f"head.weight.{part}"] for part in ("int8", "scale"))
    flat = [v * scale[i // (values.size // scale.size)] for i, v in enumerate(values.reshape(-1))]
    assert np.array_equal(np.reshape(flat, values.shape), read(shown).floats["head.weight"])


def test_the_checksum_is_the_one_of_the_page(shown):
    content = shown.read_bytes()
    at = content.index(rb"\"crc32\":\"") + len(rb"\"crc32\":\"")
    zeros = content[:at] + b"00000000" + content[at + 8 :]
    assert content[at : at + 8] == b"%08x" % zlib.crc32(zeros)
