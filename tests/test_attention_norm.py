"""The norm at the end of each attention: where it acts, what it survives, how it is set."""

import copy
import io
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

import proxbit as pb
from proxbit.nn.attention_norm import add_attention_norms, attentions
from proxbit.train.norm_calibration import calibrate_norms
from proxbit.util.compat import allow_torchvision

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning:timm.*"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]
CLASSES = 5


class Encoder(nn.Module):
    """PyTorch's encoder as a classifier of images; the last tokens may be padding."""

    def __init__(self, norm_first: bool = False, batch_first: bool = True, pad: int = 0) -> None:
        super().__init__()
        self.pad, self.batch_first = pad, batch_first
        self.embed, self.head = nn.Linear(48, 8), nn.Linear(8, CLASSES)
        layer = nn.TransformerEncoderLayer(
            8, 2, 16, 0.0, "gelu", batch_first=batch_first, norm_first=norm_first
        )
        self.body = nn.TransformerEncoder(layer, 2)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x.reshape(len(x), 16, 48))
        padding = torch.arange(16).expand(len(x), -1) >= 16 - self.pad if self.pad else None
        tokens = tokens if self.batch_first else tokens.transpose(0, 1)
        out = self.body(tokens, src_key_padding_mask=padding)
        out = out if self.batch_first else out.transpose(0, 1)
        return self.head(out[:, : 16 - self.pad].mean(1))


def timm_model(name: str, **arguments: Any) -> nn.Module:
    allow_torchvision()
    timm = pytest.importorskip("timm", reason="needs timm")
    plain = {"embed_dim": 24, "depth": 2, "num_heads": 3, "img_size": 16, "patch_size": 8}
    swin = {"embed_dim": 8, "depths": (2, 1), "num_heads": (2, 4), "window_size": 4}
    levels = {"embed_dims": (8, 16), "depths": (1, 2), "num_heads": (2, 4), "num_levels": 2}
    small = {"img_size": 16, "patch_size": 2}
    kinds = {
        "vit": ("vision_transformer", "VisionTransformer", plain),
        "deit": ("deit", "VisionTransformerDistilled", plain),
        "swin": ("swin_transformer", "SwinTransformer", swin | small),
        "nest": ("nest", "Nest", levels | small),
    }
    module, kind, defaults = kinds[name]
    build = getattr(getattr(timm.models, module), kind)
    return build(num_classes=CLASSES, **defaults | arguments)


FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "vit": partial(timm_model, "vit"),
    "vit with layer scale": partial(timm_model, "vit", init_values=0.1),
    "deit": partial(timm_model, "deit"),
    "swin": partial(timm_model, "swin"),
    "nest": partial(timm_model, "nest"),
    "encoder": Encoder,
    "encoder, norm and tokens first": partial(Encoder, norm_first=True, batch_first=False),
    "encoder with padding": partial(Encoder, pad=3),
}
NORMS = {
    "vit": ["blocks.0.attn.norm_out", "blocks.1.attn.norm_out"],
    "swin": [f"layers.{i}.attn.norm_out" for i in ("0.blocks.0", "0.blocks.1", "1.blocks.0")],
    "nest": [
        f"levels.{i}.attn.norm_out"
        for i in ("0.transformer_encoder.0", "1.transformer_encoder.0", "1.transformer_encoder.1")
    ],
    "encoder": ["body.layers.0.self_attn.norm_out", "body.layers.1.self_attn.norm_out"],
}


def build(family: str, seed: int = 1) -> nn.Module:
    """Random weights everywhere: fresh transformers have equal layers and zeros in them."""
    model = FAMILIES[family]()
    numbers = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=numbers) * 0.2)
    return model.eval()


def images(n: int = 3) -> Tensor:
    return torch.randn(n, 3, 16, 16)


def stirred_norms(model: nn.Module, names: list[str]) -> None:
    with torch.no_grad():
        for name in names:
            for p in model.get_submodule(name).parameters():
                p.add_(torch.rand(p.shape))


def branches(model: nn.Module) -> list[nn.Module]:
    return list(attentions(model).values())


def edit_outputs(model: nn.Module, edits: list[Callable[[Tensor], Tensor]]) -> None:
    """The oracle's way in: replace the forward of each attention, no hooks."""
    for attention, edit in zip(branches(model), edits, strict=True):

        def forward(
            *args: Any, was: Any = attention.forward, edit: Any = edit, **kwargs: Any
        ) -> Any:
            out = was(*args, **kwargs)
            return (edit(out[0]), *out[1:]) if isinstance(out, tuple) else edit(out)

        attention.forward = forward  # type: ignore[method-assign]


