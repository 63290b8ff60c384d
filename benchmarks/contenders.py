"""Who takes part in the training-step benchmark: float, proxbit, torchao's PARQ, brevitas."""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam, Optimizer

import proxbit as pb
from proxbit.core.tasks import TASKS, TaskName

# Small steps: a memorized batch ends in denormal gradients, which are slow to multiply.
LEARNING_RATE = 1e-4


@dataclass
class Learner:
    """A model with the optimizer that trains it."""

    model: nn.Module
    optimizer: Optimizer

    def step(self, images: Tensor, labels: Tensor) -> None:
        functional.cross_entropy(self.model(images), labels).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


@dataclass(frozen=True)
class Contender:
    """A way to train: which task, by which method or package."""

    task: str
    method: str
    learner: Callable[[nn.Module], Learner]


def inner_layers(model: nn.Module) -> dict[str, nn.Conv2d | nn.Linear]:
    """The layers that become binary: all but the first (stem, patch embedding) and the last."""
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Conv2d | nn.Linear)
    }
    return {name: layers[name] for name in list(layers)[1:-1]}


def as_float(model: nn.Module) -> Learner:
    return Learner(model, Adam(model.parameters(), lr=LEARNING_RATE))


def ours(model: nn.Module, method: str, task: TaskName) -> Learner:
    kinds = {name: type(layer) for name, layer in inner_layers(model).items()}
    pb.binarize(model, method, task, relu=None if task == "BW" else nn.Hardtanh)
    missed = [name for name, kind in kinds.items() if type(model.get_submodule(name)) is kind]
    assert not missed, f"the peers binarize {missed} and {method} does not"
    learner = as_float(model)
    pb.attach(model, learner.optimizer, steps=1000)
    return learner


def parq(model: nn.Module) -> Learner:
    """BinaryConnect in torchao: the hard prox onto +-mean|w| of each output channel.

    A period of 1 renews the scale at each step as ours does, and is the faster choice here: other
    steps look each weight up with ``bucketize``.
    """
    from torchao.prototype.parq import LSBQuantizer, ProxHardQuant, QuantOptimizer

    binary = [layer.weight for layer in inner_layers(model).values()]
    taken = {id(weight) for weight in binary}
    rest = [weight for weight in model.parameters() if id(weight) not in taken]
    groups: list[dict[str, Any]] = [{"params": rest}, {"params": binary, "quant_bits": 1}]
    adam = Adam(groups, lr=LEARNING_RATE)
    parts = (adam, LSBQuantizer(), ProxHardQuant())
    return Learner(model, QuantOptimizer(*parts, quant_period=1, quant_per_channel=True))


def brevitas(model: nn.Module) -> Learner:
    """Binary weights of a constant scale with a clamped straight-through gradient."""
    for name, layer in inner_layers(model).items():
        model.set_submodule(name, brevitas_twin(layer))
    return as_float(model)


def brevitas_twin(layer: nn.Conv2d | nn.Linear) -> nn.Module:
    from brevitas.nn import QuantConv2d, QuantLinear
    from brevitas.quant import SignedBinaryWeightPerTensorConst as Binary

    options: dict[str, Any] = {"bias": layer.bias is not None, "weight_quant": Binary}
    twin: nn.Module
    if isinstance(layer, nn.Linear):
        twin = QuantLinear(layer.in_features, layer.out_features, **options)
    else:
        options |= {"stride": layer.stride, "padding": layer.padding, "groups": layer.groups}
        twin = QuantConv2d(layer.in_channels, layer.out_channels, layer.kernel_size, **options)
    twin.load_state_dict(layer.state_dict())
    return twin


PEERS = {
    "torchao": Contender("BW", "torchao PARQ", parq),
    "brevitas": Contender("BW", "brevitas", brevitas),
}


def contenders(methods: Sequence[str], console: Console) -> list[Contender]:
    peers = [peer for package, peer in PEERS.items() if installed(package, console)]
    own = [
        Contender(task, method, partial(ours, method=method, task=task))
        for task in TASKS
        for method in methods
    ]
    return [Contender("float", "-", as_float), *sorted(own + peers, key=lambda c: len(c.task))]


def installed(package: str, console: Console) -> bool:
    found = importlib.util.find_spec(package) is not None
    if not found:
        console.print(f"{package} is not installed: left out")
    return found
