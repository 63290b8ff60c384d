"""Models that others wrote: binarize, train, probe, harden and restore without touching them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import proxbit as pb
from proxbit.binarization.relu import never_negative
from proxbit.util.compat import allow_torchvision
from proxbit.util.tracing import trace

pytestmark = [
    pytest.mark.slow,  # importing timm alone takes seconds
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning:timm.*"),
    # nn.TransformerEncoder tells in advance that it will not use nested tensors
    pytest.mark.filterwarnings("ignore:enable_nested_tensor"),
]


@dataclass(frozen=True)
class Case:
    """A model, an example, and the layers that must stay float by themselves."""

    build: Callable[[], nn.Module]
    example: Callable[[], Any]
    floats: tuple[str, ...]


def from_timm(name: str, size: int, floats: tuple[str, ...], **arguments: Any) -> Case:
    def build() -> nn.Module:
        allow_torchvision()
        timm = pytest.importorskip("timm", reason="needs timm")
        return timm.create_model(name, pretrained=False, num_classes=10, **arguments)

    return Case(build, lambda: torch.randn(2, 3, size, size), floats)


class BertLayer(nn.Module):
    """Self-attention with separate projections, as transformers writes it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.output = nn.Linear(width, width), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.intermediate, self.shrink = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5 + mask
        context = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = self.norm1(x + self.output(context))
        return self.norm2(x + self.shrink(functional.gelu(self.intermediate(x))))


class Bert(nn.Module):
    """Embeddings, layers, pooler and classifier; takes keywords and returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(30, 16), nn.Embedding(8, 16)
        self.norm = nn.LayerNorm(16)
        self.layers = nn.ModuleList(BertLayer(16, 2) for _ in range(2))
        self.pooler = nn.Linear(16, 16)
        self.classifier = nn.Linear(16, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Any]:
        places = torch.arange(input_ids.shape[1])
        x = self.norm(self.words(input_ids) + self.positions(places))
        mask = torch.zeros(1, 1, 1, 1)
        if attention_mask is not None:
            mask = (1.0 - attention_mask.float())[:, None, None, :] * -1e9
        for layer in self.layers:
            x = layer(x, mask)
        pooled = torch.tanh(self.pooler(x[:, 0]))
        return {"logits": self.classifier(pooled), "hidden": x, "length": input_ids.shape[1]}


def sentences() -> dict[str, Tensor]:
    mask = torch.ones(3, 6)
    mask[1, 4:] = 0
    return {"input_ids": torch.randint(30, (3, 6)), "attention_mask": mask}


class TorchEncoder(nn.Module):
    """PyTorch's own encoder, whose fused path reads weights without calling layers."""

    def __init__(self, activation: str) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.1, activation, batch_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(16, 3)

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        return self.head(self.body(x, src_key_padding_mask=padding).mean(1))


def tokens() -> tuple[Tensor, Tensor]:
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 4:] = True
    return torch.randn(3, 5, 16), padding


class BasicBlock(nn.Module):
    """As in torchvision: one ReLU module that is called twice."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.downsample = (
            nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )
            if stride != 1 or inside != outside
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """torchvision's ResNet, smaller."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(BasicBlock(8, 8, 1), BasicBlock(8, 8, 1))
        self.layer2 = nn.Sequential(BasicBlock(8, 16, 2), BasicBlock(16, 16, 1))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        return self.fc(torch.flatten(self.avgpool(self.layer2(self.layer1(x))), 1))


CASES: dict[str, Case] = {
    "timm resnet50": from_timm("resnet50", 32, ("conv1", "fc")),
    "timm vit": from_timm(
        "vit_tiny_patch16_224", 32, ("patch_embed.proj", "head"), img_size=32, patch_size=8
    ),
    "timm deit": from_timm(
        "deit_tiny_patch16_224", 32, ("patch_embed.proj", "head"), img_size=32, patch_size=8
    ),
    "timm swin": from_timm(
        "swin_tiny_patch4_window7_224", 56, ("patch_embed.proj", "head.fc"), img_size=56
    ),
    "timm nest": from_timm("nest_tiny", 64, ("patch_embed.proj", "head"), img_size=64),
    "bert": Case(Bert, sentences, ("words", "positions", "classifier")),
    "torch encoder, relu": Case(lambda: TorchEncoder("relu"), tokens, ("head",)),
    "torch encoder, gelu": Case(lambda: TorchEncoder("gelu"), tokens, ("head",)),
    "torchvision-like resnet": Case(ResNet, lambda: torch.randn(2, 3, 32, 32), ("conv1", "fc")),
}