def plain_norm(norm: nn.LayerNorm, y: Tensor) -> Tensor:
    mean = y.mean(-1, keepdim=True)
    variance = (y - mean).square().mean(-1, keepdim=True)
    return (y - mean) / (variance + norm.eps).sqrt() * norm.weight + norm.bias


@pytest.mark.parametrize("family", list(FAMILIES))
@pytest.mark.parametrize("order", ["float", "norms first", "binary first"])
def test_each_attention_branch_is_normalized_and_nothing_else(family: str, order: str) -> None:
    model, x = build(family), images()
    if order == "binary first":
        pb.binarize(model, "bnn++")
    plain = copy.deepcopy(model)
    names = add_attention_norms(model)
    stirred_norms(model, names)
    if order == "norms first":
        pb.binarize(model, "bnn++")
        pb.binarize(plain, "bnn++")
    edits = [partial(plain_norm, model.get_submodule(name)) for name in names]
    edit_outputs(plain, edits)
    with_gradients = model(x)
    torch.testing.assert_close(with_gradients, plain(x), rtol=1e-4, atol=1e-5)
    with torch.no_grad():  # where PyTorch may take its fused paths
        torch.testing.assert_close(model(x), with_gradients.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", list(NORMS))
def test_the_keys_are_plain_and_a_float_checkpoint_lacks_only_them(family: str) -> None:
    model = build(family)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    names = add_attention_norms(model)
    assert names == NORMS[family]
    new = [f"{name}.{part}" for name in names for part in ("weight", "bias")]
    assert sorted(model.state_dict()) == sorted([*state, *new])
    answer = model.load_state_dict(state, strict=False)
    assert sorted(answer.missing_keys) == sorted(new)
    assert not answer.unexpected_keys
    assert all(p.requires_grad for name in names for p in model.get_submodule(name).parameters())


@pytest.mark.parametrize("family", list(FAMILIES))
@pytest.mark.parametrize("method", ["", "bnn++"])
def test_copies_pickles_and_state_dicts_carry_the_norms(family: str, method: str) -> None:
    model, x = build(family), images()
    names = add_attention_norms(model)
    stirred_norms(model, names)
    if method:
        pb.binarize(model, method)
    expected = model(x)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    fresh = build(family, seed=5)
    add_attention_norms(fresh)
    if method:
        pb.binarize(fresh, method)
    fresh.load_state_dict(model.state_dict())
    twins = [
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(file, weights_only=False),
        fresh,
    ]
    for twin in twins:
        assert torch.equal(twin(x), expected)
        with torch.no_grad():
            for name in names:
                twin.get_submodule(name).weight.zero_()
        assert not torch.equal(twin(x), expected)
    assert torch.equal(model(x), expected)


@pytest.mark.parametrize("family", ["vit", "encoder"])
def test_hooks_of_another_process_do_not_push_a_loaded_norm_out(family: str) -> None:
    """Hooks are numbered per process: a new one must not take the number of one from a file."""
    model, x = build(family), images()
    stirred_norms(model, add_attention_norms(model))
    expected, content, number = model(x), pickle.dumps(model), RemovableHandle.next_id
    try:
        # as in a process that has made as many hooks as the first had before the norms
        RemovableHandle.next_id = min(id for m in branches(model) for id in m._forward_hooks)
        loaded = pickle.loads(content)
        seen: list[str] = []
        for attention in branches(loaded):
            attention.register_forward_hook(lambda *_: seen.append("called"))
        assert torch.equal(loaded(x), expected)
        assert len(seen) == len(branches(loaded))
    finally:
        RemovableHandle.next_id = max(number, RemovableHandle.next_id)


@pytest.mark.parametrize("family", list(FAMILIES))
@pytest.mark.parametrize("task", ["BW", "BWA"])
def test_binary_models_train_harden_and_restore_with_their_norms(family: str, task: Any) -> None:
    model, x = build(family), images()
    names = add_attention_norms(model)
    keys, expected = list(model.state_dict()), model(x).detach()
    report = pb.binarize(model, "bnn++", task)
    assert not any("norm_out" in line.name for line in report.layers)
    pb.restore(model)
    assert torch.equal(model(x), expected)
    pb.binarize(model, "bnn++", task)
    assert list(model.state_dict()) == keys
    functional.cross_entropy(model(x), torch.tensor([0, 1, 2])).backward()
    norms = [p for name in names for p in model.get_submodule(name).parameters()]
    assert all(p.grad is not None and bool(p.grad.any()) for p in norms)
    pb.harden(model)
    assert all(p.requires_grad for p in norms)
    assert pb.probe(model, x).ok
    before = model(x)
    with torch.no_grad():
        norms[0].mul_(2)
    assert not torch.equal(model(x), before)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["vit", "encoder"])
