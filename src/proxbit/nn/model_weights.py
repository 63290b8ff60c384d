"""The binary weights and quantizers of a model, found wherever they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import nn

from proxbit.nn import BinaryWeight, Quantizer, parametrized


def binary_weights(model: nn.Module) -> list[BinaryWeight]:
    """Every binary weight of the model, in module order."""
    return [weight for name, module in model.named_modules() for weight in own(name, module)]


def own(name: str, module: Any) -> Iterator[BinaryWeight]:
    """The binary weights of one module alone, which has this name."""
    prefix = f"{name}." if name else ""
    if hasattr(module, "float_class"):
        yield from module.binary_weights(prefix)
    yield from parametrized.binary_weights(module, prefix)


def require_binarized(model: nn.Module) -> list[BinaryWeight]:
    """The binary weights of a model that must have some."""
    weights = binary_weights(model)
    if not weights:
        raise ValueError("this model is not binarized: call pb.binarize(model, ...) first")
    return weights


def once(weights: list[BinaryWeight]) -> list[BinaryWeight]:
    """List tied weights once: their bits are stored once, and a prox applied twice is another."""
    return list({(id(w.parameter), str(w.rows)): w for w in weights}.values())


def quantizers(model: nn.Module) -> list[Quantizer]:
    """Every quantizer of the model, of weights and of inputs."""
    return list(named_quantizers(model).values())


def named_quantizers(model: nn.Module) -> dict[str, Quantizer]:
    """The same, each under the name of its module."""
    return {name: m for name, m in model.named_modules() if isinstance(m, Quantizer)}


def saved_states(quantizers: Mapping[str, Quantizer]) -> dict[str, dict[str, Any]]:
    """Strength, step, unit and hardness of every quantizer, by name: plain numbers."""
    return {name: quantizer.saved() for name, quantizer in quantizers.items()}


def restore_states(
    quantizers: Mapping[str, Quantizer], weights: Iterable[BinaryWeight], states: dict[str, Any]
) -> None:
    """Take the states back, and bring the weights together with them."""
    for name, quantizer in quantizers.items():
        quantizer.restored(states[name])
    for weight in weights:
        weight.reconcile()


def latent_parameters(model: nn.Module) -> list[nn.Parameter]:
    """List the Parameters behind binary weights, each once, for their own optimizer group."""
    return list({id(w.parameter): w.parameter for w in binary_weights(model)}.values())


def set_strength(model: nn.Module, strength: float) -> None:
    """Set the strength of every quantizer by hand, instead of ``attach``'s schedule."""
    require_binarized(model)
    for quantizer in quantizers(model):
        quantizer.set_strength(float(strength))
