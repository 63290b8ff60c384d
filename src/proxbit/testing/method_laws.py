"""The contract of a method: one small network all the way from binarize to load."""

from __future__ import annotations

import copy
import math
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from proxbit.binarization.attachment import attach
from proxbit.binarization.conversion import binarize, restore
from proxbit.binarization.hardening import harden
from proxbit.core import methods
from proxbit.core.methods import Method
from proxbit.core.pairs import Pair
from proxbit.core.schedules import Schedule
from proxbit.core.tasks import TASKS, Task
from proxbit.engine import KernelWarning, load, pack, save
from proxbit.nn.model_weights import binary_weights, named_quantizers
from proxbit.testing.backends import available_backends, use_backend
from proxbit.util.notices import SettingsWarning

_STEPS = 8


def check_method(
    method: str | Method | Pair,
    tasks: Sequence[str | Task] = TASKS,
    *,
    backends: Sequence[str] | None = None,
) -> None:
    """Raise an AssertionError, in one sentence, if a method fails somewhere on its way.

    A small convolutional network is made binary, trained for a few steps, stopped and continued,
    hardened, packed, saved, loaded and restored. The laws: schedules give strengths; the state_dict
    has the keys of the float model and loads from it; every value stays finite; a run that was
    stopped continues bit for bit; a hard weight is exactly plus or minus its scale, with the sign
    that the network saw, and loads into a float model; the packed network and the loaded one
    compute what the hard one does.

    Args:
        method: A name, a Method or a Pair.
        tasks: The tasks to try: all three by default.
        backends: The kernels to compute with; all that run on this machine by default.
    """
    chosen = methods.method(method)
    for schedule in (chosen.schedule, chosen.input_schedule or chosen.schedule):
        _gives_strengths(chosen.name, schedule)
    for backend in available_backends() if backends is None else backends:
        for task in tasks:
            with use_backend(backend), torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                _Way(chosen, task, backend).go()


def _gives_strengths(name: str, schedule: Schedule) -> None:
    for i in range(21):
        strength = schedule(i / 20)
        if not (math.isfinite(strength) and strength >= 0):
            raise AssertionError(
                f"{name}: a strength is a finite number >= 0, and {schedule} gives {strength} at "
                f"progress {i / 20:g}"
            )


class _Way:
    """One network, one task, one backend."""

    def __init__(self, method: Method, task: str | Task, backend: str) -> None:
        self.method, self.task = method, task
        name = task.name if isinstance(task, Task) else task
        self.label = f"{method.name}, {name}, kernels {backend}"
        self.plain = _network()
        self.x, self.y = torch.randn(16, 3, 5, 5), torch.randint(4, (16,))

    def go(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SettingsWarning)
            warnings.simplefilter("ignore", KernelWarning)  # where none are built, torch computes
            self._keeps_the_keys()
            model, optimizer = self._start()
            self._train(model, optimizer, _STEPS)
            self._continues(model, optimizer)
            if self.method.binary:
                self._becomes_hard(model.eval())
                self._packs(model)
            self._becomes_float(model)

    def _fail(self, sentence: str) -> None:
        raise AssertionError(f"{self.label}: {sentence}")

    def _binary(self) -> nn.Module:
        model = copy.deepcopy(self.plain)
        binarize(model, self.method, self.task, only="*")
        return model

    def _start(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = self._binary().train()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        attach(model, optimizer, steps=_STEPS)
        return model, optimizer

    def _train(self, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
        for i in range(steps):
            optimizer.zero_grad()
            functional.cross_entropy(model(self.x), self.y).backward()
            optimizer.step()
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                    self._fail(f"everything stays finite, and after step {i + 1} {name!r} is not")

    def _keeps_the_keys(self) -> None:
        model, keys = self._binary(), set(self.plain.state_dict())
        odd = sorted(k for k in keys ^ set(model.state_dict()) if not k.endswith(".shift"))
        if odd:
            self._fail(
                f"the state_dict has the keys of the float model, and {odd[0]!r} is only in one of "
                "the two"
            )
        model.load_state_dict(self.plain.state_dict(), strict=True)

    def _continues(self, whole: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Stopped in the middle and continued in new objects, a run ends as the whole one did."""
        first, its = self._start()
        self._train(first, its, _STEPS // 2)
        states = copy.deepcopy((first.state_dict(), its.state_dict()))
        model, again = self._start()
        model.load_state_dict(states[0])
        again.load_state_dict(states[1])
        self._train(model, again, _STEPS - _STEPS // 2)
        for name, tensor in whole.state_dict().items():
            other = model.state_dict()[name]
            if not torch.equal(tensor, other):
                self._fail(
                    "a stopped run continues bit for bit, and "
                    f"{name!r} ends {_apart(tensor, other)} away"
                )
        for name, quantizer in named_quantizers(whole).items():
            if quantizer.saved() != (other := named_quantizers(model)[name].saved()):
                self._fail(f"quantizer {name!r} ends as {other}, and alone as {quantizer.saved()}")

    def _becomes_hard(self, model: nn.Module) -> None:
        weights = binary_weights(model)
        seen = [weight.quantizer.proximal(weight.latent) for weight in weights]
        harden(model)
        for weight, soft in zip(weights, seen, strict=True):
            signs, scale = weight.quantizer.split(weight.latent)
            if scale is None or not torch.equal(weight.latent, signs * scale):
                self._fail(f"a hard weight is its sign times its scale, and {weight.name!r} is not")
            clear = soft.abs() > 1e-6
            if not torch.equal(signs[clear] < 0, soft[clear] < 0):
                self._fail(f"hardening keeps the signs that the network saw, and {weight.name!r} "
                           "loses some")  # fmt: skip
        loaded = copy.deepcopy(self.plain).eval()
        floats = {k: v for k, v in model.state_dict().items() if not k.endswith(".shift")}
        loaded.load_state_dict(floats, strict=True)
        if all(isinstance(m.input_quantizer, nn.Identity) for m in _products(model)):
            self._agree("the float model with the hard weights", loaded(self.x), model(self.x))

    def _packs(self, model: nn.Module) -> None:
        with torch.no_grad():
            wanted = model(self.x)
            net = pack(model)
            self._agree("the packed network", net(self.x), wanted)
            with tempfile.TemporaryDirectory() as folder:
                save(net, Path(folder) / "net.safetensors")
                again = load(Path(folder) / "net.safetensors", copy.deepcopy(self.plain))
            self._agree("the loaded network", again(self.x), wanted)

    def _agree(self, what: str, got: Tensor, wanted: Tensor) -> None:
        size = float(wanted.detach().abs().max())
        if not torch.allclose(got, wanted, rtol=1e-4, atol=1e-4 * size):
            self._fail(f"{what} computes as the hard one does, and ends {_apart(got, wanted)} away")

    def _becomes_float(self, model: nn.Module) -> None:
        kinds = [type(m) for m in restore(model).modules()]
        if kinds != [type(m) for m in self.plain.modules()]:
            self._fail(f"restore gives the float classes back, and the model has {kinds}")


def _products(model: nn.Module) -> list[Any]:
    return [m for m in model.modules() if hasattr(m, "input_quantizer")]


def _network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Conv2d(6, 8, 3, stride=2),
        nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(32, 4),
    )  # fmt: skip


def _apart(one: Tensor, other: Tensor) -> str:
    return f"{float((one.detach() - other.detach()).abs().max()):.3g}"
