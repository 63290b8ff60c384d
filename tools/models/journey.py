"""The whole way of one model: binarize, train, harden, pack, save, load, compare."""

from __future__ import annotations

import math
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from entry import Entry
from torch import Tensor, nn

import proxbit as pb

METHODS = {"BW": "bnn++", "BWA": "bnn"}
STEPS = 3
# Of the largest output. BWA's integer sums are exact; in BW, and where an input stays float, a
# kernel adds in another order than torch does.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Record:
    """What became of a model.

    Attributes:
        entry: The model.
        task: "BW" or "BWA".
        binary: How many of its layers are binary.
        layers: How many modules own weights.
        bytes_float: Bytes of its Parameters and buffers.
        promised: Bytes of the packed file, as the report said before training.
        summed: The same, as the summary of the packed network says.
        bytes_packed: Bytes of the file.
        unused: Binary weights that the hard network does not use on the example.
        constant: How many binary layers see inputs of one sign only, as behind a ReLU.
        told: Whether the report of ``binarize`` warns of such inputs, or how to find them.
        changed: Binary weights whose values the loaded network does not have exactly.
        difference: The largest difference between an output of the loaded network and of the hard
            one, as a share of the largest output; NaN if it did not come so far.
        exact: Whether every binary layer has a binary input, so that outputs must be equal.
        remarks: What is special about it: parametrized layers, and others that stay float.
        error: Where it broke, in one line; empty if it did not.
        seconds: How long it took.
    """

    entry: Entry
    task: str
    binary: int = 0
    layers: int = 0
    bytes_float: int = 0
    promised: int = 0
    summed: int = 0
    bytes_packed: int = 0
    unused: tuple[str, ...] = ()
    constant: int = 0
    told: bool = False
    changed: tuple[str, ...] = ()
    difference: float = math.nan
    exact: bool = False
    remarks: tuple[str, ...] = ()
    error: str = ""
    seconds: float = 0.0

    @property
    def broken(self) -> tuple[str, ...]:
        """The promises that were not kept, a sentence each."""
        if self.error:
            return (self.error,)
        sizes = {self.promised, self.summed, self.bytes_packed}
        allowed = 0.0 if self.exact else TOLERANCE
        checks = {
            f"outputs differ by {self.difference:.1e}": not self.difference <= allowed,
            f"not used: {few(self.unused)}": bool(self.unused),
            f"other weights in {few(self.changed)}": bool(self.changed),
            f"sizes differ: {self.promised}, {self.summed}, {self.bytes_packed}": len(sizes) > 1,
        }
        return tuple(text for text, wrong in checks.items() if wrong)


def travel(entry: Entry, task: str) -> Record:
    """Send one model the whole way; an exception on it becomes the record's error."""
    began, record = time.monotonic(), Record(entry, task)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        try:
            record = _travel(record)
        except Exception as error:  # whatever breaks in a model of others belongs in its record
            first = str(error).strip().partition("\n")[0]
            record = replace(record, error=f"{type(error).__name__}: {first}")
    return replace(record, seconds=time.monotonic() - began)


def _travel(record: Record) -> Record:
    entry = record.entry
    model, example = entry.build(), entry.example()
    enliven(model)
    report = pb.binarize(model, METHODS[record.task], record.task, **dict(entry.options))  # type: ignore[arg-type]
    record = replace(
        record, binary=len(report.binary), layers=len(report.layers),
        bytes_float=report.bytes_float, promised=report.bytes_packed, remarks=remarks(report),
    )  # fmt: skip
    floats = any("parametrized" in line.why for line in report.layers)
    told = any("constant" in note for note in report.notes)
    record = replace(record, told=told, exact=record.task != "BW" and not floats)
    train(model, example)
    hard = pb.harden(model).eval()
    batch = joined([entry.example() for _ in range(8)])
    pb.recalibrate(hard, [batch])
    seen = pb.probe(hard, batch)  # a few images may give inputs of one sign by chance
    record = replace(record, unused=seen.unused, constant=len(seen.constant))
    net = pb.pack(hard)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "net.safetensors"
        pb.save(net, path)
        loaded = pb.load(path, entry.build())
        record = replace(
            record, summed=pb.summary(net).bytes_packed, bytes_packed=path.stat().st_size
        )
    record = replace(record, changed=tuple(changed(hard, net) + changed(hard, loaded)))
    expected = outputs(hard, example)
    found = [deviation(outputs(each, example), expected) for each in (net, loaded)]
    return replace(record, difference=max(found))


