"""Cells on a Ray cluster: each is one task, its line comes back, the driver alone writes results.

Every node needs this proxbit, and the data and weights under the same paths as the driver. Where
the folder of the results is on a shared disk, a cell whose node died is resumed elsewhere;
otherwise it is begun again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import socket
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from proxbit.experiments.reproduce import running
from proxbit.experiments.reproduce.configs import Options
from proxbit.experiments.reproduce.grids import Cell
from proxbit.experiments.reproduce.results import ResultLine, sole_writer
from proxbit.experiments.reproduce.running import Event, Watch
from proxbit.util.files import is_trusted, private_folder, user
from proxbit.util.text import first_line, saying

TRIES_MORE = 5  # times that a cell whose worker died is run again
LOOK = 0.5  # seconds between looks at the cluster
PATIENCE = 10.0  # seconds for a cluster to answer


def run_grid(
    cells: Iterable[Cell],
    options: Options,
    folder: str | Path,
    watch: Watch = running.ignore,
    address: str = "auto",
    *,
    cpus: float = 1.0,
    gpus: float = 0.0,
) -> list[Event]:
    """Run the cells that are not done yet on a cluster, each result appended at once.

    Args:
        cells: What to run.
        options: What the user says about all cells.
        folder: Of the results, on the machine of the driver.
        watch: Called with every event.
        address: Of the cluster: ``ray://HOST:10001``, ``HOST:6379``, or ``auto`` on a node of it.
        cpus: Cores of each cell; as many threads compute it.
        gpus: GPUs of each cell, or the share of one.
    """
    with sole_writer(folder), _cluster(address) as ray:
        _require_resources(ray, cpus, gpus)
        ended, tell = running.keep_endings(watch)
        left = running.to_do(cells, options, folder, tell)
        progress = ray.remote(num_cpus=0, max_restarts=-1)(NodeBoard).remote()
        place = str(Path(folder).resolve()), str(Path.cwd())
        # Ray runs a task again elsewhere when its worker dies.
        task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=TRIES_MORE)(run_there)
        refs = {task.remote(cell, options, *place, progress): cell for cell in left}
        for cell, ref in _as_they_end(ray, refs, progress, watch):
            tell(running.finish_cell(cell, partial(_fetch, ray, ref), folder))
        return ended


def run_there(cell: Cell, options: Options, folder: str, home: str, progress: Any) -> ResultLine:
    """Run one cell in a worker, from the driver's working folder if this node has it."""
    import ray

    node = f"{platform.node()} ({ray.get_runtime_context().get_node_id()[:8]})"
    if is_trusted(home):  # files that the user names are looked for in it, and executed
        os.chdir(home)

    def report(event: Event) -> None:
        progress.put.remote(cell.name, node, event.share, event.note)

    report(Event(cell, "running", note="starting"))
    with saying(f"on {node}", ValueError):
        return running.run_cell(cell, options, folder_here(folder), report)


def folder_here(folder: str) -> str:
    """The folder of the results where this node sees it, otherwise a private one.

    Another user of this node may have put a folder at either place, with runs to be resumed.
    """
    if is_trusted(folder):
        return folder
    digest = hashlib.blake2b(folder.encode(), digest_size=16).hexdigest()
    own = Path(tempfile.gettempdir()) / f"proxbit-{user()}-{digest}"
    return str(private_folder(own))


class NodeBoard:
    """Where workers write how far their cells are; an actor of Ray."""

    def __init__(self) -> None:
        """Nothing is written yet."""
        self.notes: dict[str, tuple[str, float, str]] = {}

    def put(self, name: str, node: str, share: float, note: str) -> None:
        """Write down how far a worker is with a cell."""
        self.notes[name] = (node, share, note)

    def take(self) -> dict[str, tuple[str, float, str]]:
        """The entries since the last look."""
        notes, self.notes = self.notes, {}
        return notes


def _as_they_end(
    ray: Any, refs: dict[Any, Cell], progress: Any, watch: Watch
) -> Iterator[tuple[Cell, Any]]:
    """Every task as it ends; meanwhile the running cells are watched."""
    by_name = {cell.name: cell for cell in refs.values()}
    while refs:
        ready, _ = ray.wait(list(refs), num_returns=1, timeout=LOOK)
        for ref in ready:
            cell = refs.pop(ref)
            by_name.pop(cell.name)
            yield cell, ref
        for name, (node, share, note) in _notes(ray, progress).items():
            if name in by_name:
                words = f"{note} on {node}"
                watch(Event(by_name[name], "running", note=words, share=share))


def _notes(ray: Any, progress: Any) -> dict[str, tuple[str, float, str]]:
    """The entries of the nodes; none while the board itself moves from a node that died."""
    with suppress(ray.exceptions.RayError):
        notes: dict[str, tuple[str, float, str]] = ray.get(progress.take.remote(), timeout=10)
        return notes
    return {}


def _fetch(ray: Any, ref: Any) -> ResultLine:
    """The line of a task that ended; ValueError where there is none."""
    try:
        line: ResultLine = ray.get(ref)
        return line
    except ray.exceptions.RayTaskError as error:
        cause = error.cause if isinstance(error.cause, Exception) else error
        words = str(cause) if isinstance(cause, ValueError) else first_line(cause)
        raise ValueError(words) from None
    except ray.exceptions.RayError as error:
        tries = TRIES_MORE + 1
        raise ValueError(f"Ray gave up after {tries} tries: {first_line(error)}") from None


@contextmanager
def _cluster(address: str) -> Iterator[Any]:
    """Ray, connected; a connection that was there before stays."""
    try:
        import ray
    except ImportError as error:
        raise ValueError(
            f"cells run on {address!r} by Ray, which is not installed: pip install "
            "'proxbit[cluster]'"
        ) from error
    if ray.is_initialized():
        yield ray
        return
    require_answer(address)
    with saying(_silent(address), ConnectionError, ValueError, RuntimeError):
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield ray
    finally:
        ray.shutdown()


def require_answer(address: str) -> None:
    """Refuse a HOST:PORT that nobody listens at; Ray itself would try for a long time."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit()):
        return
    with saying(_silent(address), OSError, OverflowError):
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()


def _silent(address: str) -> str:
    return f"no Ray cluster answers at {address!r}"


def _require_resources(ray: Any, cpus: float, gpus: float) -> None:
    """Refuse what no node of the cluster can give: its cells would wait for ever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
        there = ", ".join(f"{n.get('CPU', 0):g} CPU {n.get('GPU', 0):g} GPU" for n in nodes)
        raise ValueError(
            f"a cell asks for {cpus:g} CPU and {gpus:g} GPU, and the nodes have {there}: ask for "
            "less, or start a larger node"
        )
