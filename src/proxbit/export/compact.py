"""The same graph in fewer bytes: no constant twice, no defaults written out, short names.

Signs with a scale, position tables and masks are larger than their content. Nodes of the standard
put each together again, once: a runtime folds what depends on constants alone when it opens a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np

from proxbit.export.graphs import Graph, attributes

_WORTH = 320  # bytes: what the nodes that put a constant together again take, and then some


def compact(graph: Graph, opset: int) -> None:
    """Make a finished graph small: in a small file, names and nodes are half of it.

    Args:
        graph: Without anything that nobody reads.
        opset: The version of the standard operators, which says what their defaults are.
    """
    _name_layers(graph)
    for node in graph.proto.node:
        if not node.domain:
            _leave_out_defaults(graph, node, opset)
    _share(graph)
    _shorten(graph)


def _name_layers(graph: Graph) -> None:
    """Name the standard nodes that read a layer's weight after it, and no others; none twice."""
    known = {node.name for node in graph.proto.node if node.domain}
    for node in graph.proto.node:
        if not node.domain:
            weights = [name for name in node.input if name.endswith(".weight")]
            layer = weights[0].removesuffix(".weight") if weights else ""
            node.name = "" if layer in known else layer
            known.add(layer)


def _share(graph: Graph) -> None:
    """Hold constants of the same content once."""
    first: dict[bytes, str] = {}
    kept: dict[str, str] = {}
    for held in graph.proto.initializer:
        unnamed = type(held).FromString(held.SerializeToString())
        unnamed.ClearField("name")
        kept[held.name] = first.setdefault(unnamed.SerializeToString(), held.name)
    for node in graph.proto.node:
        node.input[:] = [kept.get(name, name) for name in node.input]
    graph.sweep()


def _leave_out_defaults(graph: Graph, node: Any, opset: int) -> None:
    from onnx import defs, helper

    known = defs.get_schema(node.op_type, opset, "").attributes.items()
    held = {name: each.default_value for name, each in known if each.default_value.type}
    usual = {name: helper.get_attribute_value(each) for name, each in held.items()}
    found = attributes(node)
    shape = graph.array(node.input[1]) if node.op_type == "Reshape" else None
    if shape is not None and bool(shape.all()):
        usual["allowzero"] = found.get("allowzero")  # it says what a length of 0 means
    kept = [each for each in node.attribute if usual.get(each.name) != found[each.name]]
    Graph.replace(node.attribute, kept)


def _shorten(graph: Graph) -> None:
    """Number all values but those that come in and go out; layers keep their names as nodes."""
    taken = graph.given | {value.name for value in graph.proto.input} | {""}
    made = [name for node in graph.proto.node for name in node.output]
    free = (name for i in count() if (name := f"{i:x}") not in taken)
    names = [name for name in (*graph.constants, *made) if name not in taken]
    short = dict(zip(names, free, strict=False))
    for node in graph.proto.node:
        for field in (node.input, node.output):
            field[:] = [short.get(name, name) for name in field]
    for value in (*graph.proto.value_info, *graph.proto.initializer):
        value.name = short.get(value.name, value.name)
    graph.constants = {each.name: each for each in graph.proto.initializer}
    graph.look()


def pack_signs(graph: Graph) -> None:
    """Hold the binary weights of layers without a kernel of ours in bits, turned or not."""
    nodes: list[Any] = []
    for held, values in _large(graph, dims=2):
        scale = _scale(values)
        if values.size // 8 + scale.nbytes + _WORTH < values.nbytes:
            nodes += _signed(graph, held, values, scale)
    Graph.replace(graph.proto.node, [*nodes, *graph.proto.node])
    graph.sweep()


def _large(graph: Graph, dims: int) -> Iterator[tuple[Any, Any]]:
    """Constants of floats with at least so many dimensions that are worth a look."""
    from onnx import TensorProto

    for held in list(graph.constants.values()):
        if held.data_type == TensorProto.FLOAT and len(held.dims) >= dims:
            values = graph.array(held.name)
            assert values is not None
            if values.nbytes > _WORTH:
                yield held, values


