"""The plan of a packed network: its forward with sums and activations as last steps of its layers.

What a forward of Python puts between two layers (``x = x + shortcut``) cannot be folded into a
module. So the graph of the network is taken down, packed layers and what stands around them become
single steps, and the network computes by this plan, while nothing about it differs from what the
plan was made for. Whenever something does (hooks, training mode, other modules, other types,
torch.compile), the network's own forward computes: the plan gives the same bits, only sooner.
"""

from __future__ import annotations

import inspect
import operator
import threading
from collections.abc import Iterator
from types import MethodType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules import module as torch_module
from torch.utils import _pytree as pytree

from proxbit.engine import ops
from proxbit.engine.fusing import PASSING, activation_code
from proxbit.engine.packed import PackedLayer, packed_layers
from proxbit.engine.packed_attention import PackedMultiheadAttention
from proxbit.engine.packed_layers import PackedConv2d, PackedLinear
from proxbit.engine.steps import ConvStep, LinearStep, PoolStep
from proxbit.kernels import inference as kernels
from proxbit.util.tracing import trace

MOST_PLANS = 8  # shapes of inputs with a plan each
_SUMS = (operator.add, operator.iadd, torch.add)
Key = tuple[torch.Size, tuple[int, ...]]


class Planned:
    """In the place of a network's ``forward``: by a plan where one holds, else as ever."""

    def __init__(self, net: nn.Module) -> None:
        """No plan yet: one is made at the first call."""
        self.net = net
        self.plans: dict[Key, fx.GraphModule | None] = {}
        self.known: list[tuple[dict[str, Any], str, nn.Module]] = []
        self.bound: list[tuple[PackedLayer, Any, str]] = []
        self.lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The network's output."""
        x = args[0] if len(args) == 1 and not kwargs else None
        if not isinstance(x, Tensor) or ops.in_graph() or not _is_plain(x):
            return type(self.net).forward(self.net, *args, **kwargs)
        key = (x.shape, x.stride())
        if not self._holds():
            with self.lock:
                self.plans, self.known, self.bound = {}, [], []
        plan = self.plans.get(key)
        if plan is not None:
            return plan(x)
        if key in self.plans or len(self.plans) >= MOST_PLANS or not _is_quiet(self.net):
            return type(self.net).forward(self.net, x)
        return self._first(key, x)

    def _holds(self) -> bool:
        """Whether modules and kernels are those that the plans were made for."""
        for held, name, module in self.known:
            if held.get(name) is not module or module.training or module._forward_hooks:
                return False
            if module._forward_pre_hooks:
                return False
        return all(x._kernel is kernel and x.route == way for x, kernel, way in self.bound)

    def _first(self, key: Key, x: Tensor) -> Any:
        """Compute as ever, note what layers are given, and make a plan of it."""
        if not self.lock.acquire(blocking=False):  # another thread is at it
            return type(self.net).forward(self.net, x)
        try:
            out, seen = _observed(self.net, x)
            plan = make_plan(self.net, seen)
            plan = plan if plan is not None and _gives(plan, x, out) else None
            self.known = [
                (parent._modules, name, child)
                for parent in self.net.modules()
                for name, child in parent._modules.items()
                if child is not None
            ]
            self.bound = [(x, x._kernel, x.route) for _, x in packed_layers(self.net)]
            self.plans = self.plans | {key: plan}
        finally:
            self.lock.release()
        return out

    @property
    def __code__(self) -> Any:
        """The code of the network's own forward, which torch.export looks at."""
        return type(self.net).forward.__code__

    @property
    def __signature__(self) -> inspect.Signature:
        """What the network's own forward takes."""
        return inspect.signature(MethodType(type(self.net).forward, self.net))

    def __deepcopy__(self, memo: dict[int, Any]) -> Planned:
        """For the copy of the network, which makes plans of its own."""
        return Planned(memo.get(id(self.net), self.net))

    def __reduce__(self) -> Any:
        return Planned, (self.net,)


def _is_plain(x: Tensor) -> bool:
    """Whether a plan can have this input at all."""
    if x.dtype != torch.float32 or not x.is_cpu or type(x) is not Tensor:
        return False
    return not (torch.is_grad_enabled() and x.requires_grad) and not torch.is_autocast_enabled(
        "cpu"
    )


def _is_quiet(net: nn.Module) -> bool:
    """Whether nobody watches the modules, and all are in evaluation."""
    everywhere = torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks
    return not everywhere and not any(
        module.training or module._forward_hooks or module._forward_pre_hooks
        for module in net.modules()
    )


def _observed(net: nn.Module, x: Tensor) -> tuple[Any, dict[PackedLayer, Tensor]]:
    """The output as ever, and the input of each packed convolution."""
    seen: dict[PackedLayer, Tensor] = {}
    me = threading.get_ident()

    def note(layer: Any, given: tuple[Any, ...]) -> None:
        if threading.get_ident() == me and given and isinstance(given[0], Tensor):
            seen.setdefault(layer, given[0])

    hooks = [layer.register_forward_pre_hook(note) for _, layer in packed_layers(net)]
    try:
        return type(net).forward(net, x), seen
    finally:
        for hook in hooks:
            hook.remove()


def plan_for(net: nn.Module) -> None:
    """Let a finished network compute by plans, where any of its layers is on bits."""
    on_bits = any(layer.route == "bits" for _, layer in packed_layers(net))
    if kernels.library() is None or not on_bits or "forward" in vars(net):
        return
    net.__dict__["forward"] = Planned(net)


