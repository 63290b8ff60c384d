"""Distillation: the loss is the plain formula, and the teacher stays as it is."""

import copy
import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import proxbit as pb
from proxbit.train.distillation import Distiller, Terms, distance, evenly
from proxbit.util.compat import allow_torchvision

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning:timm.*"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor"),
]
CLASSES = 5


class Encoder(nn.Module):
    """PyTorch's encoder as a classifier of images, batch or tokens first."""

    def __init__(self, batch_first: bool, depth: int = 2, kind: str = "gelu") -> None:
        super().__init__()
        self.batch_first = batch_first
        self.embed, self.head = nn.Linear(48, 8), nn.Linear(8, CLASSES)
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, kind, batch_first=batch_first)
        self.body = nn.TransformerEncoder(layer, depth)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x.reshape(len(x), -1, 48))  # 16 x 16 x 3 pixels as 16 tokens
        if self.batch_first:
            return self.head(self.body(tokens).mean(1))
        return self.head(self.body(tokens.transpose(0, 1)).mean(0))


def timm_model(name: str, **arguments: Any) -> nn.Module:
    allow_torchvision()
    pytest.importorskip("timm", reason="needs timm")
    from timm.models import deit, nest, swin_transformer, vision_transformer

    kinds = {
        "vit": vision_transformer.VisionTransformer,
        "deit": deit.VisionTransformerDistilled,
        "swin": swin_transformer.SwinTransformer,
        "nest": nest.Nest,
    }
    plain = {"embed_dim": 24, "depth": 2, "num_heads": 3, "img_size": 16, "patch_size": 8}
    swin = {"embed_dim": 8, "depths": (2, 1), "num_heads": (2, 4), "window_size": 4}
    levels = {"embed_dims": (8, 16), "depths": (1, 2), "num_heads": (2, 4), "num_levels": 2}
    small = {"img_size": 16, "patch_size": 2}
    defaults = {"vit": plain, "deit": plain, "swin": swin | small, "nest": levels | small}
    return kinds[name](num_classes=CLASSES, **defaults[name] | arguments)


FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "vit": lambda: timm_model("vit"),
    "deit": lambda: timm_model("deit"),
    "swin": lambda: timm_model("swin"),
    "nest": lambda: timm_model("nest"),
    "encoder": lambda: Encoder(batch_first=True),
    "encoder, tokens first": lambda: Encoder(batch_first=False),
}


def stirred(model: nn.Module, seed: int) -> nn.Module:
    """Random weights everywhere: fresh transformers have equal layers and zeros in them."""
    numbers = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=numbers) * 0.2)
    return model.eval()


def pair(family: str) -> tuple[nn.Module, nn.Module]:
    return stirred(FAMILIES[family](), 1), stirred(FAMILIES[family](), 2)


def batch(n: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 3, 16, 16), torch.randint(CLASSES, (n,))


# The oracle: inputs of the attentions, taken by replacing their forward; then plain loops.


def blocks_of(model: Any) -> list[Any]:
    if hasattr(model, "body"):
        return list(model.body.layers)
    if hasattr(model, "blocks"):
        return list(model.blocks)
    if hasattr(model, "levels"):
        return [block for level in model.levels for block in level.transformer_encoder]
    return [block for stage in model.layers for block in stage.blocks]


def spied(module: nn.Module, notes: list[tuple[Any, Any]]) -> None:
    original = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        output = original(*args, **kwargs)
        notes.append((args[0], output))
        return output

    module.forward = forward  # type: ignore[method-assign]


def projected(attention: Any, x: Tensor) -> list[Tensor]:
    """Q, K and V of one attention as (batch, ..., tokens, width), from its input."""
    if not isinstance(attention, nn.MultiheadAttention):
        layer = attention.qkv
        weight = layer.weight
        if isinstance(layer, pb.nn.BinaryLinear):
            weight = layer.binary.weight_quantizer(weight)
        out = x @ weight.T + (0 if layer.bias is None else layer.bias)
        width = out.shape[-1] // 3
        return [out[..., i * width : (i + 1) * width] for i in range(3)]
    x = x if attention.batch_first else x.transpose(0, 1)
    results = []
    for i in range(3):
        rows = slice(i * attention.embed_dim, (i + 1) * attention.embed_dim)
        weight = attention.in_proj_weight[rows]
        if isinstance(attention, pb.nn.BinaryMultiheadAttention):
            weight = attention.binary[i].weight_quantizer(weight)
        results.append(x @ weight.T + attention.in_proj_bias[rows])
    return results


