"""The plan of a packed network: its forward with sums and activations as last steps of its layers.

What a forward of Python puts between two layers (``x = x + shortcut``) cannot be folded into a
module. So the graph of the network is taken down, packed layers and what stands around them become
single steps, and the network computes by this plan, while nothing about it differs from what the
plan was made for. Whenever something does (hooks, training mode, other modules, other types,
torch.compile), the network's own forward computes: the plan gives the same bits, only sooner.
"""

from __future__ import annotations

import inspect
import threading
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from proxbit.engine import ops
from proxbit.engine.packed import packed_layers
from proxbit.engine.packed_layers import noted_inputs
from proxbit.engine.plan_code import Plan
from proxbit.engine.plan_graph import make_plan
from proxbit.engine.plan_watch import Watch, is_quiet
from proxbit.kernels import inference as kernels

MOST_PLANS = 8  # shapes of inputs with a plan each
Key = tuple[torch.Size, tuple[int, ...]]


class Planned:
    """A replacement for a network's ``forward``: by a plan where one holds, otherwise as before."""

    def __init__(self, net: nn.Module) -> None:
        """No plan yet: one is made at the first call."""
        self.net = net
        self.plans: dict[Key, Plan | None] = {}
        self.watch: Watch | None = None
        self.lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The network's output."""
        x = args[0] if len(args) == 1 and not kwargs else None
        if not isinstance(x, Tensor) or ops.in_graph() or not _is_plain(x):
            return type(self.net).forward(self.net, *args, **kwargs)
        key = (x.shape, x.stride())
        watch = self.watch
        if watch is not None and not watch.holds():
            with self.lock:
                self.plans, self.watch = {}, None
        plan = self.plans.get(key)
        if plan is not None:
            return plan(x)
        if key in self.plans or len(self.plans) >= MOST_PLANS or not is_quiet(self.net):
            return type(self.net).forward(self.net, x)
        return self._first(key, x)

    def _first(self, key: Key, x: Tensor) -> Any:
        """Compute as before, note the inputs of the layers, and make a plan from them."""
        if not self.lock.acquire(blocking=False):  # another thread is at it
            return type(self.net).forward(self.net, x)
        try:
            with noted_inputs(self.net) as seen:
                out = type(self.net).forward(self.net, x)
            plan = make_plan(self.net, x, seen)
            plan = plan if plan is not None and _gives(plan, x, out) else None
            self.watch = Watch(self.net)
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
        """The signature of the network's own forward."""
        return inspect.signature(MethodType(type(self.net).forward, self.net))

    def __deepcopy__(self, memo: dict[int, Any]) -> Planned:
        """Start without plans in a copy of the network, which makes its own."""
        return Planned(memo.get(id(self.net), self.net))

    def __reduce__(self) -> Any:
        return Planned, (self.net,)


def _is_plain(x: Tensor) -> bool:
    """Whether a plan can take this input at all."""
    if x.dtype != torch.float32 or not x.is_cpu or type(x) is not Tensor:
        return False
    followed = torch.is_grad_enabled() and x.requires_grad
    return not followed and not torch.is_autocast_enabled("cpu")


def plan_for(net: nn.Module) -> None:
    """Let a finished network compute by plans, where any of its layers is on bits."""
    on_bits = any(layer.route == "bits" for _, layer in packed_layers(net))
    if kernels.library() is None or not on_bits or "forward" in vars(net):
        return
    net.__dict__["forward"] = Planned(net)


def _gives(plan: Plan, x: Tensor, out: Any) -> bool:
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
