"""Constants that are larger than their content: position tables and masks, written out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from proxbit.export.graphs import Graph

_LEAST = 1024  # values from which on it is worth a look


def share_columns(graph: Graph) -> None:
    """Hold a table of few different columns as these columns, and where each of them stands.

    A runtime puts them together again when it folds constants. Attention in windows adds a table
    of positions, in which each distance stands many times, and a mask of few patterns.
    """
    from onnx import TensorProto

    nodes: list[Any] = []
    indices: dict[bytes, str] = {}
    for held in list(graph.constants.values()):
        if (
            held.data_type != TensorProto.FLOAT
            or len(held.dims) < 3
            or math.prod(held.dims) < _LEAST
        ):
            continue
        values = graph.array(held.name)
        assert values is not None
        rows = values.reshape(-1, values.shape[-2] * values.shape[-1])
        table, places = np.unique(rows, axis=1, return_inverse=True)
        if 4 * table.size + 2 * places.size < 0.5 * values.nbytes:
            nodes += _gathered(graph, held, table, places.astype(np.uint16).ravel(), indices)
    Graph.replace(graph.proto.node, [*nodes, *graph.proto.node])
    graph.look()


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