def numpy_of(x: Tensor) -> np.ndarray:
    return x.detach().double().numpy()


def relation(x: Tensor, heads: int, n: int) -> np.ndarray:
    """X X^T / sqrt(d), head by head, as one row per sample."""
    d = x.shape[-1] // heads
    found = []
    for h in range(heads):
        part = numpy_of(x[..., h * d : (h + 1) * d])
        found.append((part @ np.swapaxes(part, -1, -2) / math.sqrt(d)).reshape(n, -1))
    return np.concatenate(found, axis=1)


def states(model: nn.Module, x: Tensor) -> tuple[Tensor, list[list[np.ndarray]], list[np.ndarray]]:
    """Scores, [P_Q, P_K, P_V] of each layer, and the hidden states; one row per sample."""
    twin = copy.deepcopy(model)
    ins: list[tuple[Any, Any]] = []
    outs: list[tuple[Any, Any]] = []
    layers = blocks_of(twin)
    attentions = [
        block.self_attn if hasattr(block, "self_attn") else block.attn for block in layers
    ]
    for block, attention in zip(layers, attentions, strict=True):
        spied(block, outs)
        spied(attention, ins)
    scores = twin(x)
    relations = [
        [relation(p, attention.num_heads, len(x)) for p in projected(attention, entered)]
        for attention, (entered, _) in zip(attentions, ins, strict=True)
    ]
    hidden = [outs[0][0], *(left for _, left in outs)]
    if not getattr(model, "batch_first", True):
        hidden = [h.transpose(0, 1) for h in hidden]
    return scores, relations, [numpy_of(h).reshape(len(x), -1) for h in hidden]


def plain_distance(a: np.ndarray, b: np.ndarray, per_sample: bool) -> float:
    if per_sample:
        return float(np.mean([plain_distance(p, q, False) for p, q in zip(a, b, strict=True)]))
    return float(np.linalg.norm(a / np.linalg.norm(a) - b / np.linalg.norm(b)))


def plain_parts(
    student: nn.Module, teacher: nn.Module, x: Tensor, y: Tensor, per_sample: bool,
    layers: list[int] | None = None,
) -> dict[str, float]:  # fmt: skip
    scores, ours, our_hidden = states(student, x)
    expected, theirs, their_hidden = states(teacher, x)
    if layers is not None:
        theirs = [theirs[i] for i in layers]
        their_hidden = [their_hidden[0], *(their_hidden[i + 1] for i in layers)]
    s, t = numpy_of(scores), numpy_of(expected)
    log = s - np.log(np.exp(s).sum(1, keepdims=True))
    soft = np.exp(t) / np.exp(t).sum(1, keepdims=True)
    relations = hidden = 0.0
    for mine, other in zip(ours, theirs, strict=True):
        for i in range(3):
            relations += plain_distance(mine[i], other[i], per_sample)
    for mine, other in zip(our_hidden, their_hidden, strict=True):
        hidden += plain_distance(mine, other, per_sample)
    return {
        "logits": float(-(soft * log).sum(1).mean()),
        "labels": float(np.mean([-log[i, y[i]] for i in range(len(y))])),
        "relations": relations,
        "hidden": hidden,
    }


def assert_parts(distiller: Distiller, loss: Tensor, plain: dict[str, float]) -> None:
    assert list(distiller.parts) == list(distiller.uses) == list(plain)
    for name, value in plain.items():
        assert float(distiller.parts[name]) == pytest.approx(value, rel=1e-4), name
    total = sum(getattr(distiller.terms, name) * value for name, value in plain.items())
    assert float(loss.detach()) == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("method", ["", "bnn++", "bc"])
@pytest.mark.parametrize("family", list(FAMILIES))
def test_the_loss_is_the_plain_formula(family: str, method: str, per_sample: bool) -> None:
    (student, teacher), (x, y) = pair(family), batch()
    if method:
        pb.binarize(student, method)
    plain = plain_parts(student, teacher, x, y, per_sample)
    weights = Terms(1.5, 0.5, 0.7, 0.3, per_sample=per_sample)
    distiller = Distiller(student, teacher, terms=weights)
    loss, scores = distiller(x, y)
    assert_parts(distiller, loss, plain)
    assert torch.equal(scores, student(x))


