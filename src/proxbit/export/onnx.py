"""ONNX files of hard models, for other runtimes and for tools that look for one-bit tensors.

The file holds what the hard model computes, not how PyTorch came to it: every binary weight is a
constant, every binary input the sign bit of a float, every sum of +-1 products an exact integer.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from proxbit.binarization.conversion import binary_weights
from proxbit.core import maps
from proxbit.nn import BinaryProduct, InputQuantizer, WeightQuantizer, WrapAccumulator, cyclic, wrap
from proxbit.nn.product import Operation
from proxbit.util.files import write_atomically
from proxbit.util.text import few, size

OPSETS = range(18, 24)
LIMIT = 2**31  # bytes: what one protobuf message can hold
BIPOLAR_QUANT = "qonnx.custom_op.general::BipolarQuant"


@dataclass(frozen=True)
class OnnxFile:
    """What was written.

    Attributes:
        path: The file.
        bytes: Its size.
        opset: The version of the standard operators in it.
        inputs: The shape of each input by name; "batch" stands for any number.
    """

    path: Path
    bytes: int
    opset: int
    inputs: dict[str, tuple[int | str, ...]]

    def __str__(self) -> str:
        """One line."""
        shapes = [f"{name} ({', '.join(map(str, dims))})" for name, dims in self.inputs.items()]
        return f"{self.path}: {size(self.bytes)}, opset {self.opset}, takes {', '.join(shapes)}"


def export_onnx(
    model: nn.Module,
    example: Any,
    path: str | os.PathLike[str],
    *,
    bipolar: bool = False,
    opset: int = OPSETS[0],
) -> OnnxFile:
    """Write a hard model as one ONNX file, whole or not at all; the model stays as it is.

    The network is written in eval mode. The first dimension of the first input becomes free, and so
    does that of every other input with the same length, unless the model itself fixes it.

    Args:
        model: A model after ``pb.harden``, in float32.
        example: An input (or tuple of inputs, or dict of keywords).
        path: Where the file goes.
        bipolar: Write binary tensors by QONNX's BipolarQuant, for tools such as FINN that look for
            it. Without it the file has standard operators only, for every runtime.
        opset: Version of the standard operators, 18 to 23.
    """
    target = _check_target(path, opset)
    _check_model(model)
    network = _as_constants(model, BIPOLAR if bipolar else STANDARD)
    program = _translate(network, example, opset)
    proto = program.model_proto
    _forget_sources(proto)
    inputs = _name_batch(proto.graph, _fixed(program.exported_program))
    content = proto.SerializeToString(deterministic=True)
    write_atomically(target, content)
    return OnnxFile(target, len(content), opset, inputs)


@dataclass(frozen=True)
class Dialect:
    """How a file says what is binary.

    Attributes:
        weights: From a weight of +-scale, and the scale, to the tensor that is multiplied.
        inputs: From a float input, and the scale 1, to its signs.
        sums: What makes a sum of +-1 products an integer for certain.
    """

    weights: Callable[[Tensor, Tensor], Tensor]
    inputs: Callable[[Tensor, Tensor], Tensor]
    sums: Callable[[Tensor], Tensor]


def _bipolar_quant(x: Tensor, scale: Tensor) -> Tensor:
    """The QONNX operator: scale where x >= 0, -scale elsewhere; it exists in a file only."""
    return torch.onnx.ops.symbolic(
        BIPOLAR_QUANT, (x, scale), dtype=x.dtype, shape=x.shape, version=1
    )


def _rounded(sums: Tensor) -> Tensor:
    """The nearest integers, none of them -0.0, which Round would make of -1e-9."""
    return (sums + 0.5).floor()


# Runtimes fold a scale behind a convolution into its weights, or convolve by fractions (Winograd):
# a sum of 0 is then 1e-9 or -1e-9, and the sign behind it a coin. Rounding forbids the first and
# mends the second. A tool that reads BipolarQuant knows by type that the sums are integers.
STANDARD = Dialect(lambda w, scale: w, lambda x, one: maps.sign(x), _rounded)
BIPOLAR = Dialect(_bipolar_quant, _bipolar_quant, lambda sums: sums)


class ConstantWeight(nn.Module):
    """A hard weight as it stands in the file, whatever Parameter it came from."""

    values: Tensor
    scale: Tensor

    def __init__(self, values: Tensor, scale: Tensor, dialect: Dialect) -> None:
        """Keep the tensors where the file finds them: as buffers."""
        super().__init__()
        self.register_buffer("values", values)
        self.register_buffer("scale", scale)
        self.dialect = dialect

    def forward(self, _: Tensor) -> Tensor:
        """The weight that is multiplied."""
        return self.dialect.weights(self.values, self.scale)


class FloatInputs(nn.Module):
    """A product whose weight alone is binary: the scale rides on the weight."""

    plain = True

    def __init__(self, weight: ConstantWeight) -> None:
        """Keep the weight, +-scale."""
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None, op: Operation) -> Tensor:
        """One product of floats."""
        return op(x, self.weight(weight), bias)


class BinaryInputs(nn.Module):
    """A product of signs: an integer sum, a register that may wrap it, then scale and bias."""

    plain = False
    one: Tensor
    scale: Tensor

    def __init__(self, product: BinaryProduct, latent: Tensor, dialect: Dialect) -> None:
        """Take the constants of a hard product and its weight."""
        super().__init__()
        signs, scale = product.weight_quantizer.split(latent)
        assert scale is not None and isinstance(product.input_quantizer, InputQuantizer)
        self.shape = (-1, *(1 for _ in range(product.trailing)))
        self.register_buffer("one", scale.new_ones(()))
        self.register_buffer("scale", scale.reshape(self.shape))
        self.nonzero = bool(scale.all())
        self.weight = ConstantWeight(signs, self.one, dialect)
        self.shift = product.input_quantizer.shift
        self.dialect, self.register = dialect, _register(product.accumulator)

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None, op: Operation) -> Tensor:
        """Signs, integer sum, register, scale, bias."""
        signs = self.dialect.inputs(x if self.shift is None else x - self.shift, self.one)
        sums = self.dialect.sums(op(signs, self.weight(weight), None))
        held = self.register(sums)
        if bias is not None:
            return held * self.scale + (bias.reshape(self.shape) + 0.0)
        if self.nonzero:
            return held * self.scale
        # No -0.0 where the scale is 0; runtimes would take out an addition of 0.
        return torch.zeros_like(self.scale) - held * -self.scale


def _register(accumulator: nn.Module) -> Callable[[Tensor], Tensor]:
    """What an accumulator makes of a sum, without its bookkeeping."""
    if isinstance(accumulator, WrapAccumulator):
        return partial(_wrapped, bits=accumulator.bits, k=accumulator.k)
    return nn.Identity()


def _wrapped(sums: Tensor, bits: int, k: float) -> Tensor:
    return cyclic(wrap(sums, bits), bits, k)


def _as_constants(model: nn.Module, dialect: Dialect) -> nn.Module:
    """A copy in eval mode in which every hard weight is a constant of the file."""
    network = copy.deepcopy(model).eval()
    hard = {w.quantizer: w.latent for w in binary_weights(network) if w.quantizer.hard}
    for name, product in list(network.named_modules()):
        if isinstance(product, BinaryProduct) and product.weight_quantizer in hard:
            latent = hard[product.weight_quantizer]
            network.set_submodule(name, _product(product, latent, dialect))
    for name, quantizer in list(network.named_modules()):
        if isinstance(quantizer, WeightQuantizer) and quantizer in hard:  # parametrized
            network.set_submodule(name, _weight(quantizer, hard[quantizer], dialect))
    return network


def _product(product: BinaryProduct, latent: Tensor, dialect: Dialect) -> nn.Module:
    if product.float_input:
        return FloatInputs(_weight(product.weight_quantizer, latent, dialect))
    return BinaryInputs(product, latent, dialect)


def _weight(quantizer: WeightQuantizer, latent: Tensor, dialect: Dialect) -> ConstantWeight:
    _, scale = quantizer.split(latent)
    assert scale is not None
    layout = getattr(quantizer, "layout", None)  # of a parametrized one that is turned
    if layout is not None:
        latent, scale = layout.back(latent), layout.back(scale.expand_as(latent))
    return ConstantWeight(latent.clone(), scale, dialect)


def _translate(network: nn.Module, example: Any, opset: int) -> Any:
    """The network as PyTorch's exporter translates it."""
    named = example if isinstance(example, dict) else None
    given = tuple(example) if isinstance(example, tuple | list) else (example,)
    with warnings.catch_warnings(), torch.no_grad():
        # PyTorch and onnxscript warn of their own inner workings.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        return torch.onnx.export(
            network,
            given if named is None else (),
            kwargs=named,
            dynamic_shapes=_free_batch(given if named is None else named),
            opset_version=opset,
            dynamo=True,
            verbose=False,
        )


