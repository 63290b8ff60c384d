"""Packing: what it leaves alone, what it fuses, and the packed network in other hands."""

import copy
import json
import math
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import proxbit as pb
from binarizing import binarize
from proxbit.engine.packed_layers import PackedLayer
from proxbit.engine.packing import packed_layers
from proxbit.kernels import inference as kernels

TASKS = ["BW", "BWA", "BWAA"]
often = settings(max_examples=3 * settings.default.max_examples)
built = pytest.mark.skipif(kernels.library() is None, reason="the kernels are not built")


def settled(model: nn.Module) -> nn.Module:
    """Norms as after a training: every channel its own."""
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d) and norm.track_running_stats:
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)
            norm.running_mean.normal_()  # type: ignore[union-attr]
            norm.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]
    return model


def hard(model: nn.Module, task: Any = "BWA", method: str = "bnn++", **options: Any) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pb.SettingsWarning)
        binarize(model, method, task, only="*", **options)
    for quantizer in model.modules():
        if isinstance(quantizer, pb.nn.InputQuantizer) and quantizer.shift is not None:
            nn.init.normal_(quantizer.shift, std=0.3)
    return pb.harden(settled(model)).eval()


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(30, 40), nn.Hardtanh(), nn.Linear(40, 33), nn.BatchNorm1d(33), nn.GELU(),
        nn.Linear(33, 26), nn.LayerNorm(26), nn.Linear(26, 5),
    )  # fmt: skip


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.PReLU(), nn.Conv2d(12, 30, 3, 2, 1),
        nn.BatchNorm2d(30), nn.ReLU(), nn.Conv2d(30, 7, 1), nn.Flatten(), nn.Linear(7 * 16, 4),
    )  # fmt: skip


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(24, 3, batch_first=True)
        self.norm = nn.LayerNorm(24)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.attention(x, x, x)[0])  # type: ignore[no-any-return]


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (6, 30)), "cnn": (cnn, (3, 3, 8, 8)), "attention": (Attention, (2, 4, 24)),
}  # fmt: skip
nets = pytest.mark.parametrize("name", [*NETS])
tasks = pytest.mark.parametrize("task", TASKS)


def example(name: str, task: str = "BWA", **options: Any) -> tuple[nn.Module, nn.Module, Tensor]:
    """A hard network, its packed twin and an input."""
    make, shape = NETS[name]
    model = hard(make(), task, **options)
    return model, pb.pack(model), torch.randn(shape)


def close(task: str, ours: Tensor, theirs: Tensor) -> bool:
    if task != "BW":
        return torch.equal(ours, theirs)
    return torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def hand_on(net: nn.Module) -> int:
    """How many layers give bits to the next one."""
    return sum(bool(layer.target) for _, layer in packed_layers(net))


# what pack promises -------------------------------------------------------------------------------


@tasks
@nets
@torch.no_grad()
def test_a_packed_network_is_its_hard_twin(name: str, task: str) -> None:
    model, net, x = example(name, task)
    assert close(task, net(x), model(x))
    assert close(task, net(x[:0]), model(x[:0]))
    with torch.inference_mode():
        assert close(task, net(x), model(x))


@nets
@torch.no_grad()
def test_the_hard_model_stays_as_it_is(name: str) -> None:
    make, shape = NETS[name]
    model = hard(make())
    x = torch.randn(shape)
    text, before = str(model), {n: t.clone() for n, t in model.state_dict().items()}
    out, objects = model(x), {n: id(m) for n, m in model.named_modules()}
    net = pb.pack(model)
    net(x)
    assert str(model) == text
    assert {n: id(m) for n, m in model.named_modules()} == objects
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert torch.equal(model(x), out)


@tasks
@torch.no_grad()
def test_weights_take_one_bit_each(task: str) -> None:
    _, net, _ = example("cnn", task)
    for _, layer in packed_layers(net):
        assert layer.bits.nbytes == math.ceil(math.prod(layer.shape) / 8)
        assert not any(p.numel() == math.prod(layer.shape) for p in layer.parameters())


