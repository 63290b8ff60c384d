"""The figures of a finished run besides its accuracy: bytes, milliseconds, the verdict."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from proxbit.core import methods
from proxbit.deploy.packed_networks import float_network, packed_network
from proxbit.deploy.runs import FILE, pack_run
from proxbit.deploy.speed import measure, noise
from proxbit.packfile.file import read
from proxbit.theory import check
from proxbit.train.config import Config
from proxbit.train.run_folder import RunFolder
from proxbit.train.settings import parse_strength, resolve_method

SECONDS = 1.5


def packed_figures(run: Path, seconds: float = SECONDS) -> dict[str, Any] | None:
    """Bytes of the packed file and milliseconds of one image; None for a float run."""
    config = RunFolder(run).options()
    if not methods.method(config.method, config.settings).binary:
        return None
    skeleton = config.model if ".py" in config.model else None
    path = run / FILE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice for people who pack by hand
        done = pack_run(run, force=True)
        held = read(path)
        shape = (held.about.input or {})["shape"]
        packed, plain = packed_network(path, held, skeleton), float_network(path, held, skeleton)
        found = measure(packed, plain, noise(1, *shape), seconds)
    return {
        "bytes": done.bytes, "ms": found.packed.median, "float_ms": found.float32.median,
        "threads": found.threads, "kernels": found.kernels,
    }  # fmt: skip


def verdict_of(config: Config) -> str:
    """The theory's verdict on a run's method at its strengths, phase by phase."""
    config = resolve_method(config)
    frozen, sharp = config.frozen or 0.0, config.sharp or 0.0
    method = methods.method(
        config.method, config.settings, schedule=parse_strength(config.strength),
        sharp=sharp / (1 - frozen), sharp_strength=config.sharp_strength,
    )  # fmt: skip
    if not method.binary:
        return "float: there is no pair to judge"
    return str(check(method, frozen=frozen))
