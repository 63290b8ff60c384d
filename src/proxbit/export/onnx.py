"""ONNX files of hard and packed networks, for other runtimes and for tools that look for bits.

The file holds what the hard model computes, not how PyTorch came to it: every binary weight is a
constant, every binary input the sign bit of a float, every sum of +-1 products an exact integer.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from proxbit._version import __version__
from proxbit.engine.copying import packed_copy
from proxbit.engine.fusing import unfuse
from proxbit.engine.packed import packed_layers
from proxbit.engine.plan import Planned
from proxbit.engine.routes import usual_input
from proxbit.engine.unpacked import facts_of, unpacked_weights
from proxbit.export.compact import compact, pack_signs, share_columns
from proxbit.export.dialects import BIPOLAR, STANDARD, as_constants, dense_layer, nbits_layer
from proxbit.export.graphs import Graph, announce, fold, ours, settle
from proxbit.export.layouts import LAST, move_channels_last
from proxbit.export.operators import as_operators, exchanged
from proxbit.export.translation import fixed_lengths, translate, translate_freely
from proxbit.nn.model_weights import binary_weights, require_binarized
from proxbit.util.files import require_place, write_atomically
from proxbit.util.text import few, require_known, size

OPERATORS = ("standard", "proxbit", "qonnx", "matmulnbits")
DIALECTS = {"standard": STANDARD, "qonnx": BIPOLAR}
OPSETS = range(18, 24)
LIMIT = 2**31  # bytes: what one protobuf message can hold


@dataclass(frozen=True)
class OnnxFile:
    """The ONNX file that was written.

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
    path: str | os.PathLike[str],
    example: Any = None,
    *,
    operators: str = "standard",
    opset: int = OPSETS[0],
    fixed_batch: bool = False,
    labels: Sequence[str] | None = None,
    input: dict[str, Any] | None = None,
) -> OnnxFile:
    """Write a hard or packed network as one ONNX file, whole or not at all.

    The model stays as it is; it is written in eval mode. The first dimension of the first input
    becomes free, and so does that of every other input with the same length, unless the model fixes
    it, or you do.

    Args:
        model: A model after ``pb.harden``, in float32, or what ``pb.pack`` or ``pb.load`` gave.
        path: Where the file goes.
        example: An input (or tuple of inputs, or dict of keywords). A network that knows the size
            of its images needs none.
        operators: "standard": operators of ONNX alone, for every runtime, weights as floats.
            "proxbit": one bit per weight, for ONNX Runtime with ``proxbit-runtime``. "qonnx":
            BipolarQuant, for tools such as FINN that look for it. "matmulnbits": linear layers of
            BW in ONNX Runtime's own 2-bit format.
        opset: Version of the standard operators, 18 to 23.
        fixed_batch: Keep the batch size of the example, 1 where none is given.
        labels: Names of the classes, for the file's metadata; those of a loaded network are kept.
        input: As for ``pb.save``, for the file's metadata.
    """
    target = _check_target(path, operators, opset)
    _check_model(model)
    given = _example(model, example)
    network = _prepared(model, operators)
    program = (translate if fixed_batch else translate_freely)(network, given, opset)
    proto = program.model_proto
    _forget_sources(proto)
    inputs = _name_batch(proto.graph, fixed_lengths(program))
    if operators == "proxbit":
        _use_operators(proto.graph, opset)
    _describe(proto, model, labels, input)
    content = proto.SerializeToString(deterministic=True)
    write_atomically(target, content)
    return OnnxFile(target, len(content), opset, inputs)


def _prepared(model: nn.Module, operators: str) -> nn.Module:
    """A copy in eval mode whose binary layers are as the file is to hold them."""
    if operators in ("standard", "qonnx") and not _is_packed(model):
        return as_constants(model, DIALECTS[operators])
    net = (copy.deepcopy(model) if _is_packed(model) else packed_copy(model)).eval()
    if isinstance(vars(net).get("forward"), Planned):  # plans are for torch alone
        del net.__dict__["forward"]
    if operators == "proxbit":
        return as_operators(net)
    unfuse(net)  # puts back the modules that packed layers compute
    if operators == "matmulnbits":
        return exchanged(net, nbits_layer)
    return exchanged(net, partial(dense_layer, dialect=DIALECTS[operators]))


def _is_packed(model: nn.Module) -> bool:
    return bool(packed_layers(model)) or any(True for _ in unpacked_weights(model))


def _use_operators(graph: Any, opset: int) -> None:
    """Bring our nodes into their final form."""
    found = Graph(graph)
    settle(found)
    fold(found)
    shapes = {value.name: tuple(value.type.tensor_type.shape.dim) for value in graph.value_info}
    last = move_channels_last(found, shapes)
    pack_signs(found)
    share_columns(found)
    found.sweep()
    announce(found)
    # ONNX Runtime works out the shapes of all others by itself.
    results = {name for node in ours(found) for name in node.output if name}
    Graph.replace(graph.value_info, [v for v in graph.value_info if v.name in results])
    for value in graph.value_info:
        if value.name in last:
            dims = value.type.tensor_type.shape.dim
            Graph.replace(dims, [dims[i] for i in LAST])
    compact(found, opset)


def _describe(
    proto: Any, model: nn.Module, labels: Sequence[str] | None, input: dict[str, Any] | None
) -> None:
    """The facts that a loader wants: the classes, and what an input looks like."""
    known = facts_of(model).told(labels, input)
    proto.producer_name, proto.producer_version = "proxbit", __version__
    facts = {"proxbit.labels": known.labels, "proxbit.input": known.input}
    for key, value in facts.items():
        if value is not None:
            entry = proto.metadata_props.add()
            entry.key, entry.value = key, json.dumps(value, ensure_ascii=False)


def _example(model: nn.Module, example: Any) -> Any:
    if example is not None:
        return example
    usual = usual_input(model)
    if usual is not None:
        return usual
    form = facts_of(model).input
    if form is not None and "shape" in form:
        return torch.zeros(1, *form["shape"])
    raise ValueError("this network does not know its input: give an example, example=")


def _forget_sources(proto: Any) -> None:
    """Take out PyTorch's notes on each node: folders and source lines of the one who exported."""
    graph = proto.graph
    values = (*graph.input, *graph.output, *graph.value_info, *graph.initializer)
    for part in (proto, graph, *graph.node, *values):
        part.ClearField("metadata_props")


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


def _check_target(path: str | os.PathLike[str], operators: str, opset: int) -> Path:
    target = Path(path)
    require_place(target)
    require_known("operators", operators, OPERATORS)
    if opset not in OPSETS:
        raise ValueError(f"opset is {OPSETS[0]} to {OPSETS[-1]}, not {opset}")
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise ValueError(f"ONNX files need {' and '.join(missing)}: pip install proxbit[onnx]")
    return target


def _check_model(model: nn.Module) -> None:
    weights = binary_weights(model) if _is_packed(model) else require_binarized(model)
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
