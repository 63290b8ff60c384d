"""One rule for zeros and NaN: a sign is the sign bit, and NaN stays NaN as long as it can."""

import itertools
import os
import random
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import proxbit as pb
from proxbit.core import maps
from proxbit.engine.packed import packed_layers
from proxbit.kernels import training as fused
from proxbit.kernels.inference import library

needs_kernels = pytest.mark.skipif(library() is None, reason="the kernels are not built")
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
ODD = [-torch.inf, -2.0, -1.0, -1e-45, -0.0, 0.0, 1e-45, 1.0, 3.0, torch.inf]

# The map itself -----------------------------------------------------------------------------------


def odd(dtype: torch.dtype, times: int = 9) -> Tensor:
    """Special values in so many places that vectors and their rests both meet them."""
    return torch.tensor([*ODD, torch.nan, -torch.nan], dtype=dtype).repeat(times)


def oracle(w: Tensor) -> Tensor:
    return torch.where(w.isnan(), w, torch.where(w.signbit(), -1.0, 1.0).to(w.dtype))


def same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(9.0), b.nan_to_num(9.0))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_sign_is_the_sign_bit_and_nan_stays(dtype: torch.dtype) -> None:
    w = odd(dtype)
    assert maps.sign(w).dtype == dtype
    assert same(maps.sign(w), oracle(w))
    assert same(maps.sign(w[::2]), oracle(w[::2]))
    assert same(torch.vmap(maps.sign)(w.reshape(9, -1)), oracle(w).reshape(9, -1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_inside_hands_nan_on_and_is_closed(dtype: torch.dtype) -> None:
    w = torch.tensor([-torch.inf, -1.0, -0.0, 1.0, 1.01, torch.inf, torch.nan], dtype=dtype)
    expected = torch.tensor([0.0, 1.0, 1.0, 1.0, 0.0, 0.0, torch.nan], dtype=dtype)
    assert same(maps.inside(w), expected)


def test_no_gradient_passes_a_sign_not_even_at_zero() -> None:
    w = torch.tensor([-0.0, 0.0, 2.0], requires_grad=True)
    assert not maps.sign(w).requires_grad
    (w * maps.sign(w)).sum().backward()
    assert w.grad is not None and w.grad.tolist() == [-1.0, 1.0, 1.0]


@pytest.mark.slow
def test_a_compiled_sign_sees_the_sign_bit_too() -> None:
    w = odd(torch.float32)
    assert same(torch.compile(maps.sign, fullgraph=True)(w), oracle(w))
    torch.compiler.reset()


@pytest.mark.parametrize("f", [maps.sign_swish, maps.peaked_swish])
@pytest.mark.parametrize("s", [0.01, 2.0, 30.0])
def test_the_sign_swish_keeps_its_digits_near_zero(f: Any, s: float) -> None:
    """A few roundings of the true value, from torch and from the kernels."""
    w = torch.cat([torch.logspace(-30, -1, 3000) / s, -torch.logspace(-30, -1, 3000) / s])
    true = f(w.double(), s)
    for found in (f(w, torch.tensor(s)), fused.forward(f, w, torch.tensor(s))):
        if found is not None:
            error = (found.double() / true - 1).abs()
            assert float(error.max()) < 4 * torch.finfo(torch.float32).eps


# Layers -------------------------------------------------------------------------------------------


def hard(model: nn.Module, method: str, task: Any) -> nn.Module:
    """Every layer with a name above 0 binary and hard."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pb.SettingsWarning)
        pb.binarize(model, pb.method(method, scale="channel"), task, only="[1-9]*")
    return pb.harden(model).eval()


@pytest.mark.parametrize("task", ["BWA", "BWAA"])
@pytest.mark.parametrize("bias", [False, True])
@torch.no_grad()
def test_a_zero_leaves_a_binary_layer_as_plus_zero(task: str, bias: bool) -> None:
    """Where a scale is 0, a sum below 0 would make -0.0: for the next layer another sign."""
    layers = [nn.Identity(), nn.Conv2d(4, 6, 3, bias=bias), nn.Conv2d(6, 5, 1)]
    model = nn.Sequential(*layers)
    model[1].weight[:3] = 0.0
    model[1].weight[1] = -0.0
    if bias:
        model[1].bias.fill_(-0.0)
    hard(model, "bc", task)
    net, x = pb.pack(model), torch.randn(2, 4, 6, 6)
    middle = model[:2](x)
    assert bool((middle[:, :3] == 0).all())
    assert not bool(middle[middle == 0].signbit().any())
    assert torch.equal(net(x), model(x))
    for _, layer in packed_layers(net):
        layer.finish_with([])
    assert torch.equal(net[:2](x).signbit(), middle.signbit())


@pytest.mark.parametrize("route", ["bits", "float"])
@pytest.mark.parametrize("method", ["bnn", "react"])
@torch.no_grad()
def test_in_bits_nan_is_plus_one_whatever_made_it(route: str, method: str) -> None:
    model = hard(nn.Sequential(nn.Identity(), nn.Linear(70, 9)), method, "BWA")
    net, x = pb.pack(model), torch.randn(6, 70)
    net[1].take(route)
    broken, mended = x.clone(), x.clone()
    broken[:, ::3], mended[:, ::3] = torch.nan, torch.inf
    broken[:, 1], mended[:, 1] = torch.inf - torch.full((6,), torch.inf), torch.inf
    assert torch.equal(net(broken), net(mended))
    assert bool(model(broken).isnan().all())


def test_weights_that_are_no_numbers_are_not_packed() -> None:
    model = hard(nn.Sequential(nn.Identity(), nn.Linear(7, 3)), "bc", "BW")
    model[1].weight.data[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"a bit is \+1 or -1, and 1.weight are not finite"):
        pb.pack(model)


@pytest.mark.parametrize("small", [True, False])
def test_a_broken_weight_of_bc_breaks_the_output(small: bool) -> None:
    """By torch and, in large layers, by the kernels: the loss is NaN, and training stops."""
    layer = nn.Linear(9, 5) if small else nn.Linear(90, 80)
    pb.binarize(layer, pb.method("bc", scale="none"), only=lambda *_: True)
    layer.weight.data[2, 3] = torch.nan
    out = layer(torch.randn(4, layer.in_features))
    assert out.isnan().any(0).nonzero().flatten().tolist() == [2]


@needs_kernels
@torch.no_grad()
def test_a_packed_convolution_keeps_the_memory_format() -> None:
    """So what follows computes as in the hard network, and a view of images is one there too."""
    layers = [nn.Conv2d(3, 8, 3), nn.Conv2d(8, 16, 3), nn.Conv2d(16, 8, 3), nn.GELU()]
    model = hard(nn.Sequential(*layers), "bnn", "BWA")
    net, x = pb.pack(model), torch.randn(2, 3, 9, 8)
    assert net[1].target == (net[2],)
    for given in (x, x.to(memory_format=torch.channels_last)):
        expected, found = model(given), net(given)
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()


@pytest.mark.slow
@torch.no_grad()
def test_an_onnx_file_reads_sign_bits_too(tmp_path: Path) -> None:
    """Special values, activations that give -0.0, sums of zero, scales of zero."""
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    layers = [nn.Identity(), nn.Conv2d(10, 8, 3, bias=False), nn.Hardswish(), nn.Conv2d(8, 9, 3)]
    model = nn.Sequential(*layers, nn.SiLU(), nn.Conv2d(9, 4, 1, bias=False))
    model[1].weight *= 100
    model[1].weight[:2] = 0.0
    hard(model, "bnn", "BWA")
    x = torch.tensor(ODD)[torch.randint(0, len(ODD), (3, 10, 8, 8))]
    pb.export_onnx(model, tmp_path / "net.onnx", x)
    providers = ["CPUExecutionProvider"]
    session = runtime.InferenceSession(tmp_path / "net.onnx", providers=providers)
    assert bool((model[:3](x) == 0).any())
    assert torch.equal(torch.from_numpy(session.run(None, {"input": x.numpy()})[0]), model(x))


# Whole networks, in both layouts, for all kernels of torch ----------------------------------------

ACTIVATIONS: dict[str, Any] = {
    "relu": nn.ReLU, "relu6": nn.ReLU6, "gelu": nn.GELU, "gelu tanh": lambda: nn.GELU("tanh"),
    "silu": nn.SiLU, "hardswish": nn.Hardswish, "hardtanh": nn.Hardtanh, "tanh": nn.Tanh,
    "leaky": nn.LeakyReLU, "leaky 0": lambda: nn.LeakyReLU(0.0), "elu": nn.ELU, "selu": nn.SELU,
    "mish": nn.Mish, "prelu": nn.PReLU, "softplus": nn.Softplus, "softsign": nn.Softsign,
    "softshrink": nn.Softshrink, "none": nn.Identity,
}  # fmt: skip
SETTINGS = [
    {"ONEDNN_MAX_CPU_ISA": "AVX2"}, {"ATEN_CPU_CAPABILITY": "default"},
    {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "SSE41", "PROXBIT_KERNELS": "portable"},
]  # fmt: skip


class Sum(nn.Module):
    """Two ways side by side."""

    def __init__(self, *ways: nn.Module) -> None:
        super().__init__()
        self.ways = nn.ModuleList(ways)

    def forward(self, x: Tensor) -> Tensor:
        first, second = (way(x) for way in self.ways)
        return first + second


@torch.no_grad()
def block(name: str, draw: random.Random) -> list[nn.Module]:
    """A convolution with whatever makes zeros of both signs, and what follows it."""
    conv = nn.Conv2d(8, 8, 3, padding=1, bias=draw.random() < 0.5)
    conv.weight *= draw.choice([1, 40, 100])  # so that activations are far below 0
    if draw.random() < 0.4:
        conv.weight[:3], conv.weight[0] = 0.0, -0.0
    if conv.bias is not None and draw.random() < 0.5:
        conv.bias[:], conv.bias[::2] = 0.0, -0.0
    norm = nn.BatchNorm2d(8)
    norm.weight.normal_()
    norm.running_mean.normal_(std=draw.choice([0, 3]))  # type: ignore[union-attr]
    norm.bias.fill_(draw.choice([0.0, -0.0, 0.3]))
    behind = [[], [nn.MaxPool2d(2, stride=1)], [nn.AvgPool2d(2)]][draw.choice([0, 0, 1, 2])]
    way = [conv, *([norm] if draw.random() < 0.5 else []), ACTIVATIONS[name](), *behind]
    if not behind and draw.random() < 0.3:
        return [Sum(nn.Sequential(*way), nn.Conv2d(8, 8, 3, padding=1, bias=False))]
    return way


def network(name: str, task: str, seed: int) -> nn.Module:
    """A random hard network with one activation."""
    draw = random.Random(f"{name} {task} {seed}")
    torch.manual_seed(draw.randrange(2**31))
    inner = [*block(name, draw), *block(name, draw)]
    model = nn.Sequential(nn.Conv2d(3, 8, 3), *inner, nn.Conv2d(8, 5, 1))
    return hard(model, draw.choice(["bc", "bnn", "react"]), task)


@torch.no_grad()
def differing() -> list[str]:
    """The networks whose packed form differs in some bit from the hard one; many with a GELU."""
    found = []
    names = [*ACTIVATIONS, *(7 * ["gelu"])]
    for (seed, name), task in itertools.product(enumerate(names), ("BWA", "BWAA")):
        model = network(name, task, seed)
        net, x = pb.pack(model), torch.randn(2, 3, 11, 10)
        for given in (x, x.to(memory_format=torch.channels_last)):
            expected, packed = model(given), net(given)
            if not torch.equal(packed, expected) or packed.stride() != expected.stride():
                found.append(f"{name} {task} {seed} {given.stride()}")
    return found


def test_packed_networks_are_the_hard_ones_bit_for_bit_in_both_layouts() -> None:
    assert differing() == []


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_so_they_are_whatever_kernels_torch_takes(setting: dict[str, str]) -> None:
    paths = [str(Path(pb.__file__).parents[1]), str(Path(__file__).parent)]
    environment = os.environ | setting | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", "import test_signs; print(test_signs.differing())"]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert told.returncode == 0, told.stderr
    assert told.stdout.strip().splitlines()[-1] == "[]"