def test_a_compiled_model_has_its_norms(family: str) -> None:
    model, x = build(family), images()
    names = add_attention_norms(model)
    stirred_norms(model, names)
    pb.binarize(model, "bnn++")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    compiled(x).square().sum().backward()
    grads = [model.get_submodule(name).weight.grad for name in names]
    assert all(grad is not None and bool(grad.any()) for grad in grads)


# Calibration


def outputs(model: nn.Module, batches: list[Tensor]) -> list[Tensor]:
    """What each attention of a float model without norms gives, as (tokens, channels)."""
    twin, kept = copy.deepcopy(model), [[] for _ in branches(model)]

    def keep(notes: list[Tensor], y: Tensor) -> Tensor:
        notes.append(y.detach().flatten(0, -2))
        return y

    edit_outputs(twin, [partial(keep, notes) for notes in kept])
    for x in batches:
        twin(x)
    return [torch.cat(notes) for notes in kept]


def plain_line(y: Tensor, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """Least squares channel by channel, from the normal equations of another library."""
    rows = y.double().numpy()
    n = (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + eps)
    lines = [
        np.linalg.lstsq(np.stack([n[:, c], np.ones(len(n))], 1), rows[:, c], rcond=None)[0]
        for c in range(rows.shape[1])
    ]
    return np.array([line[0] for line in lines]), np.array([line[1] for line in lines])


@pytest.mark.parametrize("family", list(FAMILIES))
@pytest.mark.parametrize("source", ["itself", "binary itself", "another", "another with norms"])
def test_gain_and_bias_are_the_best_line_back_to_the_float_output(family: str, source: str) -> None:
    plain = build(family)
    batches = [images(4), images(1), images(3)]
    expected = outputs(plain, batches)
    model = copy.deepcopy(plain) if "itself" in source else build(family, seed=3)
    names = add_attention_norms(model)
    if source == "binary itself":
        pb.binarize(model, "bnn++")
    teacher = None if "itself" in source else copy.deepcopy(plain)
    if source == "another with norms":
        stirred_norms(teacher, add_attention_norms(teacher))
    before = {k: v.clone() for k, v in model.state_dict().items() if "norm_out" not in k}
    calibrate_norms(model, [(x, None) for x in batches], teacher)
    for name, y in zip(names, expected, strict=True):
        norm = model.get_submodule(name)
        gain, bias = plain_line(y, norm.eps)
        np.testing.assert_allclose(norm.weight.detach().numpy(), gain, rtol=2e-3, atol=1e-4)
        np.testing.assert_allclose(norm.bias.detach().numpy(), bias, rtol=2e-3, atol=1e-4)
    for key, value in before.items():
        assert torch.equal(model.state_dict()[key], value), key


class Even(nn.Module):
    """An attention in name only, whose tokens all have one mean and one deviation."""

    def __init__(self, mean: float, deviation: float) -> None:
        super().__init__()
        self.num_heads, self.mean, self.deviation = 2, mean, deviation
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.proj(self.qkv(x)[..., :8].tanh())
        return self.mean + self.deviation * functional.layer_norm(y, (8,), eps=0.0)


@given(st.floats(-3, 3), st.floats(0.1, 5), st.integers(2, 6))
def test_the_function_is_kept_exactly_where_all_tokens_have_one_mean_and_deviation(
    mean: float, deviation: float, n: int
) -> None:
    torch.manual_seed(n)
    model = nn.Sequential(nn.Linear(8, 8), Even(mean, deviation), nn.Linear(8, 3)).double()
    plain, others = copy.deepcopy(model), torch.randn(4, 8, dtype=torch.float64)
    add_attention_norms(model)
    calibrate_norms(model, [torch.randn(n, 5, 8, dtype=torch.float64)])
    torch.testing.assert_close(model(others), plain(others), rtol=1e-9, atol=1e-9)
    norm = model.get_submodule("1.norm_out")
    gain = (deviation**2 + norm.eps) ** 0.5
    torch.testing.assert_close(norm.weight.detach(), torch.full_like(norm.weight, gain))
    torch.testing.assert_close(norm.bias.detach(), torch.full_like(norm.bias, mean))


@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_calibrated_model_is_nearer_to_the_pretrained_one(family: str) -> None:
    """Per branch nearer than any other gain and bias; the whole nearer than without."""
    model, x = build(family), images(8)
    expected, ys = model(x).detach(), outputs(model, [x])
    names = add_attention_norms(model)
    uncalibrated = (model(x) - expected).norm()
    calibrate_norms(model, [x])
    assert (model(x) - expected).norm() < 0.9 * uncalibrated
    for name, y in zip(names, ys, strict=True):
        norm: Any = model.get_submodule(name)
        n = functional.layer_norm(y, y.shape[-1:], eps=norm.eps)
        error = (norm(y) - y).square().mean(0)
        rivals = [(y.std(0), y.mean(0)), (torch.ones_like(error), torch.zeros_like(error))]
        for size in (1e-2, 1e-1):
            for gain, bias in ((size, 0.0), (-size, 0.0), (0.0, size), (0.0, -size)):
                rivals.append((norm.weight + gain, norm.bias + bias))
        for gain, bias in rivals:
            assert bool((error <= (n * gain + bias - y).square().mean(0) + 1e-6).all())


def test_dividing_the_tokens_into_batches_otherwise_changes_nothing() -> None:
    x, plain = images(6), build("encoder")
    results = []
    for sizes in ([6], [1, 5], [2, 2, 2]):
        model = copy.deepcopy(plain)
        names = add_attention_norms(model)
        calibrate_norms(model, x.split(sizes))
        results.append(torch.cat([p for n in names for p in model.get_submodule(n).parameters()]))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-4, atol=1e-5)


