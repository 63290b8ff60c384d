"""Constants that are larger than their content: signs with a scale, position tables, masks.

Nodes of the standard put each together again, once: a runtime folds what depends on constants
alone when it opens a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from proxbit.export.graphs import Graph

_WORTH = 320  # bytes: what the nodes that put a constant together again take, and then some


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
