"""Cells on a local Ray cluster of two nodes, one of which is killed as soon as it works.

Usage: ray_grid.py FOLDER PLACE; prints the events and who was killed as JSON. In PLACE are images
and a network that takes its time until a file "hurry" is there.
"""

import json
import sys
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from proxbit.experiments.reproduce.configs import Options
from proxbit.experiments.reproduce.grids import GRIDS, cells_of, find_rows
from proxbit.experiments.reproduce.on_ray import run_grid
from proxbit.experiments.reproduce.running import Event

HEALTH = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500}  # of its nodes


def refusal(options: Options, folder: Path, **resources: float) -> str:
    """What is said about resources that no node has."""
    try:
        run_grid([], options, folder / "refused", address="auto", **resources)
    except ValueError as error:
        return str(error)
    return ""


def main(folder: Path, place: Path) -> None:
    options = Options(
        data=(("*", f"npz:{place}/i.npz"),), model=f"{place}/net.py:slow", epochs=1,
        max_steps_per_epoch=9, measure=False, cpu=True,
    )  # fmt: skip
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": HEALTH}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    grid = GRIDS["cnn"]
    cells = cells_of(grid, find_rows(grid, "smoke", ["*cifar10*"])[0], "smoke")
    cells = [cell for cell in cells if cell.axes["pipeline"] == "E2E" and cell.axes["task"] == "BW"]
    cells = cells[:2]  # one for each node
    seen: list[tuple[str, str, str]] = []
    killed: list[str] = []

    def watch(event: Event) -> None:
        seen.append((event.cell.name, event.state, event.note))
        if second.node_id[:8] in event.note and not killed:
            killed.append(event.cell.name)
            cluster.remove_node(second, allow_graceful=False)
            (place / "hurry").touch()

    run_grid(cells, options, folder, watch)
    alive = [node["NodeID"][:8] for node in ray.nodes() if node["Alive"]]
    words = {
        "asked": [cell.name for cell in cells],
        "seen": seen,
        "killed": killed,
        "alive": alive,
    }
    again: list[str] = []
    run_grid(cells, options, folder, lambda event: again.append(event.state))
    words |= {
        "second": second.node_id[:8],
        "again": again,
        "refusal": refusal(options, folder, gpus=1.0),
    }
    sys.stdout.write(json.dumps(words) + "\n")
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
