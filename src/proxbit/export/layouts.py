"""Images with their channels last, between binary convolutions.

Our convolutions write a pixel's channels side by side, and read them best so; operators of the
standard want channels first. So each group of images that only our convolutions and elementwise
nodes touch keeps its channels last, where that saves more moves than its borders cost.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from proxbit.export.graphs import Graph, attributes, ours
from proxbit.export.operators import DOMAIN

LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
_ELEMENTWISE = frozenset(
    (
        "Abs", "Add", "Celu", "Clip", "Div", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid",
        "HardSwish", "Identity", "LeakyRelu", "Max", "Min", "Mish", "Mul", "Neg", "PRelu", "Pow",
        "Reciprocal", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign", "Sqrt", "Sub", "Tanh",
    )
)  # fmt: skip


def move_channels_last(graph: Graph, shapes: dict[str, tuple[Any, ...]]) -> set[str]:
    """Rewrite the graph; the values that have their channels last now.

    Args:
        graph: With our nodes in it.
        shapes: The shape of each value, as PyTorch's exporter noted it.
    """
    joining = [node for node in graph.proto.node if _images(graph, node, shapes) is not None]
    made = {node.output[0] for node in ours(graph) if _makes_image(node, shapes)}
    turnable = {node.output[0] for node in joining} | made
    last: set[str] = set()
    for group in _groups(graph, shapes, made):
        if _pays(graph, group, turnable):
            last |= group & turnable
    if last:
        _rewrite(graph, last)
    return last


def _is_conv(node: Any) -> bool:
    return node.domain == DOMAIN and node.op_type.endswith("Conv")


def _makes_image(node: Any, shapes: dict[str, tuple[Any, ...]]) -> bool:
    """Whether a node is a convolution of ours that gives float images."""
    return _is_conv(node) and len(shapes.get(node.output[0], ())) == 4


def _images(graph: Graph, node: Any, shapes: dict[str, tuple[Any, ...]]) -> list[str] | None:
    """The images that an elementwise node touches; None where it touches anything else."""
    if node.domain or node.op_type not in _ELEMENTWISE or len(node.output) != 1:
        return None
    names = [name for name in (*node.input, *node.output) if name]
    images = [name for name in names if name not in graph.constants]
    held = [len(graph.constants[name].dims) for name in names if name in graph.constants]
    fits = all(len(shapes.get(name, ())) == 4 for name in images) and max(held, default=0) <= 4
    return images if fits else None


def _groups(graph: Graph, shapes: dict[str, tuple[Any, ...]], made: set[str]) -> list[set[str]]:
    """Images that elementwise nodes join, so that they want one layout; those with ours in them."""
    group = {name: {name} for name in made}
    for node in graph.proto.node:
        names = _images(graph, node, shapes)
        if names is not None:
            joined: set[str] = set().union(*(group.get(name, {name}) for name in names))
            group |= dict.fromkeys(joined, joined)
    unique = {id(each): each for each in group.values()}
    return [each for each in unique.values() if each & made]


def _pays(graph: Graph, group: set[str], turnable: set[str]) -> bool:
    """Whether fewer moves are left than our convolutions would have to make."""
    saved = cost = 0
    moved = group & turnable
    for name in group:
        if name not in moved:
            cost += 1  # it is made with its channels first, and a copy of it is moved
            continue
        saved += _is_conv(graph.makers[name])
        readers = graph.readers.get(name, [])
        takes_last = [_is_conv(n) or _is_mean(graph, n) or n.output[0] in moved for n in readers]
        cost += name in graph.given or not all(takes_last)
    return saved > cost


def _is_mean(graph: Graph, node: Any) -> bool:
    """Whether a node takes the mean of an image's pixels."""
    if node.op_type != "ReduceMean" or node.domain or len(node.input) != 2:
        return False
    axes = graph.array(node.input[1])
    return axes is not None and sorted(int(a) % 4 for a in axes) == [2, 3]


class _Moves:
    """Transpose nodes, one for each value and direction, in front of whoever needs it first."""

    def __init__(self) -> None:
        self.before: dict[int, list[Any]] = defaultdict(list)
        self.behind: dict[int, list[Any]] = defaultdict(list)
        self.known: dict[tuple[str, tuple[int, ...]], str] = {}

    def of(self, name: str, order: tuple[int, ...], reader: int) -> str:
        """The name of a value with its dimensions in another order."""
        if (name, order) not in self.known:
            moved = f"{name}_{'last' if order == LAST else 'first'}"
            self.known[name, order] = moved
            self.before[reader].append(_transpose(name, moved, order))
        return self.known[name, order]


def _transpose(name: str, moved: str, order: tuple[int, ...]) -> Any:
    from onnx import helper

    return helper.make_node("Transpose", [name], [moved], name=f"{moved}_move", perm=order)


def _rewrite(graph: Graph, last: set[str]) -> None:
    from onnx import helper

    moves = _Moves()
    for place, node in enumerate(graph.proto.node):
        if _is_conv(node):
            for name, what in ((node.input[0], "input"), (node.output[0], "output")):
                if name in last:
                    node.attribute.append(helper.make_attribute(f"{what}_layout", "NHWC"))
        elif last.intersection(node.output):
            _turn_elementwise(graph, node, last, moves, place)
        elif last.intersection(node.input):
            _turn_reader(graph, node, last, moves, place)
    _insert(graph, moves, last)


def _turn_elementwise(graph: Graph, node: Any, last: set[str], moves: _Moves, place: int) -> None:
    for i, name in enumerate(node.input):
        held = graph.array(name)
        if held is not None and held.size > 1:
            lifted = held.reshape((1,) * (4 - held.ndim) + held.shape).transpose(LAST)
            node.input[i] = graph.keep(f"{name}.last", lifted.reshape(_without_ones(lifted.shape)))
        elif name and held is None and name not in last:
            node.input[i] = moves.of(name, LAST, place)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without the ones that come first.

    >>> _without_ones((1, 1, 1, 16))
    (16,)
    """
    return shape[next(i for i, n in enumerate(shape) if n != 1) :]


def _turn_reader(graph: Graph, node: Any, last: set[str], moves: _Moves, place: int) -> None:
    """Serve a reader that wants channels first: a mean changes its axes, others get a move."""
    if _is_mean(graph, node):
        node.input[1] = graph.keep("pixels", np.array([1, 2], np.int64))
        if attributes(node).get("keepdims", 1):
            out, node.output[0] = node.output[0], f"{node.output[0]}_last"
            moves.behind[place].append(_transpose(node.output[0], out, FIRST))
        return
    for i, name in enumerate(node.input):
        if name in last:
            node.input[i] = moves.of(name, FIRST, place)


def _insert(graph: Graph, moves: _Moves, last: set[str]) -> None:
    nodes = []
    for place, node in enumerate(graph.proto.node):
        nodes += [*moves.before[place], node, *moves.behind[place]]
    for value in graph.proto.output:  # it keeps its name and its layout
        if value.name in last:
            inner = f"{value.name}_inside"
            for node in nodes:
                for field in (node.input, node.output):
                    field[:] = [inner if name == value.name else name for name in field]
            nodes.append(_transpose(inner, value.name, FIRST))
    Graph.replace(graph.proto.node, nodes)
    graph.look()