def test_only_hard_binary_models_are_packed() -> None:
    with pytest.raises(ValueError, match="no binary layers to pack"):
        pb.pack(mlp())
    soft = mlp()
    pb.binarize(soft, "bnn++", only="*")
    with pytest.raises(ValueError, match=r"only hard weights.*0\.weight.*pb\.harden"):
        pb.pack(soft)
    with pytest.raises(ValueError, match=r"input9.*did you mean 'input8'"):
        pb.pack(hard(mlp()), precision="input9")


@torch.no_grad()
def test_eight_bit_inputs_change_bw_a_little_and_bwa_not_at_all() -> None:
    for task, least, most in (("BW", 1e-7, 0.05), ("BWA", 0.0, 0.0)):
        model, _, x = example("mlp", task)
        expected = model(x)
        change = (pb.pack(model, precision="input8")(x) - expected).norm() / expected.norm()
        assert least <= float(change) <= most


@torch.no_grad()
def test_hooks_and_modes_go_along() -> None:
    model = hard(Attention())
    for module in (model.attention, model.attention.out_proj):  # type: ignore[union-attr]
        module.register_forward_hook(  # type: ignore[union-attr,operator]
            lambda _, __, out: (out[0] * 2, out[1]) if isinstance(out, tuple) else out * 3
        )
    x = torch.randn(2, 4, 24)
    assert torch.equal(pb.pack(model)(x), model(x))
    assert not pb.pack(model).attention.training  # type: ignore[union-attr]
    assert pb.pack(model.train()).attention.training  # type: ignore[union-attr]


# bits handed on between layers --------------------------------------------------------------------

BETWEEN: dict[str, Callable[[int], list[nn.Module]]] = {
    "nothing": lambda _: [], "dropout": lambda _: [nn.Dropout()], "hardtanh": lambda _: [
        nn.Hardtanh()],
    "prelu": lambda n: [nn.PReLU(n)], "gelu": lambda _: [nn.GELU()], "silu": lambda _: [nn.SiLU()],
}  # fmt: skip


@built
@often
@given(
    seed=st.integers(0, 999), task=st.sampled_from(["BWA", "BWAA"]),
    method=st.sampled_from(["bc", "react"]), between=st.sampled_from([*BETWEEN]),
    norm=st.booleans(), bits=st.integers(2, 10), pad=st.sampled_from([1, -1, 0]),
    conv=st.booleans(), rows=st.integers(0, 9),
)  # fmt: skip
@torch.no_grad()
def test_handing_on_bits_changes_nothing(
    seed: int, task: str, method: str, between: str, norm: bool, bits: int, pad: int, conv: bool,
    rows: int,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    middle = BETWEEN[between](26)
    if norm:
        middle.insert(0, nn.BatchNorm2d(26) if conv else nn.BatchNorm1d(26))
    ends: Any = (nn.Linear(31, 26), nn.Linear(26, 7))
    if conv:
        ends = (nn.Conv2d(5, 26, 3, 1, 1), nn.Conv2d(26, 7, 3, 2, 1))
    model = hard(nn.Sequential(ends[0], *middle, ends[1]), task, method, bits=bits, pad_value=pad)
    net = pb.pack(model)
    x = torch.randn(rows, 5, 6, 7) if conv else torch.randn(rows, 31)
    assert torch.equal(net(x), model(x))
    assert torch.equal(net(x), model(x))  # and again, with everything prepared


@built
def test_layers_hand_on_bits_where_only_signs_are_used() -> None:
    assert hand_on(example("mlp")[1]) == 1
    assert hand_on(example("cnn")[1]) == 2
    assert hand_on(example("cnn", "BW")[1]) == 0
    assert hand_on(example("attention")[1]) == 0


@built
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("act", [nn.ReLU(), nn.GELU(), nn.Hardtanh(), nn.Hardtanh(-0.1, 0.3)])
@pytest.mark.parametrize("norm", [False, True])
@torch.no_grad()
def test_norm_and_activation_behind_float_inputs_are_computed_once(
    norm: bool, act: nn.Module, dtype: torch.dtype
) -> None:
    norms = [nn.BatchNorm2d(9)] if norm else []
    model = hard(nn.Sequential(nn.Conv2d(3, 9, 3), *norms, act, nn.Conv2d(9, 4, 3)), "BW")
    x = torch.randn(2, 3, 7, 8)
    found = copy.deepcopy(pb.pack(model)).to(dtype)(x.to(dtype))
    assert torch.allclose(found.float(), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "middle", [nn.BatchNorm1d(25), nn.PReLU(25), nn.BatchNorm1d(25, track_running_stats=False)]
)
@pytest.mark.parametrize("shape", [(50, 30), (5, 25, 30)])
@torch.no_grad()
def test_norms_of_another_dimension_or_of_the_batch_are_computed(
    middle: nn.Module, shape: tuple[int, ...]
) -> None:
    if isinstance(middle, nn.PReLU):
        nn.init.normal_(middle.weight)
    model = hard(nn.Sequential(nn.Linear(30, 25), copy.deepcopy(middle), nn.Linear(25, 20)))
    x = torch.randn(shape)
    assert torch.equal(pb.pack(model)(x), model(x))


@torch.no_grad()
def test_one_image_without_a_batch_is_handed_on() -> None:
    model = hard(nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.Hardtanh(), nn.Conv2d(16, 9, 3)))
    x = torch.randn(3, 9, 9)
    assert torch.equal(pb.pack(model)(x), model(x))