def make_plan(net: nn.Module, seen: dict[PackedLayer, Tensor]) -> fx.GraphModule | None:
    """The network as steps; None where its graph cannot be had or brings nothing."""
    graph = trace(net, (PackedLayer, PackedMultiheadAttention))
    if graph is None or not _takes_one(graph):
        return None
    found = _Steps(net, graph, seen)
    found.place()
    if not found.steps:
        return None
    try:
        with torch.no_grad():
            return fx.GraphModule(found.held(), graph).eval()
    except AttributeError:  # a constant that tracing made, which only its copy of the network has
        return None


def _takes_one(graph: fx.Graph) -> bool:
    """Whether one input is enough, because all others have defaults."""
    given = [node for node in graph.nodes if node.op == "placeholder"]
    return bool(given) and not given[0].args and all(node.args for node in given[1:])


def _gives(plan: fx.GraphModule, x: Tensor, out: Any) -> bool:
    """Whether the plan gives the very bits: a graph may have taken another branch than Python."""
    try:
        found = pytree.tree_leaves(plan(x))
    except Exception:  # whatever a graph of a user's forward can run into
        return False
    wanted = pytree.tree_leaves(out)
    return len(found) == len(wanted) and all(map(_equal, found, wanted))


def _equal(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return bool(a is b or a == b)
    same = a.shape == b.shape and a.dtype == b.dtype and a.stride() == b.stride()
    return same and bool(torch.equal(a.nan_to_num(0.5), b.nan_to_num(0.5)))


class _Steps:
    """Finds steps in a graph and puts them there."""

    def __init__(self, net: nn.Module, graph: fx.Graph, seen: dict[PackedLayer, Tensor]) -> None:
        self.net, self.graph, self.seen = net, graph, seen
        self.modules = dict(net.named_modules(remove_duplicate=False))
        self.steps: dict[str, nn.Module] = {}

    def held(self) -> dict[str, Any]:
        """All that the graph names."""
        named: dict[str, Any] = {}
        for node in self.graph.nodes:
            if node.op == "call_module":
                name = str(node.target)
                named[name] = self.steps[name] if name in self.steps else self.modules[name]
            elif node.op == "get_attr":
                named[str(node.target)] = _attribute(self.net, str(node.target))
        return named

    def place(self) -> None:
        for node in list(self.graph.nodes):
            module = self._module(node)
            if isinstance(module, PackedConv2d) and self._fits(module, node):
                self._place_conv(node, module)
            elif isinstance(module, PackedLinear) and module.route == "bits":
                self._place_linear(node, module)
        for node in list(self.graph.nodes):
            module = self._module(node)
            if type(module) is nn.MaxPool2d and not module.return_indices and self._inside(node):
                self._replace([node], PoolStep(module), node.args)
        for node in list(self.graph.nodes):
            step = self._module(node)
            if isinstance(step, ConvStep):
                step.inside = self._inside(node)
        for node in list(self.graph.nodes):
            step = self._module(node)
            if isinstance(step, ConvStep):
                self._hand_on_signs(node, step)
        self.graph.lint()

    def _module(self, node: fx.Node) -> nn.Module | None:
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
        step = ConvStep(layer, last)
        chain, others = self._sum_behind(node, layer)
        user = self._only_user(chain[-1]) if others else None
        code = 0 if user is None else activation_code(self._module(user))
        if user is not None and (code == 3 or (code == 1 and not layer.form.binary)):
            step.activation = code
            chain.append(user)
        self._replace(chain, step, (*node.args, *others))

    def _place_linear(self, node: fx.Node, layer: PackedLinear) -> None:
        chain, others = self._sum_behind(node, layer)
        if others and len(node.args) == 1 and not node.kwargs:
            self._replace(chain, LinearStep(layer), (*node.args, *others))

    def _sum_behind(self, node: fx.Node, layer: PackedLayer) -> tuple[list[fx.Node], list[fx.Node]]:
        """The way to a sum that alone takes this value, and its other summand; or nothing."""
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

    def _replace(self, chain: list[fx.Node], step: nn.Module, args: tuple[Any, ...]) -> None:
        """One step instead of a chain of nodes."""
        name = f"step_{len(self.steps)}"
        self.steps[name] = step
        with self.graph.inserting_before(chain[-1]):
            new = self.graph.create_node("call_module", name, args)
        chain[-1].replace_all_uses_with(new)
        for node in reversed(chain):
            self.graph.erase_node(node)

    def _inside(self, node: fx.Node) -> bool:
        """Whether only convolutions of the plan take the value."""
        return bool(node.users) and all(self._takes_any(user, node) for user in node.users)

    def _takes_any(self, user: fx.Node, node: fx.Node) -> bool:
        return isinstance(self._module(user), ConvStep) and node in user.args

    def _hand_on_signs(self, node: fx.Node, step: ConvStep) -> None:
        takers = [user for user in node.users if self._takes_signs(user, node, step)]
        if not takers or step.layer[0].target:
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

    def _takes_signs(self, user: fx.Node, node: fx.Node, step: ConvStep) -> bool:
        taker = self._module(user)
        if not isinstance(taker, ConvStep) or user.args[0] is not node:
            return False
        layer = taker.layer[0]
        alone = layer.form.groups == 1 and layer.shift is None
        return layer.form.binary and alone and layer.shape[1] == step.layer[0].shape[0]


def _attribute(net: nn.Module, name: str) -> Any:
    owner, _, key = name.rpartition(".")
    return getattr(net.get_submodule(owner), key)


def steps_of(net: nn.Module) -> Iterator[nn.Module]:
    """The steps of all plans that a network has made so far."""
    planned = vars(net).get("forward")
    for plan in planned.plans.values() if isinstance(planned, Planned) else ():
        yield from (
            (m for m in plan.modules() if isinstance(m, ConvStep | LinearStep | PoolStep))
            if plan
            else ()
        )
