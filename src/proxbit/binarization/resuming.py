"""The step of a run, kept in the optimizer's checkpoint as well.

Savers that keep a model's tensors only (safetensors, and so transformers' Trainer and accelerate)
drop the metadata in which the step, the strengths and the units travel. Every saver keeps what
``optimizer.state_dict()`` returns, so they go there too, inside the first parameter group.
"""

from __future__ import annotations

import warnings
from typing import Any

from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from proxbit.nn import BinaryWeight, Quantizer, StepCounter
from proxbit.nn.model_weights import restore_states, saved_states
from proxbit.util.notices import SettingsWarning

KEY = "proxbit"
States = dict[str, dict[str, Any]]

# What wrappers put into the names of modules: torch.compile, activation checkpointing, FSDP.
_INSIDE = {"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}
# And in front of them: DDP and AveragedModel, Lightning's Fabric.
_IN_FRONT = {"module", "_forward_module"}


class OptimizerMemory:
    """Writes the quantizers' states into an optimizer's checkpoints and takes them back.

    A model that was loaded with its metadata knows its own step. If the optimizer's checkpoint
    names another one, the two do not belong together: an error, whichever was loaded first.
    """

    def __init__(
        self,
        quantizers: dict[str, Quantizer],
        weights: list[BinaryWeight],
        counter: StepCounter,
    ) -> None:
        """Serve the given quantizers; :meth:`register` puts the hooks on an optimizer."""
        self.quantizers = by_bare_name(quantizers)
        self.counter = counter
        self.weights = weights
        self._found: States | None = None
        # The step that the optimizer's checkpoint named, until a step is taken.
        self._told: int | None = None
        self._undated = False

    def register(self, optimizer: Optimizer) -> list[RemovableHandle]:
        """Hook on saving and loading, after taking what was loaded before there were hooks."""
        self._found = _taken(optimizer.param_groups)
        self._require_agreement()
        self._take()
        return [
            optimizer.register_state_dict_post_hook(self._write),
            optimizer.register_load_state_dict_pre_hook(self._read),
            optimizer.register_load_state_dict_post_hook(self._loaded),
        ]

    def before_step(self) -> None:
        """Refuse to go on with a model and an optimizer from different moments."""
        step = self.counter.step
        if self._told is not None and step != self._told:
            raise ValueError(_disagreement(step, self._told))
        if self._undated and step == 0:
            warnings.warn(
                "the optimizer was loaded from a checkpoint that knows nothing of proxbit, and the "
                "model came without its step: the schedule starts at step 0; to continue a run, "
                "call handle.load_state_dict with what handle.state_dict() returned",
                SettingsWarning,
                stacklevel=2,
            )
        self._undated = False

    def after_step(self) -> None:
        """Forget what was loaded: from here on the run itself says which step it is."""
        self._told, self.counter.loaded = None, False

    def _write(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        state["param_groups"][0][KEY] = saved_states(self.quantizers)

    def _read(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        """Check before anything is loaded, and hand on a checkpoint without our part."""
        groups = [dict(group) for group in state["param_groups"]]
        self._found = _taken(groups)
        self._require_agreement()
        return state | {"param_groups": groups}

    def _loaded(self, optimizer: Optimizer) -> None:
        self._undated = self._found is None
        self._take()

    def _require_agreement(self) -> None:
        found = self._found
        if found is None:
            return
        odd = sorted(found.keys() ^ self.quantizers.keys())
        if odd:
            raise ValueError(
                f"the optimizer's state is of another model: {odd[0]!r} is only in one of the two"
            )
        if self.counter.loaded and _step(found) != self.counter.step:
            raise ValueError(_disagreement(self.counter.step, _step(found)))

    def _take(self) -> None:
        found, self._found, self._told = self._found, None, None
        if found is None:
            return
        if _step(found) != self.counter.step:  # wrappers save and load just to move it: nothing new
            self._told = _step(found)
        if self.counter.loaded:
            return
        restore_states(self.quantizers, self.weights, found)


def by_bare_name(quantizers: dict[str, Quantizer]) -> dict[str, Quantizer]:
    """The quantizers by names without what wrappers add: the same in every process and launch."""
    return {bare(name): quantizer for name, quantizer in quantizers.items()}


def bare(name: str) -> str:
    """The name of a module without what wrappers add."""
    parts = [part for part in name.split(".") if part not in _INSIDE]
    while len(parts) > 1 and parts[0] in _IN_FRONT:
        parts = parts[1:]
    return ".".join(parts)


def unwrapped(optimizer: Any) -> Optimizer:
    """The optimizer inside the wrappers of accelerate and Lightning: they have no hooks.

    An optimizer that steps another one itself (Lookahead, say) has its own, and is the one to hook.
    """
    inner = getattr(optimizer, "optimizer", None) or getattr(optimizer, "_optimizer", None)
    if isinstance(inner, Optimizer):
        own = vars(optimizer).get("_optimizer_step_pre_hooks")
        if own is None or own is inner._optimizer_step_pre_hooks:
            return unwrapped(inner)
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"attach takes a torch.optim.Optimizer, not {type(optimizer).__name__}")
    return optimizer


def _taken(groups: list[dict[str, Any]]) -> States | None:
    """Take what :meth:`OptimizerMemory._write` wrote out of the groups; None if nothing."""
    found = [group.pop(KEY) for group in groups if KEY in group]
    return found[0] if found else None


def _step(states: States) -> int:
    return int(next(iter(states.values()))["step"])


def _disagreement(model: int, optimizer: int) -> str:
    return (
        f"the model was loaded at step {model} and its optimizer at step {optimizer}: load both "
        "from the same checkpoint, or only the model and begin with a new optimizer"
    )
