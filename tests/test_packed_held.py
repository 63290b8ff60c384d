"""A packed network holds about as many bytes as its file: one bit per weight, once."""

from __future__ import annotations

import gc
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import proxbit as pb
from proxbit.engine.forms import PackedForm
from proxbit.engine.held_signs import rows_from, stream_of
from proxbit.engine.packed import packed_layers
from proxbit.kernels import inference as kernels
from proxbit.packfile.bits import pack_bits

MOST = 1.15  # times the file


def held_bytes(net: nn.Module) -> int:
    """Bytes of every storage that can be reached from a network, whoever keeps it."""
    seen: set[int] = set()
    storages: dict[int, int] = {}
    left: list[Any] = [net]
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, type | ModuleType | FunctionType):
            continue
        seen.add(id(each))
        if isinstance(each, Tensor):
            storage = each.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        left += gc.get_referents(each)
    return sum(storages.values())


def hard(model: nn.Module, task: str) -> nn.Module:
    pb.binarize(model, "bc", task, relu=None if task == "BW" else nn.Hardtanh, only="*")
    return pb.harden(model).eval()


MODELS = {
    "linear": (
        lambda: nn.Sequential(nn.Linear(768, 768), nn.GELU(), nn.Linear(768, 768)),
        (5, 768),
    ),
    "conv": (
        lambda: nn.Sequential(nn.Conv2d(192, 192, 3, padding=1), nn.BatchNorm2d(192), nn.Hardtanh(),
                              nn.Conv2d(192, 384, 1)),
        (1, 192, 8, 8),
    ),
}  # fmt: skip


@pytest.mark.skipif(kernels.library() is None, reason="no kernels here")
@pytest.mark.parametrize("task", ["BW", "BWA", "BWAA"])
@pytest.mark.parametrize("name", MODELS)
def test_a_packed_network_holds_what_its_file_does(name: str, task: str, tmp_path: Path) -> None:
    make, shape = MODELS[name]
    x = torch.randn(shape)
    net = pb.pack(hard(make(), task), x)
    for _, layer in packed_layers(net):
        layer.take("bits")
    with torch.no_grad():
        net(x)
    pb.save(net, tmp_path / "a")
    size = (tmp_path / "a").stat().st_size
    assert held_bytes(net) <= MOST * size
    loaded = pb.load(tmp_path / "a", make(), x)
    with torch.no_grad():
        loaded(x)
    routes = [layer.route for _, layer in packed_layers(loaded)]
    assert "float" in routes or held_bytes(loaded) <= MOST * size


def test_the_count_sees_a_float_copy() -> None:
    """A check that cannot fail would prove nothing."""
    net = pb.pack(hard(nn.Sequential(nn.Linear(64, 64)), "BW"))
    before = held_bytes(net)
    (layer,) = [layer for _, layer in packed_layers(net)]
    layer._dense = torch.zeros(64, 64)
    assert held_bytes(net) == before + 4 * 64 * 64


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize(("channels", "taps"), [(8, 1), (5, 1), (8, 9), (5, 9), (3, 4)])
def test_rows_turn_back_into_the_stream(channels: int, taps: int, binary: bool) -> None:
    shape = (7, channels, taps)
    signs = torch.randint(2, shape) * 2 - 1
    form = PackedForm(7, channels * taps, binary=binary, taps=taps)
    bits = pack_bits(signs)
    rows = rows_from(bits, shape, form)
    assert torch.equal(stream_of(rows, shape, form), bits)
    expected = [
        pack_bits(row.t() if not binary else nn.functional.pad(row.t(), (0, -channels % 8)))
        for row in signs
    ]
    assert torch.equal(rows, torch.stack(expected))


@pytest.mark.skipif(kernels.library() is None, reason="no kernels here")
@pytest.mark.parametrize("task", ["BW", "BWA"])
def test_the_bits_are_given_back_as_they_were(task: str) -> None:
    model = hard(nn.Sequential(nn.Conv2d(5, 6, 3, groups=1), nn.Conv2d(6, 9, 1, groups=3)), task)
    net = pb.pack(model)
    for layer, packed in zip(model, (p for _, p in packed_layers(net)), strict=True):
        packed.take("bits")
        packed.prepare()
        assert packed.signs._bits is None or packed.route == "float"
        assert torch.equal(packed.bits, pack_bits(layer.weight))