def test_calibration_leaves_modes_hooks_and_random_numbers_as_they_were() -> None:
    model = build("encoder with padding")
    add_attention_norms(model)
    model.train()
    model.head.eval()
    modes = [m.training for m in model.modules()]
    kinds = [type(m) for m in model.modules()]
    hooks = [len(m._forward_hooks) for m in model.modules()]
    numbers = torch.get_rng_state()
    batches = [torch.zeros(2, 3, 16, 16), {"x": torch.ones(2, 3, 16, 16)}]
    assert calibrate_norms(model, batches) is model

    def broken() -> Any:
        yield torch.zeros(2, 3, 16, 16)
        raise KeyError("in the middle")

    state = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(KeyError):
        calibrate_norms(model, broken())
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes
    assert [type(m) for m in model.modules()] == kinds
    assert [len(m._forward_hooks) for m in model.modules()] == hooks
    assert torch.equal(torch.get_rng_state(), numbers)
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_norms_have_the_type_of_the_model(dtype: torch.dtype) -> None:
    model = build("encoder").to(dtype)
    names = add_attention_norms(model)
    x = images().to(dtype)
    calibrate_norms(model, [x])
    assert model(x).dtype == dtype
    for name in names:
        assert all(p.dtype == dtype for p in model.get_submodule(name).parameters())
        assert bool(model.get_submodule(name).weight.isfinite().all())


def normed() -> nn.Module:
    model = build("encoder")
    add_attention_norms(model)
    return model


def hard() -> nn.Module:
    model = normed()
    pb.binarize(model, "bc")
    return pb.harden(model)


class Idle(nn.Module):
    """Has an attention and does not use it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.layer = nn.MultiheadAttention(8, 2), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def idle() -> nn.Module:
    model = Idle()
    add_attention_norms(model)
    return model


MISUSES: dict[str, tuple[Callable[[], Any], str]] = {
    "no attention": (
        lambda: add_attention_norms(nn.Sequential(nn.Linear(2, 2))),
        "Sequential has no attention of a known kind",
    ),
    "twice": (lambda: add_attention_norms(normed()), "Encoder has its attention norms already"),
    "no norms": (
        lambda: calibrate_norms(build("encoder"), [images()]),
        r"Encoder has no attention norms: call add_attention_norms\(model\) first",
    ),
    "no batches": (lambda: calibrate_norms(normed(), []), "calibrate_norms got no batches"),
    "another network": (
        lambda: calibrate_norms(normed(), [images()], nn.MultiheadAttention(6, 2)),
        r"outputs of widths \[6\], the norms \[8, 8\]: pass the network they came from",
    ),
    "hard": (lambda: calibrate_norms(hard(), [images()]), "its float weights are gone: pass"),
    "not run": (
        lambda: calibrate_norms(idle(), [torch.randn(3, 8)]),
        "attention 'inner' was not seen on these batches",
    ),
}


@pytest.mark.parametrize("name", list(MISUSES))
def test_misuse_is_answered_in_one_sentence(name: str) -> None:
    misuse, message = MISUSES[name]
    with pytest.raises(ValueError, match=message):
        misuse()
