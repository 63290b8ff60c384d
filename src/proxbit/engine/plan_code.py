"""A graph as one function of Python in which every name is bound already.

In a small network, looking modules up by their names and the calls around their forwards cost as
much as some of the layers. A plan is for inputs of one shape, and for modules that nobody watches:
so forwards are called directly, tensors are at hand, and numbers that follow from shapes are
written down.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

# What has outputs whose shape follows from the shapes of its inputs, whatever their values are.
_FUNCTIONS: tuple[Any, ...] = (
    getattr, operator.add, operator.iadd, operator.sub, operator.mul, operator.imul,
    operator.truediv, operator.floordiv, operator.mod, operator.neg, operator.eq, operator.ne,
    operator.lt, operator.le, operator.gt, operator.ge, torch.add, torch.mul, torch.cat,
    torch.flatten, torch._assert, functional.layer_norm, functional.batch_norm, functional.linear,
    functional.relu, functional.gelu, functional.scaled_dot_product_attention,
)  # fmt: skip
_METHODS = (
    "size", "dim", "numel", "reshape", "view", "permute", "transpose", "flatten", "unflatten",
    "unbind", "contiguous", "expand", "mean", "sum", "unsqueeze", "squeeze", "chunk", "split",
    "add", "mul", "softmax", "sigmoid", "relu", "t",
)  # fmt: skip
_PLAIN = (bool, int, float, str, torch.dtype, torch.device)


class Plan:
    """A forward for inputs of one shape.

    Attributes:
        steps: What stands in it for several modules each.
        source: The function in words.
    """

    def __init__(self, graph: fx.Graph, held: dict[str, Any], steps: Iterable[object] = ()) -> None:
        """Write the function; ``held`` has the modules, steps and tensors that the graph names."""
        self.steps = tuple(steps)
        self.bound = SimpleNamespace()
        for number, node in enumerate(graph.nodes):
            if node.op in ("call_module", "get_attr"):
                value, name = held[str(node.target)], f"value_{number}"
                setattr(self.bound, name, value.forward if node.op == "call_module" else value)
                node.target = name
        code = graph.python_code("self")
        self.source, names = code.src, dict(code.globals)
        exec(self.source, names)
        self.forward: Callable[..., Any] = names["forward"]

    def __call__(self, x: Tensor) -> Any:
        """The network's output."""
        return self.forward(self.bound, x)


class _Recorded(fx.Interpreter):
    """Notes the value of each node that is no tensor."""

    def __init__(self, net: fx.GraphModule) -> None:
        super().__init__(net)
        self.plain: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if _is_plain(value):
            self.plain[n] = tuple(value) if isinstance(value, tuple) else value
        return value


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(isinstance(each, _PLAIN) for each in value)
    return value is None or isinstance(value, _PLAIN)


def write_down_numbers(graph: fx.Graph, held: dict[str, Any], x: Tensor) -> None:
    """Replace what follows from the shape of the input by its values for this input."""
    recorded = _Recorded(fx.GraphModule(held, graph))
    recorded.run(x)
    graph.owning_module = None  # it was lent
    fixed: set[fx.Node] = set()
    for node in graph.nodes:
        if _is_fixed(node, held) and fixed.issuperset(node.all_input_nodes):
            fixed.add(node)
    for node in reversed(graph.nodes):
        if node in fixed and node in recorded.plain:  # also what has a default and is not given
            _use(node, recorded.plain[node])
            if node.op != "placeholder":
                graph.erase_node(node)


def _is_fixed(node: fx.Node, held: dict[str, Any]) -> bool:
    """Whether the shape of a result follows from the shapes of its inputs."""
    if node.op == "call_module":
        kind = type(held[str(node.target)]).__module__
        return kind.startswith(("torch.nn.", "proxbit.engine."))
    if node.op == "call_method":
        return node.target in _METHODS
    if node.op == "call_function":
        indexed = node.target is operator.getitem and not _has_nodes(node.args[1])
        return indexed or node.target in _FUNCTIONS
    return node.op in ("placeholder", "get_attr")


def _has_nodes(given: Any) -> bool:
    found: list[fx.Node] = []
    fx.node.map_arg(given, found.append)
    return bool(found)


def _use(node: fx.Node, value: Any) -> None:
    """Give a value to all users of a node."""
    for user in list(node.users):
        user.args = fx.node.map_arg(user.args, lambda each: value if each is node else each)
        user.kwargs = fx.node.map_arg(user.kwargs, lambda each: value if each is node else each)
