"""The graph of a file after PyTorch's exporter: our nodes get their final form."""

from __future__ import annotations

from collections import Counter
from itertools import chain, count
from typing import Any

import numpy as np

from proxbit.export.operators import BITS_IN, BITS_OUT, DOMAIN

NOTICE = "pip_install_proxbit_runtime"
_ACTIVATIONS = {"Relu": "relu", "Gelu": "gelu"}


class Graph:
    """A graph of ONNX with its constants by name, and who reads what."""

    def __init__(self, proto: Any) -> None:
        """Look at a GraphProto, which is changed in place."""
        self.proto = proto
        self.constants = {each.name: each for each in proto.initializer}
        self.look()

    def look(self) -> None:
        """Find out anew who makes and who reads each value."""
        self.makers = {name: node for node in self.proto.node for name in node.output if name}
        self.readers: dict[str, list[Any]] = {}
        for node in self.proto.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self.given = {value.name for value in self.proto.output}

    def only_reader(self, name: str) -> Any | None:
        """The one node that reads a value, where nothing else does."""
        found = self.readers.get(name, [])
        return found[0] if len(found) == 1 and name not in self.given else None

    def array(self, name: str) -> np.ndarray[Any, Any] | None:
        """A constant, or None where the value is none."""
        from onnx import numpy_helper

        held = self.constants.get(name)
        return None if held is None else numpy_helper.to_array(held)

    def keep(self, name: str, values: np.ndarray[Any, Any]) -> str:
        """Add a constant under a name that nobody has; its name."""
        from onnx import numpy_helper

        taken = self.constants.keys() | self.makers.keys()
        others = (f"{name}.{i}" for i in count())
        name = next(n for n in chain([name], others) if n not in taken)
        self.proto.initializer.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        self.constants[name] = self.proto.initializer[-1]
        return name

    def drop(self, nodes: list[Any]) -> None:
        """Take out nodes."""
        gone = {id(node) for node in nodes}
        kept = [node for node in self.proto.node if id(node) not in gone]
        self.replace(self.proto.node, kept)
        self.look()

    def sweep(self) -> None:
        """Take out constants that nobody reads."""
        self.look()
        used = self.readers.keys() | self.given
        self.replace(self.proto.initializer, [c for c in self.proto.initializer if c.name in used])
        self.constants = {each.name: each for each in self.proto.initializer}

    @staticmethod
    def replace(field: Any, kept: list[Any]) -> None:
        """Fill a repeated field of a message anew."""
        copies = [type(each).FromString(each.SerializeToString()) for each in kept]
        del field[:]
        field.extend(copies)


def attributes(node: Any) -> dict[str, Any]:
    """The attributes of a node as Python values."""
    from onnx import helper

    return {each.name: helper.get_attribute_value(each) for each in node.attribute}


def announce(graph: Graph) -> None:
    """Begin with a node that nobody reads: where the library is missing, the error names it."""
    from onnx import helper

    notice = helper.make_node(NOTICE, [], ["notice"], domain=DOMAIN)
    Graph.replace(graph.proto.node, [notice, *graph.proto.node])
    graph.look()


def ours(graph: Graph) -> list[Any]:
    """Our nodes, in their order."""
    return [node for node in graph.proto.node if node.domain == DOMAIN]


def settle(graph: Graph) -> None:
    """Give our nodes the names of their layers, and inputs and outputs their places."""
    names: Counter[str] = Counter()
    for node in ours(graph):
        found = attributes(node)
        bits = next(name for name in node.input if name.endswith("bits"))
        label = bits.removesuffix("bits").removesuffix(".")
        names[label] += 1
        node.name = label if names[label] == 1 else f"{label}.{names[label]}"
        if node.op_type.startswith("Binary"):
            x, *rest = node.input
            node.input[:] = ["", x, *rest] if found[BITS_IN] else [x, "", *rest]
            if found[BITS_OUT]:
                node.output[:] = ["", node.output[0]]
        while not node.input[-1]:
            del node.input[-1]
        kept = [each for each in node.attribute if each.name not in (BITS_IN, BITS_OUT)]
        Graph.replace(node.attribute, kept)
    graph.look()


def fold(graph: Graph) -> None:
    """Fold what comes right after our nodes into them: a batch norm, then an activation."""
    gone = []
    for node in ours(graph):
        if not node.output[0]:
            continue
        for step in (_fold_norm, _fold_activation):
            behind = graph.only_reader(node.output[0])
            if behind is not None and step(graph, node, behind):
                gone.append(behind)
                node.output[0] = behind.output[0]
                graph.readers[node.output[0]] = graph.readers.get(behind.output[0], [])
    graph.drop(gone)


def _fold_norm(graph: Graph, node: Any, norm: Any) -> bool:
    """Scale and bias with a batch norm folded in, by the formula of the engine."""
    if norm.op_type != "BatchNormalization" or "Conv" not in node.op_type:
        return False
    found = attributes(node)
    given = [graph.array(name) for name in norm.input[1:5]]
    if "activation" in found or any(each is None for each in given):
        return False
    gamma, beta, mean, variance = (np.asarray(each, np.float64) for each in given)
    at = 3 if node.op_type.startswith("Binary") else 2
    scale, bias = (
        graph.array(node.input[i]) if i < len(node.input) else None for i in (at, at + 1)
    )
    gain = gamma / np.sqrt(variance + attributes(norm).get("epsilon", 1e-5))
    moved = (0.0 if bias is None else bias.astype(np.float64)) - mean
    assert scale is not None
    wide = np.broadcast_to(scale.astype(np.float64), (found["shape"][0],))
    node.input.extend([""] * (at + 2 - len(node.input)))
    node.input[at] = graph.keep(f"{node.name}.scale", (wide * gain).astype(np.float32))
    node.input[at + 1] = graph.keep(f"{node.name}.bias", (moved * gain + beta).astype(np.float32))
    return True


def _fold_activation(graph: Graph, node: Any, behind: Any) -> bool:
    """ReLU, GELU and Hardtanh."""
    from onnx import helper

    found = attributes(behind)
    kind = _ACTIVATIONS.get(behind.op_type)
    if behind.op_type == "Clip":
        ends = [graph.array(name) for name in behind.input[1:3]]
        kind = "hardtanh" if [None if e is None else float(e) for e in ends] == [-1, 1] else None
    exact = found.get("approximate", b"none") == b"none"
    if kind is None or not exact or "activation" in attributes(node):
        return False
    node.attribute.append(helper.make_attribute("activation", kind))
    return True