def _free_batch(inputs: Any) -> Any:
    """For each input, which dimensions are free: the first, where it is the batch."""
    shapes = [t.shape for t in pytree.tree_leaves(inputs) if isinstance(t, Tensor) and t.dim()]
    batch = shapes[0][0] if shapes else None

    def free(leaf: Any) -> Any:
        batched = isinstance(leaf, Tensor) and leaf.dim() and leaf.shape[0] == batch
        return {0: torch.export.Dim.AUTO} if batched else None

    return pytree.tree_map(free, inputs)


def _forget_sources(proto: Any) -> None:
    """Take out PyTorch's notes on each node: folders and source lines of the one who exported."""
    graph = proto.graph
    values = (*graph.input, *graph.output, *graph.value_info, *graph.initializer)
    for part in (proto, graph, *graph.node, *values):
        part.ClearField("metadata_props")


def _fixed(exported: Any) -> dict[str, int]:
    """The lengths that a model fixed although they were offered as free, by PyTorch's symbol."""
    ranges = exported.range_constraints.items()
    return {str(symbol): int(r.lower) for symbol, r in ranges if r.lower == r.upper}


def _name_batch(graph: Any, fixed: dict[str, int]) -> dict[str, tuple[int | str, ...]]:
    """Call free dimensions "batch" and fixed ones by their length; return the inputs' shapes."""
    shapes = {value.name: value.type.tensor_type.shape.dim for value in graph.input}
    free = {dim.dim_param for dims in shapes.values() for dim in dims} - {""} - fixed.keys()
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in fixed:
                dim.dim_value = fixed[dim.dim_param]
            elif dim.dim_param in free:
                dim.dim_param = "batch"
    return {k: tuple(d.dim_param or d.dim_value for d in dims) for k, dims in shapes.items()}