@pytest.mark.parametrize(("deep", "layers"), [(4, [1, 3]), (5, [1, 4])])
@pytest.mark.parametrize("kind", ["vit", "encoder"])
def test_a_deeper_teacher_shows_the_last_layer_of_each_group(
    kind: str, deep: int, layers: list[int]
) -> None:
    student = pair(kind)[0]
    teacher = timm_model("vit", depth=deep) if kind == "vit" else Encoder(True, deep)
    stirred(teacher, 3)
    x, y = batch()
    plain = plain_parts(student, teacher, x, y, False, layers)
    distiller = Distiller(student, teacher)
    loss, _ = distiller(x, y)
    assert_parts(distiller, loss, plain)


@given(st.integers(1, 12), st.integers(1, 5))
def test_chosen_layers_end_with_the_last_and_are_those_of_equal_groups(
    shallow: int, times: int
) -> None:
    assert evenly(shallow * times, shallow) == [times * i + times - 1 for i in range(shallow)]
    for deep in range(shallow, shallow + 12):
        chosen = evenly(deep, shallow)
        assert chosen[-1] == deep - 1
        assert all(a < b for a, b in zip([-1, *chosen], chosen, strict=False))
        gaps = np.diff([-1, *chosen])
        assert gaps.max() - gaps.min() <= 1


numbers = st.floats(-100, 100, width=32).filter(lambda v: v == 0 or abs(v) > 1e-3)


@given(
    st.lists(st.tuples(numbers, numbers), min_size=2, max_size=12).filter(
        lambda rows: all(any(row[i] for row in rows) for i in (0, 1))
    ),
    st.floats(1e-2, 1e2),
)
def test_a_distance_sees_directions_only(rows: list[tuple[float, float]], c: float) -> None:
    a, b = torch.tensor(rows, dtype=torch.float64).T
    expected = plain_distance(a.numpy(), b.numpy(), False)
    for left, right in ((a, b), (b, a), (c * a, b), (a, c * b)):
        assert float(distance(left, right)) == pytest.approx(expected, abs=1e-9)
    assert -1e-9 <= expected <= 2 + 1e-9
    assert float(distance(a, c * a)) == pytest.approx(0, abs=1e-9)
    assert float(distance(a, -c * a)) == pytest.approx(2)


def test_a_vanished_or_equal_tensor_has_a_finite_distance_and_gradient() -> None:
    for a in (torch.zeros(2, 3), torch.ones(2, 3)):
        a.requires_grad_()
        result = distance(a, torch.ones(2, 3))
        result.backward()
        assert bool(result.isfinite())
        assert a.grad is not None
        assert bool(a.grad.isfinite().all())


@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_student_like_its_teacher_has_only_the_teachers_entropy(family: str) -> None:
    teacher = pair(family)[1]
    student, (x, y) = copy.deepcopy(teacher), batch()
    distiller = Distiller(student, teacher, Terms(labels=0))
    loss, scores = distiller(x, y)
    loss.backward()
    p = numpy_of(scores.softmax(1))
    assert float(distiller.parts["relations"]) == 0
    assert float(distiller.parts["hidden"]) == 0
    assert float(loss.detach()) == pytest.approx(float(-(p * np.log(p)).sum(1).mean()), rel=1e-5)
    for name, parameter in student.named_parameters():
        # the entropy is the least cross entropy
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().max()) < 1e-5, name


@pytest.mark.parametrize("family", list(FAMILIES))
def test_gradients_reach_all_of_the_student_and_nothing_of_the_teacher(family: str) -> None:
    (student, teacher), (x, y) = pair(family), batch()
    pb.binarize(student, "bnn++")
    teacher.train()
    first = next(teacher.children())
    first.eval()
    modes = [m.training for m in teacher.modules()]
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    keys = list(student.state_dict())
    distiller = Distiller(student, teacher)
    loss, _ = distiller(x, y)
    loss.backward()
    for name, p in student.named_parameters():
        assert p.grad is not None, name
        assert bool(p.grad.isfinite().all()), name
        assert bool(p.grad.any()), name
    assert all(p.grad is None and p.requires_grad for p in teacher.parameters())
    assert [m.training for m in teacher.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())
    assert list(student.state_dict()) == keys


