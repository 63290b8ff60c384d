"""Packed layers compute what their hard twins do: BWA and BWAA to the bit, BW to rounding."""

import copy
import warnings
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import proxbit as pb
from binarizing import binarize
from proxbit.engine import PackedConv1d, PackedConv2d, PackedLinear
from proxbit.engine.packed_attention import PackedMultiheadAttention
from proxbit.engine.packing import packed_layers

METHODS = ["bc", "bnn++", "react", "pq"]
TASKS = ["BW", "BWA", "BWAA"]
often = settings(max_examples=5 * settings.default.max_examples)
tasks, methods = st.sampled_from(TASKS), st.sampled_from(METHODS)
scales = st.sampled_from([None, "none", "layer", "channel"])
seeds = st.integers(0, 2**16)


def hard(model: nn.Module, method: str = "bnn++", task: Any = "BWA", **options: Any) -> nn.Module:
    """The model with every layer binary and hard; learned thresholds are random, not 0."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pb.SettingsWarning)
        binarize(model, method, task, only="*", **options)
    for quantizer in model.modules():
        if isinstance(quantizer, pb.nn.InputQuantizer) and quantizer.shift is not None:
            nn.init.normal_(quantizer.shift, std=0.3)
    return pb.harden(model).eval()


def same(task: str, ours: Tensor, theirs: Tensor) -> bool:
    """Equal for binary inputs; for float ones within 1e-5 of the largest output."""
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    if task != "BW":
        return torch.equal(ours, theirs)
    room = 1e-5 * max(1.0, float(theirs.abs().max())) if theirs.numel() else 0.0
    return bool(((ours - theirs).abs() <= room).all())


def with_zeros(x: Tensor) -> Tensor:
    """Some zeros of both signs among the values."""
    return torch.where(torch.rand(x.shape) < 0.1, x * 0.0, x)


LAYOUTS = {
    "contiguous": lambda x: x.contiguous(),
    "reversed in memory": lambda x: x.permute(*reversed(range(x.dim()))).contiguous().permute(
        *reversed(range(x.dim()))
    ),
    "a slice": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    "every second": lambda x: torch.stack([x, x], -1)[..., 0],
    "expanded": lambda x: x[:1].expand(x.shape) if x.shape[0] else x,
}  # fmt: skip
layouts = st.sampled_from([*LAYOUTS])


@torch.no_grad()
def check(layer: nn.Module, x: Tensor, task: str) -> nn.Module:
    """Pack a hard layer and compare, on bits and unpacked; gives the packed layer."""
    net = pb.pack(layer)
    expected = layer(x)
    for route in ("bits", "float"):
        for _, packed in packed_layers(net):
            packed.take(route)
        assert same(task, net(x), expected), route
    return net


# linear -------------------------------------------------------------------------------------------


@often
@example(0, "BWA", "bnn++", None, 513, 65, True, (3,), "contiguous")
@example(0, "BWAA", "bc", "layer", 300, 64, False, (), "contiguous")
@example(0, "BW", "pq", None, 7, 3, True, (0,), "contiguous")
@given(
    seed=seeds, task=tasks, method=methods, scale=scales, inputs=st.integers(1, 70),
    outputs=st.integers(1, 70), bias=st.booleans(),
    leading=st.lists(st.integers(0, 4), max_size=3).map(tuple), layout=layouts,
)  # fmt: skip
def test_a_packed_linear_layer_is_its_hard_twin(
    seed: int, task: str, method: str, scale: str | None, inputs: int, outputs: int, bias: bool,
    leading: tuple[int, ...], layout: str,
) -> None:  # fmt: skip
    assume(not (method == "pq" and scale is not None))  # its scale is its unit
    torch.manual_seed(seed)
    layer = hard(nn.Linear(inputs, outputs, bias), method, task, scale=scale)
    x = LAYOUTS[layout](with_zeros(torch.randn(*leading, inputs)))
    net = check(layer, x, task)
    assert isinstance(net, PackedLinear)
    assert (net.in_features, net.out_features) == (inputs, outputs)
    assert torch.equal(net.weight, layer.weight)  # for code that reads it


@pytest.mark.parametrize("bits", [2, 3, 8, 9, 16, 24])
@pytest.mark.parametrize("k", [0.3, 1.0, 1.7, 10.0])
def test_registers_of_every_width_and_slope(bits: int, k: float) -> None:
    layer = hard(nn.Linear(301, 20), "bnn++", "BWAA", bits=bits, k=k)
    check(layer, torch.randn(30, 301), "BWAA")


@pytest.mark.parametrize("task", ["BWA", "BWAA"])
def test_more_products_than_the_kernels_count_are_left_to_torch(task: str) -> None:
    layer = hard(nn.Linear(66_000, 3), "bnn++", task, bits=20)
    net = check(layer, torch.randn(2, 66_000), task)
    assert net.route == "float"


def test_special_values_have_the_signs_of_the_hard_layer() -> None:
    layer = hard(nn.Linear(5, 9), "react")
    odd = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), -1e-45])
    check(layer, torch.stack([odd.roll(i) for i in range(5)]), "BWA")


# convolution --------------------------------------------------------------------------------------

MODES = ["zeros", "reflect", "replicate", "circular"]


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[int, dict[str, Any]]:
    """Dimensions, and the arguments of nn.Conv1d or nn.Conv2d."""
    dims = draw(st.integers(1, 2))
    each = st.tuples(*(st.integers(1, 3) for _ in range(dims)))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    deep = draw(st.booleans())  # depthwise: one channel in each group
    channels = groups * (1 if deep else draw(st.integers(1, 9)))
    outputs = groups * draw(st.integers(1, 20))
    padding = draw(st.one_of(st.sampled_from(["same", "valid"]), each.map(
        lambda sizes: tuple(size - 1 for size in sizes))))  # fmt: skip
    stride = (1,) * dims if padding == "same" else draw(each)
    return dims, {
        "in_channels": channels, "out_channels": outputs, "kernel_size": draw(each),
        "stride": stride, "padding": padding, "dilation": draw(each), "groups": groups,
        "bias": draw(st.booleans()), "padding_mode": draw(st.sampled_from(MODES)),
    }  # fmt: skip


IMAGE_LAYOUTS = LAYOUTS | {
    "channels last": lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1) if x.dim() > 2 else x
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@often
@given(
    seed=seeds, task=tasks, method=methods, form=convolutions(), pad=st.sampled_from([1, -1, 0]),
    batch=st.sampled_from([None, 0, 1, 3]), size=st.tuples(st.integers(7, 11), st.integers(7, 11)),
    layout=st.sampled_from([*IMAGE_LAYOUTS]),
)  # fmt: skip
def test_a_packed_convolution_is_its_hard_twin(
    seed: int, task: str, method: str, form: tuple[int, dict[str, Any]], pad: int,
    batch: int | None, size: tuple[int, int], layout: str,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    dims, arguments = form
    conv = (nn.Conv1d if dims == 1 else nn.Conv2d)(**arguments)
    layer = hard(conv, method, task, pad_value=pad)
    leading = () if batch is None else (batch,)
    image = with_zeros(torch.randn(*leading, arguments["in_channels"], *size[:dims]))
    net = check(layer, IMAGE_LAYOUTS[layout](image), task)
    assert isinstance(net, PackedConv1d if dims == 1 else PackedConv2d)


@pytest.mark.parametrize("task", TASKS)
def test_a_wide_convolution_is_its_hard_twin(task: str) -> None:
    layer = hard(nn.Conv2d(130, 66, 3, padding=1, stride=2), "react", task)
    x = torch.randn(2, 130, 9, 8)
    check(layer, x, task)
    check(layer, x.to(memory_format=torch.channels_last), task)


# attention ----------------------------------------------------------------------------------------

FORMS: dict[str, dict[str, Any]] = {
    "plain": {}, "no bias": {"bias": False}, "other widths": {"kdim": 5, "vdim": 7},
    "extra rows": {"add_bias_kv": True, "add_zero_attn": True}, "sequence first": {
        "batch_first": False},
}  # fmt: skip


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("form", [*FORMS])
@torch.no_grad()
def test_packed_attention_is_its_hard_twin(task: str, form: str) -> None:
    options = {"batch_first": True} | FORMS[form]
    layer = nn.MultiheadAttention(12, 3, **options)
    for bias in (layer.in_proj_bias, layer.out_proj.bias):
        if bias is not None:
            nn.init.normal_(bias)
    layer = hard(layer, "bnn++", task)  # type: ignore[assignment]
    net = pb.pack(layer)
    assert isinstance(net, PackedMultiheadAttention)
    q = torch.randn(2, 4, 12) if options["batch_first"] else torch.randn(4, 2, 12)
    sizes = (options.get("kdim", 12), options.get("vdim", 12))
    k, v = (torch.randn(*q.shape[:2], size) for size in sizes)
    padding = torch.tensor([[False, False, True, False], [False, False, False, True]])
    causal = nn.Transformer.generate_square_subsequent_mask(4)
    for keywords in (
        {}, {"need_weights": False}, {"average_attn_weights": False},
        {"key_padding_mask": padding}, {"attn_mask": causal, "is_causal": True},
    ):  # fmt: skip
        (ours, shown), (expected, theirs) = net(q, k, v, **keywords), layer(q, k, v, **keywords)
        assert same(task, ours, expected)
        assert (shown is None) == (theirs is None)
        assert shown is None or same(task, shown, theirs)
    alone = [x[0] if options["batch_first"] else x[:, 0] for x in (q, k, v)]
    assert same(task, net(*alone)[0], layer(*alone)[0])


@pytest.mark.parametrize("task", TASKS)
@torch.no_grad()
def test_a_packed_transformer_is_its_hard_twin(task: str) -> None:
    block = nn.TransformerEncoderLayer(12, 3, 20, batch_first=True, activation="gelu")
    model = hard(nn.TransformerEncoder(block, 2, enable_nested_tensor=False), "bnn++", task)
    net = pb.pack(model)
    assert len([*packed_layers(net)]) == 2 * (3 + 1 + 2)
    x = torch.randn(2, 5, 12)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    assert same(task, net(x), model(x))
    assert same(task, net(x, src_key_padding_mask=padding), model(x, src_key_padding_mask=padding))


# other inputs -------------------------------------------------------------------------------------

ROOM = {torch.float64: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", [*ROOM])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", ["linear", "conv"])
@torch.no_grad()
def test_inputs_of_other_types_give_the_same_numbers_in_their_type(
    dtype: torch.dtype, task: str, kind: str
) -> None:
    layer = hard(nn.Linear(20, 9) if kind == "linear" else nn.Conv2d(3, 9, 3, padding=1), task=task)
    x = torch.randn(4, 20) if kind == "linear" else torch.randn(2, 3, 6, 6)
    found = pb.pack(layer)(x.to(dtype))
    assert found.dtype == dtype
    expected = layer(x.to(dtype).float())
    room = ROOM[dtype] * max(1.0, float(expected.abs().max()))
    assert ((found.float() - expected).abs() <= room).all()


def test_a_float64_layer_takes_the_signs_of_float64_inputs() -> None:
    layer = hard(nn.Linear(16, 9, dtype=torch.float64), "bc")
    tiny = torch.randn(4, 16, dtype=torch.float64) * 1e-300
    with torch.no_grad():
        assert torch.allclose(pb.pack(layer)(tiny), layer(tiny), atol=1e-6)


@pytest.mark.parametrize("route", ["bits", "float"])
@pytest.mark.parametrize("task", ["BWA", "BWAA"])
@torch.no_grad()
def test_sums_are_exact_under_autocast(task: str, route: str) -> None:
    layer = hard(nn.Linear(1003, 20), task=task)
    net = pb.pack(layer)
    net.take(route)
    x = layer.weight * torch.where(torch.rand(20, 1003) < 0.1, -1.0, 1.0)  # type: ignore[operator]
    with torch.autocast("cpu", torch.bfloat16):
        found = net(x)
    assert torch.equal(found, layer(x))


@pytest.mark.parametrize("route", ["bits", "float"])
@pytest.mark.parametrize("task", TASKS)
def test_inputs_that_require_a_gradient_are_computed(task: str, route: str) -> None:
    layer = hard(nn.Linear(10, 3), task=task)
    net = pb.pack(layer)
    net.take(route)
    x = torch.randn(4, 10, requires_grad=True)
    assert same(task, net(x).detach(), layer(x).detach())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("task", TASKS)
def test_inputs_that_are_not_floats_are_refused(task: str, dtype: torch.dtype) -> None:
    for layer, shape in ((nn.Linear(30, 3), (2, 30)), (nn.Conv2d(4, 3, 3), (2, 4, 5, 5))):
        with pytest.raises(TypeError, match=f"takes floats, and the input is {dtype}"):
            pb.pack(hard(layer, task=task))(torch.ones(shape, dtype=dtype))


@pytest.mark.parametrize(
    ("layer", "shape", "words"),
    [
        (nn.Linear(10, 3), (2, 9), "takes 10 values in the last dimension"),
        (nn.Linear(10, 3), (), "takes 10 values in the last dimension"),
        (nn.Conv2d(4, 3, 3), (2, 5, 9, 9), "images of 4 channels"),
        (nn.Conv2d(4, 3, 3), (2, 2, 4, 9, 9), "images of 4 channels"),
        (nn.Conv2d(4, 3, 3), (4, 9), "images of 4 channels"),
        (nn.Conv2d(4, 3, 3), (2, 4, 9, 2), "give larger images"),
        (nn.Conv1d(9, 3, 3, dilation=4), (2, 9, 8), "give larger images"),
    ],
)
@pytest.mark.parametrize("task", ["BW", "BWA"])
def test_a_wrong_shape_is_one_sentence(
    layer: nn.Module, shape: tuple[int, ...], words: str, task: str
) -> None:
    net = pb.pack(hard(copy.deepcopy(layer), task=task))
    with pytest.raises(ValueError, match=words) as caught:
        net(torch.randn(shape))
    assert "\n" not in str(caught.value)
