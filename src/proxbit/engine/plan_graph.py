"""The graph of a packed network, with layers and their surroundings joined into single steps."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx, nn

from proxbit.engine import steps
from proxbit.engine.fusing import PASSING, activation_code
from proxbit.engine.norms import traced
from proxbit.engine.one_row import FEWEST_WEIGHTS
from proxbit.engine.packed import PackedLayer
from proxbit.engine.packed_attention import PackedMultiheadAttention
from proxbit.engine.packed_layers import PackedConv2d, PackedLinear
from proxbit.engine.plan_code import Plan, write_down_numbers

_ATTENTION = torch.nn.functional.scaled_dot_product_attention
_SUMS = (operator.add, operator.iadd, torch.add)


def make_plan(net: nn.Module, x: Tensor, seen: dict[PackedLayer, Tensor]) -> Plan | None:
    """The network as steps; None where it has no graph or a plan would gain nothing.

    Args:
        net: A packed network.
        x: Its input.
        seen: The inputs that its packed layers have then.
    """
    taken = traced(net, (PackedLayer, PackedMultiheadAttention))
    if taken is None or not _takes_one(taken[0]):
        return None
    graph, modules = taken
    found = _Steps(net, graph, modules, seen)
    try:
        write_down_numbers(graph, found.held(), x)
        found.place()
        return Plan(graph, found.held(), found.steps.values()) if found.steps else None
    except Exception:  # whatever a graph of a user's forward can run into: it computes without
        return None


def _takes_one(graph: fx.Graph) -> bool:
    """Whether one input is enough, because all others have defaults."""
    given = [node for node in graph.nodes if node.op == "placeholder"]
    return bool(given) and not given[0].args and all(node.args for node in given[1:])


class _Steps:
    """Finds steps in a graph and puts them there."""

    def __init__(
        self, net: nn.Module, graph: fx.Graph, modules: dict[str, nn.Module],
        seen: dict[PackedLayer, Tensor],
    ) -> None:  # fmt: skip
        self.net, self.graph, self.modules, self.seen = net, graph, modules, seen
        self.steps: dict[str, Any] = {}

    def held(self) -> dict[str, Any]:
        """Everything that the graph names."""
        named: dict[str, Any] = {}
        for node in self.graph.nodes:
            if node.op == "call_module":
                named[str(node.target)] = self._module(node)
            elif node.op == "get_attr":
                named[str(node.target)] = operator.attrgetter(str(node.target))(self.net)
        return named

    def place(self) -> None:
        for node in list(self.graph.nodes):
            module = self._module(node)
            if isinstance(module, PackedConv2d) and self._fits(module, node):
                self._place_conv(node, module)
            elif isinstance(module, PackedLinear) and module.route == "bits":
                self._place_linear(node, module)
            elif node.op == "call_function" and node.target is _ATTENTION:
                self._place_attention(node)
        self._drop_idle()
        for node in list(self.graph.nodes):
            module = self._module(node)
            if type(module) is nn.MaxPool2d and not module.return_indices and self._inside(node):
                self._replace([node], steps.PoolStep(module), node.args)
            elif type(module) is nn.Linear and self.steps and len(node.args) == 1:
                self._place_float(node, module)
        called = [(node, self._module(node)) for node in self.graph.nodes]
        convs = [(node, step) for node, step in called if isinstance(step, steps.ConvStep)]
        for node, step in convs:
            step.inside = self._inside(node)
        for node, step in convs:
            self._hand_on_signs(node, step)
        self.graph.lint()

    def _module(self, node: fx.Node) -> Any:
        """The module or step that a node calls; None where it calls something else."""
        if node.op != "call_module":
            return None
        name = str(node.target)
        return self.steps.get(name) or self.modules.get(name)

    def _fits(self, layer: PackedConv2d, node: fx.Node) -> bool:
        """Whether the kernel had this layer's input, as one image with two dimensions."""
        x = self.seen.get(layer)
        plain = len(node.args) == 1 and not node.kwargs and layer.mode == "zeros"
        served = x is not None and x.dim() == 4 and layer.route == "bits"
        torch_computes = layer.form.binary and layer.after and not layer.target
        if torch_computes and not layer.has_line():
            return False
        return plain and served and layer._kernel is not None

    def _place_conv(self, node: fx.Node, layer: PackedConv2d) -> None:
        x = self.seen[layer]
        last = x.dtype == torch.int8 or (x.stride(1) == 1 and not x.is_contiguous())
        step = steps.ConvStep(layer, last)
        chain, others = self._sum_behind(node, layer)
        user = None if layer.target else self._only_user(chain[-1])
        code = 0 if user is None else activation_code(self._module(user))
        if user is not None and (code == 3 or (code == 1 and not layer.form.binary)):
            step.activation = code
            chain.append(user)
        self._replace(chain, step, (*node.args, *others))

    def _place_linear(self, node: fx.Node, layer: PackedLinear) -> None:
        chain, others = self._sum_behind(node, layer)
        if others and len(node.args) == 1 and not node.kwargs:
            self._replace(chain, steps.LinearStep(layer), (*node.args, *others))

    def _place_float(self, node: fx.Node, layer: nn.Linear) -> None:
        if layer.weight.numel() >= FEWEST_WEIGHTS and not node.kwargs:
            self._replace([node], steps.RowStep(layer), node.args)

    def _place_attention(self, node: fx.Node) -> None:
        chain = self._heads_around(node)
        if not chain:
            return self._replace([node], steps.AttentionStep(), node.args, node.kwargs)
        return self._replace(chain, steps.HeadsStep(_of(chain[0], "reshape")), (chain[0].args[0],))

    def _heads_around(self, node: fx.Node) -> list[fx.Node]:
        """From the cut of a projection into heads to their joining, if nobody else sees it."""
        parts: Any = node.args[:3]
        if len(parts) < 3 or not steps.are_absent(*node.args[3:], *node.kwargs.values()):
            return []
        if any(_of(part, operator.getitem) != (i,) for i, part in enumerate(parts)):
            return []
        apart = parts[0].args[0]
        moved: Any = apart.args[0] if _of(apart, "unbind") in ((0,), ()) else None
        cut: Any = moved.args[0] if _of(moved, "permute") == (2, 0, 3, 1, 4) else None
        turned: Any = self._only_user(node)
        joined: Any = None if _of(turned, "transpose") != (1, 2) else self._only_user(turned)
        sizes, wide = _of(cut, "reshape"), _of(joined, "reshape")
        if len(sizes) != 5 or not all(type(size) is int for size in sizes) or sizes[2] != 3:
            return []
        if wide != (*sizes[:2], sizes[3] * sizes[4]):
            return []
        chain = [cut, moved, apart, *parts, node, turned, joined]
        alone = all(part.args[0] is apart and len(part.users) == 1 for part in parts)
        seen = len(apart.users) == 3 and len(cut.users) == len(moved.users) == 1
        return chain if alone and seen else []

    def _sum_behind(self, node: fx.Node, layer: PackedLayer) -> tuple[list[fx.Node], list[fx.Node]]:
        """The nodes to a sum that alone takes this value, and its other summand; or nothing."""
        chain = [node]
        if layer.target or layer.form.activation:
            return [node], []
        user = self._only_user(node)
        while user is not None and isinstance(self._module(user), PASSING):
            chain.append(user)
            user = self._only_user(user)
        if user is None or user.op != "call_function" or user.target not in _SUMS:
            return [node], []
        if len(user.args) != 2 or user.kwargs or user.args[0] is user.args[1]:
            return [node], []
        other = user.args[1] if user.args[0] is chain[-1] else user.args[0]
        changed = user.target is operator.iadd and user.args[0] is other  # in place
        if changed or not isinstance(other, fx.Node):
            return [node], []
        return [*chain, user], [other]

    @staticmethod
    def _only_user(node: fx.Node) -> fx.Node | None:
        return next(iter(node.users)) if len(node.users) == 1 else None

    def _drop_idle(self) -> None:
        """Take out modules that pass everything through: a call of Python costs, too."""
        for node in list(self.graph.nodes):
            idle = type(self._module(node)) in PASSING
            if idle and self.steps and len(node.args) == 1 and not node.kwargs:
                node.replace_all_uses_with(node.args[0])
                self.graph.erase_node(node)

    def _replace(self, chain: list[fx.Node], step: object, args: Any, options: Any = None) -> None:
        """One step instead of a chain of nodes."""
        name = f"step_{len(self.steps)}"
        self.steps[name] = step
        with self.graph.inserting_before(chain[-1]):
            new = self.graph.create_node("call_module", name, tuple(args), options or {})
        chain[-1].replace_all_uses_with(new)
        for node in reversed(chain):
            self.graph.erase_node(node)

    def _inside(self, node: fx.Node) -> bool:
        """Whether only convolutions of the plan take the value."""
        kinds = [isinstance(self._module(user), steps.ConvStep) for user in node.users]
        return bool(kinds) and all(kinds)

    def _hand_on_signs(self, node: fx.Node, step: steps.ConvStep) -> None:
        takers = [user for user in node.users if self._takes_signs(user, node, step)]
        if not takers or step.layer.target:
            return
        step.signs = True
        with self.graph.inserting_after(node):
            value = self.graph.call_function(operator.getitem, (node, 0))
            signs = self.graph.call_function(operator.getitem, (node, 1))
        for user in list(node.users):
            if user not in (value, signs):
                user.args = tuple(
                    (signs if user in takers and i == 0 else value) if arg is node else arg
                    for i, arg in enumerate(user.args)
                )
                user.replace_input_with(node, value)

    def _takes_signs(self, user: fx.Node, node: fx.Node, step: steps.ConvStep) -> bool:
        taker = self._module(user)
        if not isinstance(taker, steps.ConvStep) or user.args[0] is not node:
            return False
        layer = taker.layer
        alone = layer.form.takes_bits and layer.shift is None
        channels = layer.shape[1] * layer.form.groups
        return alone and channels == step.layer.shape[0]


def _of(node: Any, target: Any) -> tuple[Any, ...]:
    """The numbers that a call of this target is given behind its first argument."""
    if not isinstance(node, fx.Node) or node.target != target or node.kwargs:
        return (None,)
    rest = node.args[1:]
    return tuple(rest[0]) if len(rest) == 1 and isinstance(rest[0], tuple | list) else rest