@pytest.mark.parametrize("term", ["relations", "hidden"])
@pytest.mark.parametrize("family", list(FAMILIES))
def test_each_term_alone_leads_the_student_to_the_teacher(family: str, term: str) -> None:
    (student, teacher), (x, y) = pair(family), batch()
    alone = {"logits": 0.0, "labels": 0.0, "relations": 0.0, "hidden": 0.0} | {term: 1.0}
    distiller = Distiller(student, teacher, Terms(**alone))
    optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        loss, _ = distiller(x, y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert distiller.uses == (term,)
    assert losses[-1] < 0.97 * losses[0]


def test_a_teacher_with_dropout_and_batch_norm_neither_drops_nor_learns() -> None:
    student = nn.Sequential(nn.Flatten(), nn.Linear(768, CLASSES))
    teacher = nn.Sequential(
        nn.Flatten(), nn.BatchNorm1d(768), nn.Dropout(0.5), nn.Linear(768, CLASSES)
    )
    x, y = batch()
    distiller = Distiller(student, teacher)
    first, second = (float(distiller(x, y)[0].detach()) for _ in range(2))
    assert first == second
    assert int(teacher[1].num_batches_tracked) == 0
    assert teacher.training


@pytest.mark.parametrize("family", list(FAMILIES))
def test_per_sample_norms_make_a_batch_the_mean_of_its_samples(family: str) -> None:
    (student, teacher), (x, y) = pair(family), batch(4)
    for per_sample in (True, False):
        distiller = Distiller(student, teacher, Terms(per_sample=per_sample))
        whole = float(distiller(x, y)[0].detach())
        singles = [float(distiller(x[i : i + 1], y[i : i + 1])[0].detach()) for i in range(len(x))]
        assert math.isclose(whole, np.mean(singles), rel_tol=1e-5) is per_sample
        distiller.close()


@given(st.floats(0.5, 8), st.integers(2, 5))
def test_a_temperature_softens_both_and_keeps_the_size_of_the_gradient(t: float, n: int) -> None:
    torch.manual_seed(n)
    student, teacher = nn.Linear(6, CLASSES).double(), nn.Linear(6, CLASSES).double()
    x = torch.randn(n, 6, dtype=torch.float64)
    distiller = Distiller(student, teacher, Terms(1, 0, 0, 0, temperature=t))
    loss, scores = distiller(x, torch.zeros(n, dtype=torch.int64))
    a, b = numpy_of(scores) / t, numpy_of(teacher(x)) / t
    soft = np.exp(b) / np.exp(b).sum(1, keepdims=True)
    log = a - np.log(np.exp(a).sum(1, keepdims=True))
    assert float(loss.detach()) == pytest.approx(t * t * float(-(soft * log).sum(1).mean()))
    (grad,) = torch.autograd.grad(loss, scores)
    np.testing.assert_allclose(grad.numpy(), t * (np.exp(log) - soft) / n, atol=1e-12)


def test_soft_targets_of_one_class_are_that_class() -> None:
    student, teacher = nn.Linear(6, CLASSES), nn.Linear(6, CLASSES)
    x, y = torch.randn(4, 6), torch.randint(CLASSES, (4,))
    distiller = Distiller(student, teacher)
    hard, soft = distiller(x, y)[0], distiller(x, functional.one_hot(y, CLASSES).float())[0]
    torch.testing.assert_close(hard, soft)
    mixed = 0.3 * functional.one_hot(y, CLASSES) + 0.7 / CLASSES
    distiller(x, mixed)
    log = student(x).log_softmax(1)
    torch.testing.assert_close(distiller.parts["labels"], -(mixed * log).sum(1).mean().detach())


def test_relations_act_across_widths_where_hidden_states_cannot() -> None:
    student, teacher = timm_model("vit"), timm_model("vit", embed_dim=48)
    x, y = batch()
    with pytest.raises(ValueError, match=r"hidden 0: \(3, 5, 24\) in the student and \(3, 5, 48\)"):
        Distiller(student, teacher)(x, y)
    distiller = Distiller(student, teacher, Terms(hidden=0))
    distiller(x, y)[0].backward()
    assert distiller.uses == ("logits", "labels", "relations")
    assert float(distiller.parts["relations"]) > 0


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES)
    )