@built
def test_a_layer_that_gets_bits_computes_on_bits() -> None:
    net = example("cnn")[1]
    with pytest.raises(ValueError, match="gets bits from the one before it"):
        net[3].take("float")  # type: ignore[index,operator,union-attr]
    with pytest.raises(ValueError, match="takes images of 12 channels"):
        net[3](torch.zeros(1, 8, 8, 3, dtype=torch.uint8))  # type: ignore[index,operator]


@built
@torch.no_grad()
def test_a_new_threshold_of_the_next_layer_reaches_the_bits() -> None:
    model, net, x = example("mlp", method="react")
    before = net(x)
    other = example("mlp", method="react")[0]
    for one, source in ((net[2], pb.pack(other)[2]), (model[2], other[2])):  # type: ignore[index]
        one.load_state_dict(source.state_dict())
    assert torch.equal(net(x), model(x))
    assert not torch.equal(net(x), before)


@torch.no_grad()
def test_a_layer_that_two_others_read_is_not_fused() -> None:
    class Forked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(30, 25), nn.Linear(25, 25), nn.Linear(25, 25)

        def forward(self, x: Tensor) -> Tensor:
            y = self.a(x)
            return self.b(y) + self.c(y) + y  # type: ignore[no-any-return]

    model = hard(Forked())
    x = torch.randn(5, 30)
    assert torch.equal(pb.pack(model)(x), model(x))


# in other hands -----------------------------------------------------------------------------------

COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda net: pickle.loads(pickle.dumps(net)),
    "double and back": lambda net: copy.deepcopy(net).double().float(),
    "to the same place": lambda net: copy.deepcopy(net).to("cpu", torch.float32),
}


@pytest.mark.parametrize("way", [*COPIES])
@tasks
@nets
@torch.no_grad()
def test_a_copy_computes_the_same(name: str, task: str, way: str) -> None:
    _, net, x = example(name, task)
    fresh = COPIES[way](net)
    out = net(x)
    used = COPIES[way](net)
    assert torch.equal(fresh(x), out)
    assert torch.equal(used(x), out)


