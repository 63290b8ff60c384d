"""Packed files with a right checksum and wrong lengths: refused, or run within their buffers.

Everything runs in this process, so that AddressSanitizer ends it at the first bad read:
``tools/sanitize.sh`` runs this attack, too.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import torch
from common import Clock, Outcome
from torch import Tensor, nn

import proxbit as pb
from proxbit.engine import forms, loading, packed
from proxbit.packfile import file
from proxbit.packfile.bits import byte_count
from proxbit.packfile.contents import Contents, PackedWeight

TASKS = {"bnn++": ("BW", "BWA", "BWAA"), "react": ("BWA", "BWAA")}
SIZES = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65)
# What a packed layer and its kernel check in Python; behind them only C stands.
CHECKS = ((file, "check_contents"), (packed, "_require_fitting"), (forms, "_require_lengths"))
Net = tuple[Contents, nn.Module, Tensor]


def attack(random: Random, clock: Clock) -> Outcome:
    """Wrong files through ``pb.load``, then past every check of Python."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "net"
        nets = [_net(place, method, task) for method, tasks in TASKS.items() for task in tasks]
        while not clock.over():
            held, skeleton, x = random.choice(nets)
            wrong = _wrong(random, held)
            for what, checks in (("files", 0), ("unchecked files", len(CHECKS))):
                answer = _answer(wrong, skeleton, x, place, checks)
                outcome.counts.update([what, f"{what} {answer}"])
                if answer not in ("refused", "run"):
                    outcome.failures.append(f"{what}: {answer}")
    return outcome


def _net(place: Path, method: str, task: str) -> Net:
    """A network with groups, strides and odd sizes, as its file holds it."""
    skeleton = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Conv2d(6, 9, 3, groups=3, bias=False),
        nn.BatchNorm2d(9), nn.Hardtanh(), nn.Conv2d(9, 17, 3, stride=2), nn.BatchNorm2d(17),
        nn.Conv2d(17, 16, 1), nn.Flatten(), nn.Linear(64, 33), nn.Hardtanh(), nn.Linear(33, 7),
    ).eval()  # fmt: skip
    model: Any = copy.deepcopy(skeleton)
    pb.binarize(model, method, task, only="*")  # type: ignore[arg-type]
    pb.save(pb.pack(pb.harden(model)), place)
    return file.read(place), skeleton, torch.randn(2, 3, 7, 7)


def _wrong(random: Random, held: Contents) -> Contents:
    """Contents in which one to three things have another length, kind or number."""
    for _ in range(random.randint(1, 3)):
        held = random.choice((_shape, _scale, _shift, _numbers, _float))(random, held)
    return held


def _changed(random: Random, held: Contents, change: Callable[[PackedWeight], Any]) -> Contents:
    at = random.randrange(len(held.weights))
    weights = list(held.weights)
    weights[at] = replace(weights[at], **change(weights[at]))
    return replace(held, weights=tuple(weights))


def _shape(random: Random, held: Contents) -> Contents:
    """Another shape, and as many bits as it needs (or nearly)."""

    def change(w: PackedWeight) -> dict[str, Any]:
        shape = list(w.shape)
        shape[random.randrange(len(shape))] = random.choice(SIZES)
        random.shuffle(shape) if random.random() < 0.2 else None
        count = byte_count(torch.Size(shape).numel()) + random.choice((0, 0, 0, -1, 1))
        return {"shape": tuple(shape), "bits": torch.zeros(max(count, 1), dtype=torch.uint8)}

    return _changed(random, held, change)


def _length(random: Random, now: int) -> int:
    return random.choice((1, now, now - 1, now + 1, 2 * now, now // 2, *SIZES))


def _scale(random: Random, held: Contents) -> Contents:
    return _changed(random, held, lambda w: {"scale": torch.rand(_length(random, w.shape[0]))})


def _shift(random: Random, held: Contents) -> Contents:
    def change(w: PackedWeight) -> dict[str, Any]:
        return {"shift": torch.rand(_length(random, w.shape[1]))}

    return _changed(random, held, change)


def _numbers(random: Random, held: Contents) -> Contents:
    task = random.choice(("BW", "BWA", "BWAA"))
    register = random.choice((8, 2, 24, 25)) if task == "BWAA" else random.choice((0, 0, 8))
    pad = random.choice((1.0, -1.0, 0.0))
    numbers = {"task": task, "register_bits": register, "pad_value": pad}
    return _changed(random, held, lambda _: numbers)


def _float(random: Random, held: Contents) -> Contents:
    """A bias or a statistic of another length."""
    name = random.choice(list(held.floats))
    value = torch.rand(_length(random, held.floats[name].numel()))
    return replace(held, floats=held.floats | {name: value})


def _answer(wrong: Contents, skeleton: nn.Module, x: Tensor, place: Path, off: int) -> str:
    """What becomes of a file, with the first ``off`` checks of Python taken away."""
    with ExitStack() as checks:
        for module, name in CHECKS[:off]:
            checks.enter_context(mock.patch.object(module, name, lambda *_: None))
        if off:
            checks.enter_context(mock.patch.object(loading, "_fitting", lambda _, weight: weight))
        try:
            with mock.patch.object(file, "check_contents", lambda _: None):
                file.write(wrong, place)
            pb.load(place, skeleton)(x)
        except (ValueError, RuntimeError, IndexError) as error:  # torch's own words for shapes
            known = off or isinstance(error, ValueError)
            return "refused" if known else f"{type(error).__name__}: {error}"
    return "run"
