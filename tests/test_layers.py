"""Binary layers against the same layer by hand: quantize the tensors, then call PyTorch."""

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import proxbit as pb
from binarizing import binarize
from proxbit.nn.accumulators import cyclic, wrap

pytestmark = pytest.mark.filterwarnings("ignore::proxbit.SettingsWarning")


def sign(x: Tensor) -> Tensor:
    return torch.ones_like(x).copysign(x)


def mean_per_channel(w: Tensor) -> Tensor:
    return w.abs().flatten(1).mean(1).reshape(-1, *(1,) * (w.dim() - 1))


def outcome(model: nn.Module, *inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Output and every gradient (of the inputs and the parameters) of a fixed random loss."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    model.zero_grad()
    y = model(*leaves)
    weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)
    (y * weight).sum().backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    return y.detach(), grads | {str(i): leaf.grad for i, leaf in enumerate(leaves)}


def assert_same(mine: tuple, theirs: tuple, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(mine[0], theirs[0], rtol=tolerance, atol=tolerance)
    assert mine[1].keys() == theirs[1].keys()
    for name, g in mine[1].items():
        torch.testing.assert_close(
            g, theirs[1][name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


# Convolutions: every combination of their options ------------------------------------------------

PADDINGS = [0, 1, 2, "same", "valid"]
MODES = ["zeros", "reflect", "replicate", "circular"]
OPTIONS = [
    {"stride": s, "dilation": d, "groups": g, "padding": p, "padding_mode": m, "bias": s == d}
    for s, d, g, p, m in itertools.product((1, 2), (1, 2), (1, 2), PADDINGS, MODES)
    if not (p == "same" and s == 2)
]
BY_MODE = [[o for o in OPTIONS if o["padding_mode"] == mode] for mode in MODES]
ALL_PADS = [("BW", 1.0), ("BWA", 1.0), ("BWA", -1.0), ("BWA", 0.0)]
CASES = [
    pytest.param(task, pad, options, id=f"{mode}-{task}-{pad:g}")
    for mode, options in zip(MODES, BY_MODE, strict=True)
    for task, pad in (ALL_PADS if mode == "zeros" else ALL_PADS[:2])  # the others pad with x itself
]


class Reference(nn.Module):
    """The convolution by hand: signs, explicit padding, the scale after the sum."""

    def __init__(self, layer: nn.Module, options: dict, task: str, pad_value: float) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.options, self.task, self.pad_value = options, task, pad_value

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        scale = mean_per_channel(w.detach())
        bits = w + (sign(w) * scale - w).detach()  # BC: value s sign(w), gradient 1
        if self.task != "BW":
            x = x + (sign(x) - x).detach()
        x = self.pad(x, w)
        o = self.options
        convolve = functional.conv1d if w.dim() == 3 else functional.conv2d
        return convolve(x, bits, self.bias, o["stride"], 0, o["dilation"], o["groups"])

    def pad(self, x: Tensor, w: Tensor) -> Tensor:
        padding, mode = self.options["padding"], self.options["padding_mode"]
        border: list[int] = []
        for size in reversed(w.shape[2:]):
            if padding == "same":
                total = self.options["dilation"] * (size - 1)
                border += [total // 2, total - total // 2]
            else:
                border += [0 if padding == "valid" else padding] * 2
        if mode != "zeros":
            return functional.pad(x, border, mode=mode)
        return functional.pad(x, border, value=0.0 if self.task == "BW" else self.pad_value)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize(("task", "pad_value", "options"), CASES)
@pytest.mark.parametrize(("kind", "size"), [(nn.Conv1d, (9,)), (nn.Conv2d, (7, 6))])
def test_a_convolution_keeps_all_its_options(
    kind: type[nn.Module], size: tuple[int, ...], task: str, pad_value: float, options: list[dict]
) -> None:
    kernel = 3 if kind is nn.Conv1d else (3, 2)
    for option in options:
        layer = kind(4, 6, kernel, **option).double()
        x = torch.randn(2, 4, *size, dtype=torch.float64)
        expected = outcome(Reference(layer, option, task, pad_value), x)
        pb.binarize(layer, "bc", pb.Task(task, pad_value=pad_value), only=lambda *_: True)
        assert_same(outcome(layer, x), expected)
        torch.testing.assert_close(layer.eval()(x), expected[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("task", ["BW", "BWA", "BWAA"])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(4, 6), (4,)),
        (nn.Linear(4, 6), (2, 3, 5, 4)),
        (nn.Linear(4, 6), (0, 4)),
        (nn.Conv1d(4, 6, 3, padding=1), (4, 9)),
        (nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), (4, 7, 6)),
        (nn.Conv2d(4, 6, 3, padding=1), (4, 7, 6)),
    ],
)
def test_inputs_of_any_number_of_dimensions(task: str, layer: nn.Module, shape: tuple) -> None:
    """Unbatched images, tokens, an empty batch: as in PyTorch."""
    layer = copy.deepcopy(layer)
    expected = layer(torch.zeros(shape)).shape
    pb.binarize(layer, "bc", task, only=lambda *_: True)
    x = torch.randn(shape)
    assert layer(x).shape == expected
    if len(shape) == layer.weight.dim() - 1:
        torch.testing.assert_close(layer(x), layer(x[None])[0])


@pytest.mark.parametrize("task", ["BW", "BWA"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_is_its_signs_times_its_scale(task: str, bias: bool) -> None:
    layer = nn.Linear(7, 5, bias).double()
    w, b = layer.weight.detach().clone(), layer.bias.detach().clone() if bias else None
    pb.binarize(layer, "bc", task, only=lambda *_: True)
    x = torch.randn(4, 7, dtype=torch.float64)
    seen = x if task == "BW" else sign(x)
    expected = functional.linear(seen, sign(w) * mean_per_channel(w), b)
    torch.testing.assert_close(layer(x), expected, rtol=1e-12, atol=1e-12)


HARD = ["bc", "bnn", "bnn+", "bi-real", "r-bnn", "ede", "react"]


@pytest.mark.parametrize("method", HARD)
@pytest.mark.parametrize("pad_value", [1.0, -1.0, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_sums_of_a_hard_layer_are_exact_integers(
    method: str, pad_value: float, dtype: torch.dtype
) -> None:
    model = nn.Sequential(nn.Conv2d(5, 6, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(96, 3))
    model = model.to(dtype)
    pb.binarize(model, method, pb.Task("BWA", pad_value=pad_value), only="*")
    model.eval()
    check_sums(model, pad_value)


BINARY = [name for name in pb.METHODS if name != "fp"]


@pytest.mark.parametrize("method", BINARY)
def test_after_hardening_the_sums_of_every_layer_are_exact_integers(method: str) -> None:
    model = nn.Sequential(nn.Conv2d(5, 6, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(96, 3))
    pb.binarize(model, method, "BWA", only="*")
    pb.set_strength(model, 0.6)
    pb.harden(model).eval()
    check_sums(model, 1.0)


@pytest.mark.parametrize("method", [name for name in BINARY if name != "react"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hardening_takes_the_sign_of_every_latent_weight(method: str, dtype: torch.dtype) -> None:
    """b = sign(w*) with the least-squares scale s mean(F b), spec section 12: tiny weights too."""
    layer = nn.Linear(8, 2, bias=False).to(dtype)
    with torch.no_grad():
        layer.weight[0] = torch.tensor([1e-9, -1e-9, 1e-6, -1e-6, 0.3, -0.4, 0.0, -0.0])
    w = layer.weight.detach().clone()
    pb.binarize(layer, method, only=lambda *_: True)
    pb.set_strength(layer, 0.6)
    soft = layer.binary.weight_quantizer.proximal(layer.weight)
    pb.harden(layer)
    torch.testing.assert_close(sign(layer.weight.detach()), sign(w), rtol=0, atol=0)
    matching = (soft * sign(w)).mean(1, keepdim=True) * sign(w)
    torch.testing.assert_close(layer.weight.detach(), matching)


def check_sums(model: nn.Sequential, pad_value: float) -> None:
    dtype = model[0].weight.dtype
    for layer in (model[0], model[3]):
        signs, scale = layer.binary.weight_quantizer.split(layer.weight)
        assert set(signs.flatten().tolist()) <= {-1.0, 1.0}
        scale = scale.reshape(-1, *(1,) * (layer.weight.dim() - 2))
        bias = layer.bias.reshape(scale.shape)
        shape = (2, 5, 4, 4) if layer is model[0] else (2, 96)
        x = torch.randn(shape, dtype=dtype)
        inputs = layer.binary.input_quantizer(x)
        assert set(inputs.flatten().tolist()) <= {-1.0, 1.0}
        sums = ((layer(x) - bias) / scale).detach()
        fan_in = layer.weight[0].numel()
        torch.testing.assert_close(sums, sums.round(), rtol=0, atol=1e-3)
        assert sums.abs().max() <= fan_in
        if pad_value != 0:
            assert bool(((sums.round() - fan_in) % 2 == 0).all())  # K +-1s: the parity of K
        exact = by_integers(layer, x, pad_value)
        torch.testing.assert_close(layer(x), exact.to(dtype) * scale + bias, rtol=0, atol=0)


def by_integers(layer: nn.Module, x: Tensor, pad_value: float) -> Tensor:
    """The sum of +-1 products in 64-bit integers."""
    w, x = sign(layer.weight.detach()).long(), sign(x).long()
    if w.dim() == 2:
        return x @ w.T
    x = functional.pad(x, (1, 1, 1, 1), value=int(pad_value))
    patches = x.unfold(2, 3, 1).unfold(3, 3, 1)
    return (patches[:, None] * w[None, :, :, None, None]).sum((2, 5, 6))


# Full precision: nothing changes -----------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")  # torch's, once
@pytest.mark.parametrize("settings", ["default", "paper"])
@pytest.mark.parametrize("task", ["BW", "BWA", "BWAA"])
def test_the_float_baseline_is_the_float_network(task: str, settings: str) -> None:
    model = nn.Sequential(
        nn.Conv1d(3, 4, 3, padding=1, padding_mode="circular"),
        nn.BatchNorm1d(4),
        nn.ReLU(),
        nn.Unflatten(2, (3, 3)),
        nn.Conv2d(4, 6, 2, padding="same", groups=2),
        nn.Flatten(),
        nn.Linear(54, 5),
    )
    twin = copy.deepcopy(model)
    pb.binarize(model, pb.method("fp", settings=settings), task, only="*")
    x = torch.randn(2, 3, 9)
    mine, theirs = outcome(model, x), outcome(twin, x)
    assert torch.equal(mine[0], theirs[0])
    for name, g in mine[1].items():
        assert torch.equal(g, theirs[1][name]), name
    assert torch.equal(model.eval()(x), twin.eval()(x))


ATTENTIONS = {
    "plain": {},
    "without bias": {"bias": False},
    "kdim and vdim": {"kdim": 5, "vdim": 7},
    "kdim, vdim, no bias": {"kdim": 5, "vdim": 7, "bias": False},
    "bias of keys and values": {"add_bias_kv": True},
    "zero attention": {"add_zero_attn": True},
    "all": {"kdim": 5, "vdim": 7, "add_bias_kv": True, "add_zero_attn": True},
}
HEADS, QUERIES, KEYS, BATCH = 2, 3, 4, 2


def masks(batched: bool) -> dict[str, dict[str, Tensor]]:
    """Every kind of mask; no row is masked altogether."""
    every = BATCH * HEADS if batched else HEADS
    flat, full = torch.rand(QUERIES, KEYS) < 0.4, torch.rand(every, QUERIES, KEYS) < 0.4
    padding = torch.rand(*((BATCH,) if batched else ()), KEYS) < 0.4
    for mask in (flat, full, padding):
        mask[..., 0] = False
    float_padding = torch.zeros(padding.shape).masked_fill(padding, float("-inf"))
    return {
        "none": {},
        "bool 2D": {"attn_mask": flat},
        "bool 3D": {"attn_mask": full},
        "float 2D": {"attn_mask": torch.randn(QUERIES, KEYS)},
        "float 3D": {"attn_mask": torch.randn(every, QUERIES, KEYS)},
        "padding": {"key_padding_mask": padding},
        "float padding": {"key_padding_mask": float_padding},
        "both bool": {"attn_mask": full, "key_padding_mask": padding},
        "both float": {"attn_mask": torch.randn(QUERIES, KEYS), "key_padding_mask": float_padding},
    }


class Attend(nn.Module):
    """Attention as a function of three inputs; both of its outputs, flattened into one."""

    def __init__(self, attention: nn.MultiheadAttention, options: dict) -> None:
        super().__init__()
        self.attention, self.options = attention, options

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, weights = self.attention(q, k, v, **self.options)
        self.shapes = out.shape, None if weights is None else weights.shape
        parts = [out.flatten()] if weights is None else [out.flatten(), weights.flatten()]
        return torch.cat(parts)


@pytest.mark.parametrize("kind", list(ATTENTIONS))
@pytest.mark.parametrize("layout", ["batch first", "batch second", "unbatched"])
def test_float_attention_is_pytorchs_in_all_its_options(kind: str, layout: str) -> None:
    made = nn.MultiheadAttention(
        8, HEADS, batch_first=layout == "batch first", **ATTENTIONS[kind]
    ).double()
    for p in made.parameters():
        nn.init.normal_(p, std=0.5)  # PyTorch starts the biases at 0
    widths = (8, made.kdim, made.vdim)
    lengths = (QUERIES, KEYS, KEYS)
    leading = {
        "batch first": lambda n: (BATCH, n),
        "batch second": lambda n: (n, BATCH),
        "unbatched": lambda n: (n,),
    }[layout]
    shapes = [(*leading(n), width) for n, width in zip(lengths, widths, strict=True)]
    inputs = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    binary = copy.deepcopy(made)
    pb.binarize(binary, "fp", only=lambda *_: True)
    for name, mask in masks(layout != "unbatched").items():
        mask = {k: m.double() if m.is_floating_point() else m for k, m in mask.items()}
        both = [(True, True), (False, True)] if "3D" in name else [(True, False), (False, True)]
        for weights, average in both:
            options = mask | {"need_weights": weights, "average_attn_weights": average}
            mine, theirs = Attend(binary, options), Attend(made, options)
            got = outcome(mine, *inputs)
            expected = outcome(theirs, *inputs)
            assert mine.shapes == theirs.shapes, name
            assert_same(got, expected, 1e-9)
            with torch.no_grad():
                torch.testing.assert_close(
                    mine.eval()(*inputs), theirs.eval()(*inputs), rtol=1e-9, atol=1e-9
                )
            mine.train(), theirs.train()


def test_the_causal_hint_needs_its_mask_as_in_pytorch() -> None:
    attention = nn.MultiheadAttention(8, 2).double()
    twin = copy.deepcopy(attention)
    pb.binarize(attention, "fp", only=lambda *_: True)
    x = torch.randn(5, 2, 8, dtype=torch.float64)
    causal = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    for weights in (True, False):
        options = {"attn_mask": causal, "is_causal": True, "need_weights": weights}
        torch.testing.assert_close(attention(x, x, x, **options)[0], twin(x, x, x, **options)[0])
    for module in (attention, twin):
        with pytest.raises(RuntimeError, match="attn_mask"):
            module(x, x, x, is_causal=True)


@pytest.mark.parametrize("kind", list(ATTENTIONS))
def test_binary_attention_is_float_attention_with_binary_weights(kind: str) -> None:
    """BC: the same module, holding sign(w) mean|w| per row in each of its four projections."""
    made = nn.MultiheadAttention(8, HEADS, **ATTENTIONS[kind]).double()
    binary = copy.deepcopy(made)
    with torch.no_grad():
        for name, p in made.named_parameters():
            if p.dim() == 2:
                assert "weight" in name
                p.copy_(sign(p) * mean_per_channel(p))
    pb.binarize(binary, "bc", only=lambda *_: True)
    inputs = [
        torch.randn(n, BATCH, width, dtype=torch.float64)
        for n, width in zip((QUERIES, KEYS, KEYS), (8, made.kdim, made.vdim), strict=True)
    ]
    options = {"need_weights": True}
    assert_same(outcome(Attend(binary, options), *inputs), outcome(Attend(made, options), *inputs))


@pytest.mark.parametrize("need_weights", [True, False])
def test_float_attention_drops_out_what_pytorch_drops_out(need_weights: bool) -> None:
    """The same random numbers, the same output, the same weights shown."""
    made = nn.MultiheadAttention(8, 2, dropout=0.5).double()
    binary = copy.deepcopy(made)
    pb.binarize(binary, "fp", only=lambda *_: True)
    inputs = [torch.randn(5, 2, 8, dtype=torch.float64) for _ in range(3)]
    outputs = []
    for module in (binary, made):
        torch.manual_seed(3)
        outputs.append(module(*inputs, need_weights=need_weights))
    torch.testing.assert_close(outputs[0], outputs[1])


@pytest.mark.parametrize("need_weights", [True, False])
def test_a_query_that_may_look_nowhere_gets_what_pytorch_gives(need_weights: bool) -> None:
    made = nn.MultiheadAttention(8, 2).double()
    binary = copy.deepcopy(made)
    pb.binarize(binary, "fp", only=lambda *_: True)
    inputs = [torch.randn(5, 2, 8, dtype=torch.float64) for _ in range(3)]
    mask = torch.zeros(5, 5, dtype=torch.bool)
    mask[2] = True
    mine, theirs = (
        module(*inputs, attn_mask=mask, need_weights=need_weights) for module in (binary, made)
    )
    torch.testing.assert_close(mine, theirs, equal_nan=True)


def test_dropout_of_attention_acts_in_training_only() -> None:
    attention = nn.MultiheadAttention(8, 2, dropout=0.5)
    pb.binarize(attention, "bc", only=lambda *_: True)
    x = torch.randn(5, 2, 8)
    for weights in (True, False):
        assert not torch.equal(
            attention(x, x, x, need_weights=weights)[0], attention(x, x, x, need_weights=weights)[0]
        )
    attention.eval()
    torch.testing.assert_close(attention(x, x, x)[0], attention(x, x, x, need_weights=False)[0])


# PyTorch's fused paths must not bypass the binary weights ----------------------------------------


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("parametrize", [False, True])
def test_a_transformer_layer_computes_the_same_without_gradients(
    norm_first: bool, activation: str, batch_first: bool, parametrize: bool
) -> None:
    layer = nn.TransformerEncoderLayer(
        8, 2, 12, 0.0, activation, batch_first=batch_first, norm_first=norm_first
    )
    by_hand = binary_by_hand(layer)
    pb.binarize(layer, "bc", only="*", parametrize="linear*" if parametrize else None)
    x = torch.randn(2, 5, 8)
    check_without_gradients(layer, by_hand, (x,), {})
    if batch_first:
        padding = torch.tensor([[False] * 5, [False, False, False, True, True]])
        check_without_gradients(layer, by_hand, (x,), {"src_key_padding_mask": padding})
        mask = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
        check_without_gradients(layer, by_hand, (x,), {"src_mask": mask, "is_causal": True})


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("copied", [False, True])
def test_a_transformer_encoder_computes_the_same_without_gradients(
    nested: bool, copied: bool
) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), enable_nested_tensor=nested)
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    by_hand = binary_by_hand(model)
    pb.binarize(model, "bc", only="*")
    model = copy.deepcopy(model) if copied else model
    x = torch.randn(2, 5, 8)
    padding = torch.tensor([[False] * 5, [False, False, False, True, True]])
    check_without_gradients(model, by_hand, (x,), {})
    check_without_gradients(model, by_hand, (x,), {"src_key_padding_mask": padding}, ~padding)


def test_a_whole_transformer_computes_the_same_without_gradients() -> None:
    model = nn.Transformer(8, 2, 1, 1, 12, 0.0, batch_first=True)
    by_hand = binary_by_hand(model)
    pb.binarize(model, "bc", only="*")
    check_without_gradients(model, by_hand, (torch.randn(2, 5, 8), torch.randn(2, 3, 8)), {})


def binary_by_hand(model: nn.Module) -> nn.Module:
    """A float copy whose weight matrices hold sign(w) mean|w| per row."""
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for p in twin.parameters():
            if p.dim() == 2:
                p.copy_(sign(p) * mean_per_channel(p))
    return twin


def check_without_gradients(
    model: nn.Module,
    by_hand: nn.Module,
    inputs: tuple[Tensor, ...],
    options: dict,
    keep: Tensor | None = None,
) -> None:
    expected = by_hand.train()(*inputs, **options)
    model.eval()
    slow = model(*inputs, **options)
    with torch.no_grad():
        fast = model(*inputs, **options)
    with torch.inference_mode():
        faster = model(*inputs, **options)
    for got in (slow, fast, faster):
        if keep is not None:
            got, expected = got[keep], expected if expected.dim() == 2 else expected[keep]
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


# Scales, spec section 6 --------------------------------------------------------------------------


def conv_weight(std: float = 0.5) -> Tensor:
    return std * torch.randn(4, 3, 3, 2, dtype=torch.float64)


def quantized(w: Tensor, scale: str, method: str = "bc", strength: float = 1.0, **more) -> Tensor:
    layer = nn.Conv2d(3, 4, (3, 2)).double()
    with torch.no_grad():
        layer.weight.copy_(w)
    binarize(layer, pb.method(method, scale=scale), only=lambda *_: True, **more)
    pb.set_strength(layer, strength)
    return layer.binary.weight_quantizer(layer.weight).detach()


def test_the_scale_is_the_mean_size_of_the_layer_or_the_channel() -> None:
    w = conv_weight()
    for scale, expected in [
        ("none", sign(w)),
        ("layer", sign(w) * w.abs().mean()),
        ("channel", sign(w) * w.abs().mean((1, 2, 3), keepdim=True)),
        ("ls", sign(w) * w.abs().mean((1, 2, 3), keepdim=True)),
        ("ls-layer", sign(w) * w.abs().mean()),
    ]:
        torch.testing.assert_close(quantized(w, scale), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", ["bnn++", "poly+", "ede+", "pc"])
def test_the_least_squares_scale_is_the_best_one(method: str) -> None:
    """<w, F> / <F, F>: the residual is orthogonal to F, and no other scale comes nearer."""
    w = conv_weight()
    f = quantized(w, "none", method, 0.7, unit="one")
    for scale, dims in [("ls", (1, 2, 3)), ("ls-layer", (0, 1, 2, 3))]:
        q = quantized(w, scale, method, 0.7, unit="one")
        best = (w * f).sum(dims, keepdim=True) / (f * f).sum(dims, keepdim=True)
        torch.testing.assert_close(q, best * f, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(
            ((w - q) * f).sum(dims), torch.zeros(w.shape[:1] if scale == "ls" else ()).double()
        )


@pytest.mark.parametrize(("strength", "error"), [(5.0, 0.006), (1.0, 3e-4), (0.1, 3e-6)])
@pytest.mark.parametrize("scale", ["ls", "ls-layer"])
def test_at_small_strength_least_squares_reproduces_the_float_weight(
    strength: float, error: float, scale: str
) -> None:
    """0.4 % at mu = 5 for weights of std 0.02, spec section 6; the error falls with mu^2."""
    w = conv_weight(0.02)
    q = quantized(w, scale, "bnn++", strength, unit="one")
    assert (q - w).norm() / w.norm() < error


def test_the_plain_mean_does_not_reproduce_it() -> None:
    w = conv_weight(0.02)
    q = quantized(w, "layer", "bnn++", 5.0, unit="one")
    assert q.norm() / w.norm() == pytest.approx(0.08, abs=0.01)


@pytest.mark.parametrize("scale", ["layer", "channel", "ls", "ls-layer"])
def test_a_layer_of_zeros_stays_finite(scale: str) -> None:
    for method in pb.METHODS:
        q = quantized(torch.zeros(4, 3, 3, 2), scale, method, 0.5)
        assert q.isfinite().all(), method


@pytest.mark.parametrize("task", ["BW", "BWA", "BWAA"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_channel_of_zeros_gives_its_bias(task: str, training: bool, dtype: torch.dtype) -> None:
    """Its scale mean|w| is 0, so the sum of its signs must not come through (a pruned channel)."""
    layer = nn.Linear(64, 2).to(dtype)
    with torch.no_grad():
        layer.weight[1] = 0
    pb.binarize(layer, "bc", task, only=lambda *_: True)
    layer.train(training)
    y = layer(torch.ones(3, 64, dtype=dtype))[:, 1]
    torch.testing.assert_close(y, layer.bias[1].expand(3))


@pytest.mark.parametrize("unit", ["one", "current", "initial"])
@pytest.mark.parametrize("method", ["bnn++", "pc", "ede+", "bnn+"])
def test_relative_units_make_the_size_of_the_weights_irrelevant(method: str, unit: str) -> None:
    w = conv_weight()
    small, large = (quantized(c * w, "channel", method, 0.8, unit=unit) / c for c in (2.0**-6, 1.0))
    same = torch.allclose(small, large, rtol=1e-6, atol=1e-6)
    assert same == (unit != "one" or method == "bnn+")


@pytest.mark.parametrize("scale", list(pb.SCALES))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_scale_of_a_large_layer_fits_into_half_precision(
    scale: str, dtype: torch.dtype
) -> None:
    """90 000 weights: a plain sum of them passes 65 504, where float16 ends."""
    layer = nn.Linear(300, 300, bias=False).to(dtype)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(300, 300).sign() * 1.5)
    pb.binarize(layer, pb.method("bc", scale=scale), only=lambda *_: True)
    q = layer.binary.weight_quantizer(layer.weight)
    expected = layer.weight if scale != "none" else layer.weight / 1.5
    torch.testing.assert_close(q, expected, rtol=0.01, atol=0)


@pytest.mark.parametrize("method", [name for name in pb.METHODS if name not in ("ptb", "rpc")])
@pytest.mark.parametrize("task", ["BW", "BWA", "BWAA"])
def test_training_and_evaluation_see_the_same_network(method: str, task: str) -> None:
    """Except under PTB and rPC, whose gradient is at the latent weight."""
    layer = nn.Conv2d(3, 4, 3, padding=1).double()
    pb.binarize(layer, method, task, only=lambda *_: True)
    pb.set_strength(layer, 0.7)
    x = torch.randn(2, 3, 5, 5, dtype=torch.float64)
    torch.testing.assert_close(layer.train()(x), layer.eval()(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("method", ["ptb", "rpc"])
def test_ptb_and_rpc_train_the_float_network_and_evaluate_the_binary_one(method: str) -> None:
    layer = nn.Linear(6, 4).double()
    twin = copy.deepcopy(layer)
    pb.binarize(layer, method, only=lambda *_: True)
    x = torch.randn(3, 6, dtype=torch.float64)
    assert torch.equal(layer(x), twin(x))
    pb.set_strength(layer, 1.0)
    w = twin.weight
    expected = sign(w) * (mean_per_channel(w) if method == "ptb" else w.abs().mean())
    torch.testing.assert_close(
        layer.eval()(x), functional.linear(x, expected, twin.bias), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("size", [0.02, 1.0, 30.0])
def test_a_register_counts_the_latent_weights_of_rpc_in_units_of_their_scale(size: float) -> None:
    """y = s c(wrap(sum of w / s times the input)): what evaluation sees, at w instead of P(w)."""
    layer = nn.Linear(200, 3, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(size * (2 + torch.rand(3, 200)) * sign(torch.randn(3, 200)))
    w = layer.weight.detach().clone()
    pb.binarize(
        layer,
        pb.method("rpc", input_schedule=pb.Constant(1)),
        pb.Task("BWAA", bits=4),
        only=lambda *_: True,
    )
    x = torch.randn(5, 200, dtype=torch.float64)
    s = w.abs().mean()
    sums = sign(x) @ (w / s).T
    expected = s * cyclic(wrap(sums, 4), 4, 2.0)
    torch.testing.assert_close(layer(x), expected, rtol=1e-3, atol=1e-3 * size)
    assert layer.binary.accumulator.overflow > 0.3  # signs alone overflow here as often
    # Where the latent weight is its own quantized value, training sees what evaluation sees.
    with torch.no_grad():
        layer.weight.copy_(sign(w) * s)
    pb.set_strength(layer, 1.0)
    torch.testing.assert_close(layer.train()(x), layer.eval()(x), rtol=1e-6, atol=1e-6 * size)


def test_the_gradient_of_rpc_under_a_register_is_that_at_the_latent_weight() -> None:
    layer = nn.Linear(40, 3, bias=False)
    pb.binarize(
        layer,
        pb.method("rpc", input_schedule=pb.Constant(1)),
        pb.Task("BWAA", bits=3),
        only=lambda *_: True,
    )
    x, w = torch.randn(5, 40), layer.weight.detach().clone().requires_grad_()
    s = w.detach().abs().mean()
    (s * cyclic(wrap(sign(x) @ (w / s).T, 3), 3, 2.0)).square().sum().backward()
    layer(x).square().sum().backward()
    torch.testing.assert_close(layer.weight.grad, w.grad, rtol=1e-4, atol=1e-6)


def test_the_scale_has_no_gradient_of_its_own() -> None:
    for scale in ("layer", "channel", "ls"):
        layer = nn.Linear(5, 3, bias=False).double()
        pb.binarize(layer, pb.method("bc", scale=scale), only=lambda *_: True)
        layer(torch.eye(5, dtype=torch.float64)).sum().backward()
        assert torch.equal(layer.weight.grad, torch.ones(3, 5, dtype=torch.float64))


# Tied weights ------------------------------------------------------------------------------------


def tied() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False))
    model[2].weight = model[0].weight
    return model.double()


def test_tied_layers_sum_their_gradients() -> None:
    model = tied()
    pb.binarize(model, "bc", only="*")
    assert model[0].weight is model[2].weight
    assert len(pb.latent_parameters(model)) == 1
    w = model[0].weight.detach()
    x = torch.randn(3, 4, dtype=torch.float64)
    model(x).sum().backward()
    first, second = ((sign(w) * mean_per_channel(w)).requires_grad_() for _ in range(2))
    (torch.tanh(x @ first.T) @ second.T).sum().backward()
    torch.testing.assert_close(model[0].weight.grad, first.grad + second.grad)


@pytest.mark.parametrize("method", ["pq", "rpc"])
def test_the_prox_of_a_tied_weight_is_applied_once(method: str) -> None:
    """A threshold applied twice would be twice the threshold."""
    model = tied()
    w = model[0].weight.detach().clone()
    pb.binarize(model, pb.method(method, schedule=pb.Constant(0.3)), only="*")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
    pb.attach(model, optimizer, steps=5)
    model[0].weight.grad = torch.zeros_like(w)
    optimizer.step()
    unit = w.abs().mean().float().double()
    threshold = 0.4 * 0.3 / unit
    z = w / unit
    expected = unit * sign(z) * (z.abs() + threshold).clamp(max=1)
    stayed = z.abs() < 1  # towards +-1 from inside; from outside the map is constant
    torch.testing.assert_close(
        model[0].weight.detach()[stayed], expected[stayed], rtol=1e-6, atol=1e-7
    )
    torch.testing.assert_close(
        model[0].weight.detach()[~stayed], (unit * sign(z))[~stayed], rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize("method", ["pq", "rpc"])
def test_the_three_parts_of_one_parameter_get_one_prox_each(method: str) -> None:
    attention = nn.MultiheadAttention(4, 2, bias=False).double()
    with torch.no_grad():
        attention.in_proj_weight[4:8] *= 10  # each part has its own unit
    w = attention.in_proj_weight.detach().clone()
    pb.binarize(attention, pb.method(method, schedule=pb.Constant(0.1)), only=lambda *_: True)
    optimizer = torch.optim.SGD(attention.parameters(), lr=0.5)
    pb.attach(attention, optimizer, steps=5)
    for p in attention.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for i in range(3):
        part = w[4 * i : 4 * i + 4]
        unit = part.abs().mean().float().double()
        z = part / unit
        expected = unit * sign(z) * (z.abs() + 0.05 / unit).clamp(max=1)
        got = attention.in_proj_weight.detach()[4 * i : 4 * i + 4]
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-7)