@nets
@torch.no_grad()
def test_a_double_network_computes_in_double_and_a_meta_one_knows_its_shapes(name: str) -> None:
    _, net, x = example(name)
    out = net(x)
    double = copy.deepcopy(net).double()(x.double())
    assert double.dtype == torch.float64
    assert torch.allclose(double.float(), out, atol=1e-5)
    meta = copy.deepcopy(net).to("meta")(x.to("meta"))
    assert (meta.shape, meta.dtype, meta.device.type) == (out.shape, out.dtype, "meta")


@pytest.mark.parametrize("route", ["bits", "float"])
@tasks
@nets
@torch.no_grad()
def test_a_state_dict_carries_everything(name: str, task: str, route: str) -> None:
    method = "bnn++" if task == "BW" else "react"
    _, net, x = example(name, task, method=method)
    _, other, _ = example(name, task, method=method)
    for _, layer in packed_layers(other):
        layer.take("bits" if layer.sources else route)
    assert not torch.equal(other(x), net(x))
    other.load_state_dict(net.state_dict())
    assert torch.allclose(other(x), net(x), rtol=1e-4, atol=1e-5)


@tasks
@nets
def test_threads_of_python_get_the_same_results(name: str, task: str) -> None:
    model, net, _ = example(name, task)
    inputs = [torch.randn(NETS[name][1]) for _ in range(24)]

    def run(x: Tensor) -> Tensor:
        with torch.no_grad():
            return net(x)  # type: ignore[no-any-return]

    with ThreadPoolExecutor(6) as pool:  # the first calls also prepare the layers
        results = [*pool.map(run, inputs)]
    with torch.no_grad():
        assert all(close(task, out, model(x)) for out, x in zip(results, inputs, strict=True))


@tasks
@nets
@torch.no_grad()
def test_the_fastest_routes_change_no_binary_output(name: str, task: str) -> None:
    model, _, x = example(name, task)
    net = pb.pack(model, x)
    assert {layer.route for _, layer in packed_layers(net)} <= {"bits", "float"}
    assert close(task, net(x), model(x))


@nets
@torch.no_grad()
def test_a_packed_network_can_be_exported(name: str) -> None:
    model, net, x = example(name)
    program = torch.export.export(net, (x,), strict=False)
    assert torch.equal(program.module()(x), model(x))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "task"), [("mlp", "BW"), ("cnn", "BWA")])
@torch.no_grad()
def test_a_packed_network_compiles_in_one_graph(name: str, task: str) -> None:
    model, net, x = example(name, task)
    torch._dynamo.reset()
    assert close(task, torch.compile(net, fullgraph=True, backend="aot_eager")(x), model(x))


# kernels or none ----------------------------------------------------------------------------------