def _scale(values: Any) -> Any:
    """The absolute values, with length 1 along each dimension in which they are all the same.

    >>> _scale(np.array([[2.0, -2.0], [-3.0, -3.0]])).tolist()
    [[2.0], [3.0]]
    """
    scale = np.abs(values)
    for axis in range(values.ndim):
        one = scale.max(axis, keepdims=True)
        if bool((scale == one).all()):
            scale = one
    return scale


def _signed(graph: Graph, held: Any, values: Any, scale: Any) -> list[Any]:
    """The nodes that make a constant of signs and a scale again, under its own name."""
    from onnx import TensorProto, helper

    name = held.name
    held.name = f"{name}.whole"  # which nobody reads
    bits = np.packbits(~np.signbit(values).ravel(), bitorder="little")
    known: dict[str, Any] = {
        "bits": bits[:, None], "places": np.arange(8, dtype=np.uint8), "one": np.ones(1, np.uint8),
        "line": np.array([-1]), "start": np.array([0]), "count": np.array([values.size]),
        "shape": np.array(values.shape), "scale": scale,
    }  # fmt: skip
    at = {part: graph.keep(f"{name}.{part}", each) for part, each in known.items()}

    def node(kind: str, given: list[str], made: str, **options: Any) -> Any:
        names = [at.get(each, f"{name}.{each}") for each in given]
        return helper.make_node(kind, names, [f"{name}.{made}" if made else name], **options)

    whole = values.size % 8 == 0  # no bits at the end that mean nothing
    row = node("Reshape", ["plus", "line"], "row")
    cut = [row, node("Slice", ["row", "start", "count"], "cut")]
    return [
        node("BitShift", ["bits", "places"], "moved", direction="RIGHT"),
        node("BitwiseAnd", ["moved", "one"], "lowest"),
        node("Cast", ["lowest"], "plus", to=TensorProto.BOOL),
        *([] if whole else cut),
        node("Reshape", ["plus" if whole else "cut", "shape"], "signs"),
        node("Neg", ["scale"], "minus"),
        node("Where", ["signs", "scale", "minus"], ""),
    ]


def share_columns(graph: Graph) -> None:
    """Hold a table of few different columns as these columns, and where each of them stands.

    Attention in windows adds a table of positions, in which each distance stands many times, and a
    mask of few patterns.
    """
    nodes: list[Any] = []
    indices: dict[bytes, str] = {}
    for held, values in _large(graph, dims=3):
        table, places = _columns(values.reshape(-1, values.shape[-2] * values.shape[-1]))
        new = 0 if places.tobytes() in indices else places.nbytes
        if table.nbytes + new + _WORTH < values.nbytes:
            nodes += _gathered(graph, held, table, places, indices)
    Graph.replace(graph.proto.node, [*nodes, *graph.proto.node])
    graph.sweep()


def _columns(rows: Any) -> tuple[Any, Any]:
    """The different columns in the order in which they first come, and the place of each column.

    In this order tables of one pattern have the same places, whatever their values are.

    >>> table, places = _columns(np.array([[5, 3, 5], [6, 4, 6]]))
    >>> table.tolist(), places.tolist()
    ([[5, 3], [6, 4]], [0, 1, 0])
    """
    table, first, places = np.unique(rows, axis=1, return_index=True, return_inverse=True)
    order = np.argsort(first)
    small = np.uint8 if len(order) <= 2**8 else np.uint16 if len(order) <= 2**16 else np.int32
    return table[:, order], np.argsort(order)[places.ravel()].astype(small)


def _gathered(graph: Graph, held: Any, table: Any, places: Any, indices: dict[bytes, str]) -> Any:
    """The nodes that make a constant again, under its own name."""
    from onnx import TensorProto, helper

    name, shape = held.name, np.array(held.dims, np.int64)
    held.name = f"{name}.whole"  # which nobody reads
    key, made = places.tobytes(), []
    if key not in indices:
        index = graph.keep(f"{name}.places", places)
        indices[key] = f"{index}_int"
        made = [helper.make_node("Cast", [index], [indices[key]], to=TensorProto.INT32)]
    columns = graph.keep(f"{name}.columns", np.ascontiguousarray(table))
    sizes = graph.keep(f"{name}.shape", shape)
    return [
        *made,
        helper.make_node("Gather", [columns, indices[key]], [f"{name}.rows"], axis=1),
        helper.make_node("Reshape", [f"{name}.rows", sizes], [name]),
    ]