@torch.no_grad()
def enliven(model: nn.Module) -> None:
    """Give every layer a say: random weights as they come often leave the output untouched by some.

    Layer scales begin at 1e-6, last norms of a block at 0, and attention with weights of 0.02 is
    flat; then a wrong layer would not show in the outputs.
    """
    for module in model.modules():
        weight = module._parameters.get("weight")
        if weight is not None and weight.dim() >= 2 and not isinstance(module, nn.Embedding):
            weight.normal_(std=(weight.numel() / weight.shape[0]) ** -0.5)
    for parameter in model.parameters():
        if parameter.numel() == max(parameter.shape, default=1):
            parameter += 0.1 * torch.randn_like(parameter)


def changed(hard: nn.Module, net: nn.Module) -> list[str]:
    """The binary weights that are not, value for value, those of the hard model."""
    return [
        weight.name
        for weight in pb.binary_weights(hard)
        if not torch.equal(_value(net, weight.name), _value(hard, weight.name))
    ]


def _value(model: nn.Module, name: str) -> Tensor:
    """A weight by its name, which for one of attention's three ends with [q], [k] or [v]."""
    owner, _, attribute = name.rpartition(".")
    module: Any = model.get_submodule(owner)
    if not attribute.endswith("]"):
        return getattr(module, attribute)  # type: ignore[no-any-return]
    which = "qkv".index(attribute[-2])
    if hasattr(module, "projections"):
        return module.projections[which].weight  # type: ignore[no-any-return]
    return module.in_proj_weight.chunk(3)[which]  # type: ignore[no-any-return]


# Why layers stay float in every model, or what is obvious from their names.
_USUAL = ("first ", "last ", "patch embedding", "embedding", "1x1 shortcut", "free parameters")


def remarks(report: Any) -> tuple[str, ...]:
    """Counted: what is parametrized and why, and what stays float for no usual reason."""
    reasons = Counter(
        line.why.removesuffix("; its input stays float").partition(": pass ")[0]
        for line in report.layers
        if line.why and not line.why.startswith(_USUAL)
    )
    frozen = [note.partition(" (")[0] for note in report.notes if "are frozen" in note]
    return (*(f"{count} {why}" for why, count in reasons.items()), *frozen)


def few(names: tuple[str, ...]) -> str:
    """The first names, and how many there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def train(model: nn.Module, example: Any) -> None:
    """Take a few steps towards nothing in particular."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    pb.attach(model, optimizer, steps=STEPS)
    model.train()
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = sum((out - 1).square().mean() for out in tensors(call(model, example)))
        if not bool(torch.as_tensor(loss).isfinite()):
            raise ValueError(f"the loss is {float(loss)}")
        torch.as_tensor(loss).backward()
        optimizer.step()


def joined(examples: list[Any]) -> Any:
    """One large batch: the variance of a few values may be so small that it magnifies rounding."""
    if isinstance(examples[0], dict):
        return {key: torch.cat([each[key] for each in examples]) for key in examples[0]}
    return torch.cat(examples)


def call(model: nn.Module, example: Any) -> Any:
    """The model with one input, or with a dict of keywords."""
    return model(**example) if isinstance(example, dict) else model(example)


@torch.no_grad()
def outputs(model: nn.Module, example: Any) -> list[Tensor]:
    """What the model gives, as a list of float tensors."""
    return list(tensors(call(model.eval(), example)))


def tensors(result: Any) -> Iterator[Tensor]:
    """The float tensors inside whatever a model returns."""
    if isinstance(result, Tensor):
        if result.is_floating_point():
            yield result
    elif isinstance(result, Mapping):
        yield from tensors(tuple(result.values()))
    elif isinstance(result, tuple | list):
        for item in result:
            yield from tensors(item)
    elif hasattr(result, "__dict__"):  # caches of transformers
        yield from tensors(vars(result))


def deviation(found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference as a share of the largest value, over all tensors."""
    shares = [
        float((a - b).abs().max() / b.abs().max()) if b.numel() else 0.0
        for a, b in zip(found, expected, strict=True)
    ]
    return max(shares) if all(math.isfinite(share) for share in shares) else math.inf
