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
from proxbit.train.settings import resolve_method, with_options

SECONDS = 1.5


def packed_figures(run: Path, seconds: float = SECONDS) -> dict[str, Any]:
    """Bytes of the packed file and milliseconds of one image."""
    model, path = RunFolder(run).options().model, run / FILE
    skeleton = model if ".py" in model else None
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
    method = methods.method(config.method, config.settings)
    if not method.binary:
        return "float: there is no pair to judge"
    config = resolve_method(config, method)
    return str(check(with_options(method, config), frozen=config.frozen or 0.0))
