"""Where a figure comes from: machine, versions, commit, command."""

import ctypes
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
LIMITS = ("PROXBIT_KERNELS", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")  # to play another CPU


def environment(packages: Sequence[str], rounds: int, seed: int) -> dict[str, str | int]:
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "versions": ", ".join(f"{p} {version(p)}" for p in packages),
        "python": platform.python_version(),
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": f"`{shlex.join(['python', *_script(), *sys.argv[1:]])}`",
        "rounds": rounds,
        "seed": seed,
        **limits(),
    }


def limits() -> dict[str, str]:
    """Variables that keep a library from using all that the CPU has."""
    found = [f"{name}={os.environ[name]}" for name in LIMITS if name in os.environ]
    return {"limits": " ".join(found)} if found else {}


def team(threads: int) -> dict[str, str]:
    """How long several threads take to begin and end together, beyond a call with one.

    It tells how far their cores are from each other: in a virtual machine that changes, and with it
    every figure of several threads.
    """
    here = ctypes.CDLL(None)
    if threads == 1 or not hasattr(here, "GOMP_parallel"):
        return {}
    nothing = ctypes.cast(here.free, ctypes.c_void_p)  # free(NULL) does nothing
    kind = ctypes.CFUNCTYPE(None, *(ctypes.c_void_p,) * 2, *(ctypes.c_uint,) * 2)
    begin = kind(("GOMP_parallel", here))
    begin(nothing, None, threads, 0)  # the threads come into being
    alone, together = (middle_seconds(partial(begin, nothing, None, n, 0)) for n in (1, threads))
    return {"team": f"{threads} threads meet in {(together - alone) * 1e6:.1f} µs"}


def middle_seconds(call: Callable[[], object], in_all: float = 0.05) -> float:
    """The median over as many calls as fit into a while."""
    found, began = [], time.perf_counter()
    while (start := time.perf_counter()) < began + in_all:
        call()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown CPU")


def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"


def commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "uncommitted"


def _script() -> list[str]:
    return [str(Path(sys.argv[0]).resolve().relative_to(ROOT))]


def write_section(path: Path, name: str, about: dict[str, str | int], body: str, new: str) -> None:
    """Put facts and tables between the marks of ``name`` in a page.

    ``new`` is the section that is added first where the page has no such marks; "{marks}" in it
    stands for them.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    page = path.read_text() if path.exists() else "# Performance\n"
    if begin not in page:
        page += "\n" + new.format(marks=f"{begin}\n{end}")
    before, rest = page.split(begin, 1)
    facts = "\n".join(f"- {key}: {value}" for key, value in about.items())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{before}{begin}\n{facts}\n\n{body}\n{end}{rest.split(end, 1)[1]}")
