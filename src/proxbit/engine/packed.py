"""The common part of packed layers: the bits, the scale, and the two ways to compute."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from proxbit.core import maps
from proxbit.engine import ops
from proxbit.engine.bounds import Bounds, find_bounds, possible_sums
from proxbit.engine.forms import EXACT, Kernel, PackedForm
from proxbit.engine.held_signs import HeldSigns
from proxbit.engine.tails import Line, as_rows, find_line, follow, following, with_norm
from proxbit.kernels import inference as kernels
from proxbit.nn.accumulators import cyclic_values, wrap
from proxbit.nn.product import scaled
from proxbit.packfile.bits import unpack_bits
from proxbit.packfile.contents import PackedWeight

Route = str  # "bits" or "float"
_MOST_TRIED = 1 << 24  # values of a layer that are sent through a norm


class PackedLayer(nn.Module):
    """A layer whose weight is one bit per value, for inference.

    Where a kernel fits (float32 on the CPU) it computes on the bits; elsewhere torch computes with
    the unpacked weight, and gives the same sums.

    Attributes:
        signs: The signs of the weight, one bit each.
        scale: One value, or one per output; 1 where the method has none.
        shift: Thresholds of a binary input per channel; None for 0.
        route: "bits" for the kernels, "float" for torch with the unpacked weight.
        after: Modules that this layer computes as well (set by fusing).
        target: The layer that gets bits from this one (set by fusing), or nothing.
        sources: The layers that this one gets bits from.
    """

    scale: Tensor
    shift: Tensor | None
    _kernel: Kernel | None
    _operands: tuple[Any, ...] | None
    _dense: Tensor | None
    _line: Line | None

    def __init__(
        self, weight: PackedWeight, bias: Tensor | None, groups: int = 1, precision: int = EXACT
    ) -> None:
        """Take the packed weight; ``bias`` stays the tensor or Parameter that it is."""
        super().__init__()
        self.shape, self.task, self.pad_value = weight.shape, weight.task, weight.pad_value
        self.layout = weight.layout
        self.signs = HeldSigns(weight.bits, weight.shape)
        self.register_buffer("scale", torch.ones(1) if weight.scale is None else weight.scale)
        self.register_buffer("shift", weight.shift)
        self.register_parameter("bias", None)
        if bias is not None:
            self.bias = bias if isinstance(bias, nn.Parameter) else nn.Parameter(bias, False)
        self.form = PackedForm(
            weight.shape[0] // groups, math.prod(weight.shape[1:]), groups,
            weight.task != "BW", weight.register_bits, weight.slope,
            int(weight.pad_value > 0), precision, math.prod(weight.shape[2:]),
        )  # fmt: skip
        _require_fitting(weight, self.bias, groups)
        self.after: tuple[Any, ...] = ()
        self.target: tuple[PackedLayer, ...] = ()
        self.sources: tuple[PackedLayer, ...] = ()
        self.route: Route = "bits" if self._fits() else "float"
        self.forget()

    def _fits(self) -> bool:
        """Whether there is a kernel: none for a border of zeros, which is a third value."""
        zeros = self.form.binary and self.pad_value == 0 and self.form.taps > 1
        return self.form.served and not zeros

    def take(self, route: Route) -> None:
        """Compute this way from now on; "bits" only where there is a kernel for it."""
        if route == "float" and self.sources:
            raise ValueError("this layer gets bits from the one before it, and so computes on bits")
        self.route = route if self._fits() else "float"
        if self.route == "bits":
            self._dense = None

    @property
    def bits(self) -> Tensor:
        """The signs of the weight in row-major order, eight to a byte."""
        return self.signs.bits

    def finish_with(
        self, after: list[nn.Module], *, activation: int = 0, target: PackedLayer | None = None
    ) -> None:
        """Compute these modules too; with a target, hand it bits."""
        for old in self.target:
            old.sources = tuple(source for source in old.sources if source is not self)
        self.after, self.target = tuple(after), () if target is None else (target,)
        if target is not None:
            target.sources = (*target.sources, self)
        self.form = self.form._replace(activation=activation)
        self.forget()

    def packed(self, name: str) -> PackedWeight:
        """The weight as a file holds it, under the name of the float tensor."""
        form = self.form
        return PackedWeight(
            name, self.shape, self.bits, self.scale, None, self.task, form.register_bits,
            form.slope, self.pad_value, self.shift, self.layout,
        )  # fmt: skip

    # ------------------------------------------------------------------------------ on bits

    def prepare(self) -> Kernel | None:
        """Bind a kernel to copies of this layer's tensors; None where torch must compute.

        Copies that nobody else can reach: a kernel keeps addresses, and torch moves the memory of a
        tensor that is shared with a process (``share_memory``, a network sent to a worker).
        """
        if self.route != "bits" or self.signs.device.type != "cpu" or kernels.library() is None:
            return None
        with torch.inference_mode(False), torch.no_grad():
            laid = self.signs.laid_out(self.form)
            scale = self._scales().clone()
            bias = None if self.bias is None else self.bias.detach().float() + 0.0  # no -0.0
            if self.after and not self.form.binary and isinstance(self.after[0], nn.BatchNorm2d):
                scale, bias = with_norm(scale, bias, self.after[0])
            shift = None if self.shift is None else self.shift.float().clone().contiguous()
            self._kernel = Kernel(self.form, laid, scale, bias, shift, self.bounds())
            self._operands, self._line = self._kernel.owned, self._find_line()
        return self._kernel

    def kernel_for(self, x: Tensor) -> Kernel | None:
        """The kernel, if it can take this input: floats, or bits from the layer before."""
        if not (x.dtype == torch.float32 or (x.dtype == torch.uint8 and self.sources)):
            return None
        if not x.is_cpu or self.route != "bits":
            return None
        return self._kernel or self.prepare()

    def traceable(self, x: Tensor) -> bool:
        """Whether an operator of torch can stand for the kernel in a graph."""
        ready = self._operands is not None and self.route == "bits"
        return ready and x.device.type == "cpu" and x.dtype == torch.float32

    def operands(self) -> tuple[Any, ...]:
        """The arguments of torch's operators besides the input."""
        assert self._operands is not None
        return (*self._operands, ops.numbers(self.form), self.form.slope)

    def rest(self, out: Tensor) -> Tensor:
        """Finish a kernel's output: its floats lack the folded modules, its bits do not."""
        if not self.form.binary or out.dtype == torch.uint8:
            return out
        return self.followed(out)

    def in_line(self, out: Tensor) -> bool:
        """Let the kernel compute the norm behind it on this output, if it can."""
        if self._line is None or ops.in_graph() or out.dtype != torch.float32:
            return False
        follow(as_rows(out), following(self._line))
        return True

    def has_line(self) -> bool:
        """Whether the kernel computes the norm behind it."""
        return self._line is not None

    def _find_line(self) -> Line | None:
        """The line of a norm that is all that follows, if a kernel can have its very bits."""
        sums = possible_sums(self.form)
        norm = self.after[0] if len(self.after) == 1 and not self.target else None
        if not isinstance(norm, nn.BatchNorm2d) or not self.form.binary or sums is None:
            return None
        if sums.numel() * self.shape[0] > _MOST_TRIED:
            return None
        values = self.finished(sums.float().reshape(-1, 1, 1, 1).expand(-1, self.shape[0], 1, 1))
        return find_line(norm, values.flatten(1))

    def bounds(self) -> Bounds | None:
        """Which sums are +1 to the target; None where it cannot get bits, or there is none."""
        sums = possible_sums(self.form) if self.target else None
        if sums is None:
            return None
        steps = (self.finished, *self.after)
        return find_bounds(sums, self.shape, steps, self.target[0].shift)

    def _scales(self) -> Tensor:
        return self.scale.float().expand(self.shape[0]).contiguous()

    # --------------------------------------------------------------------------- with torch

    def dense(self) -> Tensor:
        """The unpacked weight: +-1 with binary inputs, +-scale with float ones; made once."""
        if self._dense is None or self._dense.device != self.signs.device:
            signs = self._unpacked()
            if ops.in_graph():
                return signs
            self._dense = signs
        return self._dense

    def _unpacked(self) -> Tensor:
        # Not in inference mode, whose tensors could serve no call outside of it.
        with nullcontext() if ops.in_graph() else torch.inference_mode(False):
            signs = unpack_bits(self.bits, self.shape)
            if not self.form.binary:
                signs = signs * self._per_output(self.scale, self.shape[1:])
        return signs

    @property
    def weight(self) -> Tensor:
        """The float weight, +-scale, for code that reads it without calling the layer."""
        dense = self.dense()
        if self.form.binary:
            dense = dense * self._per_output(self.scale, self.shape[1:])
        return dense if self.layout is None else self.layout.back(dense)

    def by_torch(self, x: Tensor, op: Callable[..., Tensor]) -> Tensor:
        """The same product without kernels; ``op(x, weight, bias)`` multiplies."""
        if not x.is_floating_point():
            raise TypeError(f"this layer takes floats, and the input is {x.dtype}: give it float32")
        weight = self.dense()
        if not self.form.binary:
            bias = None if self.bias is None else self.bias.to(x.dtype)
            return self.followed(op(x, weight.to(x.dtype), bias))
        above = x if self.shift is None else x - self._per_output(self.shift, self.shape[2:])
        signs = maps.sign(above).float().nan_to_num_(1.0)  # as the kernels do: bits hold no NaN
        with _full_precision(x.device.type):
            sums = op(signs, weight, None)
        return self.followed(self.finished(sums).to(x.dtype))

    def finished(self, sums: Tensor) -> Tensor:
        """From sums of signs to the output: register, scale, bias."""
        if self.form.register_bits:
            held = wrap(sums, self.form.register_bits)
            sums = cyclic_values(held, self.form.register_bits, self.form.slope)
        trailing = self.shape[2:]
        bias = None if self.bias is None else self._per_output(self.bias, trailing)
        return scaled(sums, self._per_output(self._scales(), trailing), bias)

    def followed(self, out: Tensor) -> Tensor:
        """Send an output through the folded modules."""
        for module in self.after:
            out = module(out)
        return out

    @staticmethod
    def _per_output(values: Tensor, trailing: tuple[int, ...]) -> Tensor:
        return values.reshape(-1, *(1 for _ in trailing))

    # ------------------------------------------------------------------- copies and loading

    def forget(self) -> None:
        """Drop everything that was made from the old tensors."""
        self._kernel = self._operands = self._dense = self._line = None
        for source in self.sources:  # their bounds depend on what this layer takes
            source.forget()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PackedLayer:
        self.forget()
        super()._apply(fn, recurse)
        self.signs.moved(fn(self.signs.bits))
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}bits"] = self.signs.bits

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, strict: bool,
        missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        given = state_dict.pop(f"{prefix}bits", None)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        if given is None:
            missing_keys.extend([f"{prefix}bits"] if strict else [])
        elif given.shape != self.signs.bits.shape or given.dtype != torch.uint8:
            error_msgs.append(
                f"{prefix}bits are {tuple(given.shape)} of {given.dtype}, and this layer has "
                f"{tuple(self.signs.bits.shape)} of torch.uint8"
            )
        else:
            self.signs.moved(given.clone())
        self.forget()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the kernel out, because it points into memory: a copy makes its own."""
        return self.__dict__ | {"_kernel": None, "_operands": None, "_dense": None, "_line": None}

    def __prepare_scriptable__(self) -> None:
        """Called by torch.jit.script."""
        refuse_script()

    def extra_repr(self) -> str:
        """Shape, task and route."""
        return f"{'x'.join(map(str, self.shape))}, {self.task}, {self.route}"


def refuse_script() -> None:
    """Refuse TorchScript: it compiles Python to its own language, which has no kernels."""
    raise NotImplementedError(
        "torch.jit.script cannot compile packed layers: use torch.jit.trace(net, example) or "
        "torch.export, which take down what they call"
    )


def _require_fitting(weight: PackedWeight, bias: Tensor | None, groups: int) -> None:
    """Check the weight of a file against its layer, which alone knows the groups."""
    outputs, channels = weight.shape[0], weight.shape[1] * groups
    if outputs % groups:
        raise ValueError(f"{weight.label!r} has {outputs} outputs for {groups} groups of a layer")
    for what, tensor, length in (
        ("thresholds", weight.shift, channels), ("biases", bias, outputs),
    ):  # fmt: skip
        if tensor is not None and tensor.numel() != length:
            raise ValueError(
                f"{weight.label!r} comes with {tensor.numel()} {what}, and its layer has {length}"
            )


def _full_precision(device: str) -> AbstractContextManager[Any]:
    """Switch autocast off: it would round sums above 256, which are exact integers in float32."""
    known = torch.amp.is_autocast_available(device)
    return torch.autocast(device, enabled=False) if known else nullcontext()


def packed_layers(net: nn.Module) -> list[tuple[str, PackedLayer]]:
    """Every packed layer with its name, those inside attention too."""
    return [(name, m) for name, m in net.named_modules() if isinstance(m, PackedLayer)]


def share_signs(net: nn.Module) -> None:
    """Let layers whose weights are one tensor hold its bits once."""
    known: dict[tuple[int, tuple[int, ...]], HeldSigns] = {}
    for _, layer in packed_layers(net):
        layer.signs = known.setdefault((layer.signs.identity, layer.shape), layer.signs)