def test_without_attention_only_the_scores_are_compared_and_the_distiller_says_so() -> None:
    student, teacher, (x, y) = cnn(), cnn(), batch()
    distiller = Distiller(student, teacher)
    assert distiller.uses == ("logits", "labels")
    assert Terms.for_model(student) == distiller.terms == Terms(relations=0, hidden=0)
    loss, scores = distiller(x, y)
    loss.backward()
    soft = teacher(x).softmax(1)
    plain = -(soft * scores.log_softmax(1)).sum(1).mean() + 0.5 * functional.cross_entropy(
        scores, y
    )
    torch.testing.assert_close(loss, plain)


@pytest.mark.parametrize("term", ["relations", "hidden"])
def test_a_term_that_cannot_act_is_refused_before_anything_is_hooked(term: str) -> None:
    transformer, other = Encoder(True), cnn()
    terms = Terms(**{"relations": 0.0, "hidden": 0.0} | {term: 1.0})
    for models in ((other, transformer), (transformer, other)):
        role = "student" if models[0] is other else "teacher"
        with pytest.raises(ValueError, match=rf"{term}' cannot act: the {role} \(Sequential\)"):
            Distiller(*models, terms=terms)
    assert count_hooks(transformer) == 0
    assert Distiller(transformer, other).uses == ("logits", "labels")
    assert Terms.for_model(transformer) == Terms()


def test_an_attention_that_is_in_no_block_has_relations_and_no_hidden_states() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attentions = nn.ModuleList([nn.MultiheadAttention(8, 2, batch_first=True)])
            self.head = nn.Linear(8, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.attentions[0](query=x, key=x, value=x)[0].mean(1))

    student, teacher = Bare(), Bare()
    distiller = Distiller(student, teacher)
    assert distiller.uses == ("logits", "labels", "relations")
    x = torch.randn(2, 4, 8)
    distiller(x, torch.tensor([0, 1]))
    total = 0.0
    ours, theirs = (projected(model.attentions[0], x) for model in (student, teacher))
    for a, b in zip(ours, theirs, strict=True):
        total += plain_distance(relation(a, 2, 2), relation(b, 2, 2), False)
    assert float(distiller.parts["relations"]) == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_with_keys_and_values_of_their_own_width(batch_first: bool) -> None:
    class Cross(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(
                8, 2, bias=False, kdim=6, vdim=4, batch_first=batch_first
            )
            self.head = nn.Linear(8, CLASSES)

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            x = [q, k, v] if batch_first else [t.transpose(0, 1) for t in (q, k, v)]
            return self.head(self.attention(*x)[0].mean(1 if batch_first else 0))

    student, teacher = Cross(), Cross()
    given_ = torch.randn(2, 3, 8), torch.randn(2, 5, 6), torch.randn(2, 5, 4)
    distiller = Distiller(student, teacher, Terms(hidden=0, per_sample=True))
    distiller(given_, torch.tensor([0, 1]))
    total = 0.0
    for name, x in zip(("q", "k", "v"), given_, strict=True):
        sides = []
        for model in (student, teacher):
            weight = getattr(model.attention, f"{name}_proj_weight")
            sides.append(relation(x @ weight.T, 2, 2))
        total += plain_distance(*sides, per_sample=True)
    assert float(distiller.parts["relations"]) == pytest.approx(total, rel=1e-5)


def test_a_padding_mask_does_not_lead_past_the_hooks() -> None:
    """In eval mode and without gradients PyTorch would pack the tokens into a nested tensor."""

    class Padded(Encoder):
        def forward(self, x: Tensor) -> Tensor:
            tokens = self.embed(x.reshape(len(x), -1, 48))
            padding = torch.arange(tokens.shape[1]).expand(len(x), -1) > 12
            return self.head(self.body(tokens, src_key_padding_mask=padding).mean(1))

    student, teacher = stirred(Padded(True), 1), stirred(Padded(True), 2)
    distiller, (x, y) = Distiller(student, teacher), batch()
    with torch.no_grad():
        without = distiller(x, y)[0]
    torch.testing.assert_close(without, distiller(x, y)[0].detach())
    assert torch.backends.mha.get_fastpath_enabled()


def count_hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize("family", list(FAMILIES))
def test_close_takes_every_hook_off(family: str) -> None:
    (student, teacher), (x, y) = pair(family), batch()
    before = count_hooks(student), count_hooks(teacher)
    distiller = Distiller(student, teacher)
    assert count_hooks(student) > before[0]
    distiller.close()
    assert (count_hooks(student), count_hooks(teacher)) == before
    with pytest.raises(RuntimeError, match=r"ran past the hooks .* keep it open"):
        distiller(x, y)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_copies_of_a_watched_student_are_free_of_it(family: str) -> None:
    """Validation copies the student in the middle of training."""
    (student, teacher), (x, y) = pair(family), batch()
    pb.binarize(student, "bnn++")
    size = len(pickle.dumps(student))
    distiller = Distiller(student, teacher)
    before, _ = distiller(x, y)
    student(x)
    assert len(pickle.dumps(student)) - size < len(pickle.dumps(teacher)) / 4
    twins = [pb.hardened(student), copy.deepcopy(student), pickle.loads(pickle.dumps(student))]
    for twin in twins:
        with torch.no_grad():
            for p in twin.parameters():
                p.zero_()
        twin(x)
    after, _ = distiller(x, y)
    assert torch.equal(before.detach(), after.detach())


def test_an_error_in_the_student_leaves_nothing_on_the_tape() -> None:
    student, teacher = pair("encoder")
    distiller, (x, y) = Distiller(student, teacher), batch()
    expected = distiller(x, y)[0].detach()

    def fails(x: Tensor) -> Tensor:
        student(x)
        raise KeyError("in the middle")

    with pytest.raises(KeyError):
        distiller(x, y, run=fails)
    copy.deepcopy(student)  # would fail on tensors of a graph
    assert torch.equal(distiller(x, y)[0].detach(), expected)


@pytest.mark.parametrize("family", ["vit", "encoder"])
@pytest.mark.parametrize("method", ["", "bnn"])
def test_under_autocast_the_loss_is_float32_and_near(family: str, method: str) -> None:
    (student, teacher), (x, y) = pair(family), batch()
    if method:
        pb.binarize(student, method)
    distiller = Distiller(student, teacher)
    exact = distiller(x, y)[0].detach()
    with torch.autocast("cpu", torch.bfloat16):
        loss, scores = distiller(x, y)
    assert scores.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.detach(), exact, rtol=0.1, atol=0.0)
    loss.backward()
    assert all(bool(p.grad.isfinite().all()) for p in student.parameters() if p.grad is not None)