def call(model: nn.Module, example: Any) -> Tensor:
    if isinstance(example, dict):
        return model(**example)["logits"]
    return model(*example) if isinstance(example, tuple) else model(example)


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize(("method", "task"), [("bnn++", "BW"), ("bnn", "BWA")])
def test_the_whole_way_there_and_back(name: str, method: str, task: Any) -> None:
    case = CASES[name]
    model, example = case.build().eval(), case.example()
    expected, keys = call(model, example).detach(), list(model.state_dict())
    types = [type(m) for m in model.modules()]

    report = pb.binarize(model, method, task, relu=nn.Hardtanh)
    assert list(model.state_dict()) == keys
    assert_choices(report, case)

    call(model, example).square().mean().backward()
    for weight in pb.binary_weights(model):
        grad = weight.parameter.grad
        assert grad is not None, weight.name
        assert bool(grad.isfinite().all()), weight.name
    assert pb.probe(model, example).ok, str(pb.probe(model, example))

    pb.restore(model)
    assert [type(m) for m in model.modules()] == types
    assert torch.equal(call(model, example), expected)

    pb.binarize(model, method, task, relu=nn.Hardtanh)
    pb.harden(model)
    probe = pb.probe(model, example)
    assert probe.ok, str(probe)
    assert len(probe.used) == len(pb.binary_weights(model))
    for weight in pb.binary_weights(model):
        w = weight.latent
        sizes = w.abs().amax(weight.quantizer.method.scale.dims(w), keepdim=True)
        assert torch.equal(w.abs(), sizes.expand_as(w)), weight.name
    with torch.no_grad():
        assert bool(call(model, example).isfinite().all())


def assert_choices(report: Any, case: Case) -> None:
    """Float are the ends and free parameters: nothing else."""
    floats = {line.name: line.why for line in report.layers if not line.binary}
    assert set(case.floats) <= set(floats)
    for name, why in floats.items():
        assert name in case.floats or why.startswith("free parameters"), (name, why)
    assert report.binary
    assert report.bytes_packed < report.bytes_float


@pytest.mark.parametrize(
    "name", ["timm resnet50", "torch encoder, relu", "torchvision-like resnet"]
)
def test_kept_relus_make_the_inputs_constant_that_are_noted_and_by_default_none_is(
    name: str,
) -> None:
    case = CASES[name]
    model, example = case.build().eval(), case.example()
    layers = [line.name for line in pb.binarize(model, "bnn", "BWA", relu="keep").binary]
    probe = pb.probe(model, example)
    pb.restore(model)
    graph = trace(model, (nn.Linear, nn.Conv1d, nn.Conv2d))
    known = {hit.layer for hit in never_negative(model, layers, graph)}
    assert not probe.unused
    assert probe.constant
    assert set(probe.constant) <= known
    report = pb.binarize(model, "bnn", "BWA")
    assert report.notes[0].startswith("replaced by Identity: ")
    assert pb.probe(model, example).ok


def test_a_padding_mask_still_hides_the_padding() -> None:
    """PyTorch's fused path would handle it; it is off, so ours must."""
    model, (x, padding) = TorchEncoder("gelu").eval(), tokens()
    pb.binarize(model, "bnn++")
    with torch.no_grad():
        hidden = model.body(x, src_key_padding_mask=padding)
        x[1, 4:] = 100.0
        again = model.body(x, src_key_padding_mask=padding)
    torch.testing.assert_close(hidden[1, :4], again[1, :4])


def test_bert_answers_the_same_to_keywords_in_any_order() -> None:
    model, example = Bert().eval(), sentences()
    pb.binarize(model, "bnn++", "BWA")
    first = call(model, example)
    assert torch.equal(first, call(model, dict(reversed(list(example.items())))))
    assert pb.probe(model, {"input_ids": example["input_ids"]}).ok