def _check_target(path: str | os.PathLike[str], opset: int) -> Path:
    target = Path(path)
    if target.is_dir() or not target.parent.is_dir():
        why = "it is a folder" if target.is_dir() else f"there is no folder {str(target.parent)!r}"
        raise ValueError(f"cannot write {str(path)!r}: {why}")
    if opset not in OPSETS:
        raise ValueError(f"opset is {OPSETS[0]} to {OPSETS[-1]}, not {opset}")
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise ValueError(f"ONNX files need {' and '.join(missing)}: pip install proxbit[onnx]")
    return target


def _check_model(model: nn.Module) -> None:
    weights = binary_weights(model)
    if not weights:
        raise ValueError("this model is not binarized: call pb.binarize(model, ...) first")
    soft = [w.name for w in weights if w.quantizer.method.binary and not w.quantizer.hard]
    if soft:
        raise ValueError(f"this model is not hard ({few(soft)}): call pb.harden(model) first")
    tensors = [*model.parameters(), *model.buffers()]
    odd = {str(t.dtype) for t in tensors if t.is_floating_point()} - {"torch.float32"}
    if odd:
        raise ValueError(f"ONNX files are float32, this model has {min(odd)}: call model.float()")
    total = sum(t.numel() * t.element_size() for t in tensors)
    if total >= LIMIT:
        raise ValueError(f"an ONNX file is below {size(LIMIT)}, this model has {size(total)}")