def test_half_precision_does_not_overflow_in_the_loss() -> None:
    """Values of a thousand are fine in float16; their relations, of a million, are not."""
    (student, teacher), (x, y) = pair("encoder"), batch()
    with torch.no_grad():
        for layer in student.body.layers:
            layer.self_attn.in_proj_weight[16:].mul_(500)
    distiller = Distiller(student, teacher)
    exact = distiller(x, y)[0].detach()
    with torch.autocast("cpu", torch.float16):
        loss, _ = distiller(x, y)
    torch.testing.assert_close(loss.detach(), exact, rtol=0.05, atol=0.0)


@pytest.fixture
def one_process() -> Any:
    if not torch.distributed.is_available():
        pytest.skip("torch without distributed")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", ["vit", "encoder"])
def test_a_student_inside_ddp_learns_the_same(family: str, one_process: Any) -> None:
    (student, teacher), (x, y) = pair(family), batch()
    pb.binarize(student, "bnn++")
    distiller = Distiller(student, teacher)
    expected = gradients(student, distiller(x, y)[0])
    wrapped = nn.parallel.DistributedDataParallel(student)
    for given_ in (distiller, Distiller(wrapped, teacher)):
        got = gradients(student, given_(x, y, run=wrapped)[0])
        assert got.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(got[name], value, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "method"), [("vit", "bnn++"), ("encoder", "bnn++"), ("encoder", "")]
)
def test_a_compiled_student_learns_the_same(family: str, method: str) -> None:
    build = {"vit": lambda: timm_model("vit", depth=1), "encoder": lambda: Encoder(True, 1)}[family]
    student, teacher, (x, y) = stirred(build(), 1), stirred(build(), 2), batch()
    if method:
        pb.binarize(student, method)
    distiller = Distiller(student, teacher)
    expected = gradients(student, distiller(x, y)[0])
    compiled = torch.compile(student, backend="eager", fullgraph=True)
    for _ in range(2):
        compiled(x)  # outside of a call the hooks are silent
        got = gradients(student, distiller(x, y, run=compiled)[0])
        for name, value in expected.items():
            torch.testing.assert_close(got[name], value, msg=name, rtol=1e-4, atol=1e-5)