SCRIPT = """
import sys, torch, warnings, proxbit as pb
from proxbit.kernels import library as kernels
from pathlib import Path
torch.set_num_threads(1)
if sys.argv[2] == "missing":
    kernels._PLACE = Path("nowhere.so")
held = torch.load(sys.argv[1], weights_only=False)
with warnings.catch_warnings(record=True) as seen, torch.no_grad():
    warnings.simplefilter("always")
    outs = [[net(x), net(x)][1] for net, x in held]
texts = [str(w.message) for w in seen if issubclass(w.category, pb.KernelWarning)]
torch.save((pb.engine.isa(), texts, outs), sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["portable", "missing"])
def test_other_kernels_or_none_give_the_same(choice: str, tmp_path: Path) -> None:
    held = [example(name, task) for name in ("mlp", "cnn") for task in TASKS]
    path = tmp_path / "held.pt"
    torch.save([(net, x) for _, net, x in held], path)
    value = {"portable": "portable", "missing": "auto"}[choice]
    subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path), choice], check=True,
        env=os.environ | {"PROXBIT_KERNELS": value},
    )  # fmt: skip
    isa, texts, outs = torch.load(path, weights_only=False)
    assert isa == ("portable" if choice == "portable" else "torch")
    assert len(texts) == (1 if choice == "missing" else 0)
    assert all("more slowly" in text for text in texts)
    with torch.no_grad():
        for out, (model, _, x), task in zip(outs, held, 2 * TASKS, strict=True):
            assert close(task, out, model(x))


@tasks
@nets
@torch.no_grad()
def test_without_kernels_torch_computes_the_same(
    name: str, task: str, use_kernels: Callable[[str], None]
) -> None:
    model, net, x = example(name, task)
    before = net(x)
    use_kernels("torch")
    assert kernels.isa() == "torch"
    for one in (net, copy.deepcopy(net), pb.pack(model)):
        assert close(task, one(x), model(x))
    use_kernels("auto")
    assert torch.equal(net(x), before)


def test_the_choice_of_kernels_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _, net, x = example("mlp", "BWA")
    with torch.no_grad():
        before, isa = net(x), kernels.isa()
        for value in ("portable", "torch", "nonsense"):
            monkeypatch.setenv("PROXBIT_KERNELS", value)
            assert kernels.isa() == isa and torch.equal(net(x), before)


def test_an_unknown_choice_of_kernels_is_one_sentence(use_kernels: Callable[[str], None]) -> None:
    model = hard(mlp())
    use_kernels("portabel")
    with pytest.raises(ValueError, match=r"PROXBIT_KERNELS.*'portabel'.*'portable'"):
        pb.pack(model)


# summary ------------------------------------------------------------------------------------------


def products(model: nn.Module, x: Tensor) -> int:
    """A plain count: for each binary product, outputs times products per output."""
    total = 0

    def count(module: Any, _: Any, out: Tensor) -> None:
        nonlocal total
        total += out.numel() * module.weight[0].numel()

    for module in model.modules():
        if isinstance(module, pb.nn.BinaryLinear | pb.nn.BinaryConv2d):
            module.register_forward_hook(count)
        elif isinstance(module, pb.nn.BinaryMultiheadAttention):
            total += 3 * x.shape[:2].numel() * module.embed_dim**2
    with torch.no_grad():
        model(x)
    return total


@tasks
@nets
def test_a_summary_counts_bytes_and_operations(name: str, task: str) -> None:
    model, net, x = example(name, task)
    found = pb.summary(net, x)
    tensors = {t.data_ptr(): t for t in model.state_dict().values()}
    floats = sum(t.nbytes for t in tensors.values())
    weights = {w.parameter for w in pb.binary_weights(model)}
    binary = sum(4 * w.numel() for w in weights)
    bits = sum(layer.bits.nbytes + layer.scale.nbytes for _, layer in packed_layers(net))
    assert found.bytes_float == floats
    assert sum(part.bytes for part in found.parts) == floats - binary + bits
    assert found.bytes_packed == sum(part.bytes for part in found.parts) + found.bytes_header
    assert found.ratio == pytest.approx(found.bytes_float / found.bytes_packed)
    assert found.operations == products(model, x)
    assert sum(part.values for part in found.parts if part.bits == 1) == binary // 4


def test_a_summary_prints_and_is_json() -> None:
    _, net, x = example("cnn")
    found = pb.summary(net, x)
    data = json.loads(json.dumps(found.to_dict()))
    assert data["ratio"] == pytest.approx(found.ratio)
    assert len(data["parts"]) == len(found.parts)
    assert f"{found.ratio:.1f}x smaller" in str(found)
    assert f"{found.operations:,}" in str(found)
    assert pb.summary(net).operations is None
    with pytest.raises(ValueError, match="not packed"):
        pb.summary(mlp())


def test_layers_that_compute_unpacked_are_told() -> None:
    net = example("mlp", "BW")[1]
    first = next(layer for _, layer in packed_layers(net))
    assert isinstance(first, PackedLayer)
    assert "unpacked" not in str(pb.summary(net))
    first.take("float")
    assert "note: 0 compute unpacked" in str(pb.summary(net))