MISUSES: dict[str, tuple[Callable[[], Any], str]] = {
    "one module": (
        lambda: (lambda m: Distiller(m, m))(cnn()),
        "student and teacher are one module",
    ),
    "negative": (lambda: Distiller(cnn(), cnn(), Terms(logits=-1)), "logits=-1 cannot weigh"),
    "nan": (lambda: Distiller(cnn(), cnn(), Terms(labels=math.nan)), "labels=nan cannot weigh"),
    "nothing": (lambda: Distiller(cnn(), cnn(), Terms(0, 0, 0, 0)), "no term acts: give one of"),
    "cold": (
        lambda: Distiller(cnn(), cnn(), Terms(relations=0, hidden=0, temperature=0)),
        "temperature=0 must be above 0",
    ),
    "shallow teacher": (
        lambda: Distiller(Encoder(True, 3), Encoder(True, 2))(*batch()),
        "the teacher has 2 layers and the student 3: take a teacher at least as deep",
    ),
    "classes": (
        lambda: Distiller(cnn(), nn.Sequential(cnn(), nn.Linear(CLASSES, 7)))(*batch()),
        r"scores: \(3, 5\) in the student and \(3, 7\) in the teacher; give both the same classes",
    ),
    "targets of another type": (
        lambda: Distiller(cnn(), cnn())(batch()[0], torch.zeros(3, dtype=torch.int32)),
        r"targets are torch.int32 \(3,\) for scores \(3, 5\): pass classes as int64",
    ),
    "targets of another size": (
        lambda: Distiller(cnn(), cnn())(batch()[0], torch.zeros(2, dtype=torch.int64)),
        r"targets are torch.int64 \(2,\)",
    ),
}


@pytest.mark.parametrize("name", list(MISUSES))
def test_misuse_is_answered_in_one_sentence(name: str) -> None:
    misuse, message = MISUSES[name]
    with pytest.raises(ValueError, match=message):
        misuse()


def test_more_heads_or_tokens_are_named() -> None:
    x, y = batch()
    with pytest.raises(ValueError, match=r"relations 0: \(3, 3, 5\) .* \(3, 6, 5\)"):
        Distiller(timm_model("vit"), timm_model("vit", num_heads=6))(x, y)
    with pytest.raises(ValueError, match=r"relations 0: \(3, 3, 5\) .* \(3, 3, 6\)"):
        Distiller(timm_model("vit"), timm_model("deit"))(x, y)


def test_two_answers_of_a_distilled_student_are_refused() -> None:
    student, teacher = timm_model("deit"), timm_model("deit")
    student.set_distilled_training(True)
    with pytest.raises(TypeError, match=r"answers with tuple.*set_distilled_training\(False\)"):
        Distiller(student.train(), teacher)(*batch())


@pytest.mark.parametrize("number", range(5))
@pytest.mark.filterwarnings("ignore::proxbit.SettingsWarning")
def test_every_snippet_of_the_page_runs(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[1] / "docs" / "protocols.md").read_text(encoding="utf-8")
    snippets = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(snippets) == 5
    names = {"pb": pb, "torch": torch, "model": timm_model("vit"), "loader": [batch(), batch()]}
    exec(snippets[number], names)
    assert pb.binary_weights(names["model"]) or number == 2


def test_binarizing_after_the_hooks_is_noticed_or_harmless() -> None:
    """A layer keeps its hooks; an attention that computes otherwise from then on cannot."""
    (student, teacher), (x, y) = pair("vit"), batch()
    distiller = Distiller(student, teacher)
    pb.binarize(student, "bc")
    loss, _ = distiller(x, y)
    assert_parts(distiller, loss, plain_parts(student, teacher, x, y, False))
    student, teacher = pair("encoder")
    distiller = Distiller(student, teacher)
    pb.binarize(student, "bc")
    with pytest.raises(RuntimeError, match="make the Distiller after binarize"):
        distiller(x, y)
