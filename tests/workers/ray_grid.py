"""Cells on a local Ray cluster of two nodes, one of which is killed as soon as it works.

Usage: ray_grid.py FOLDER; prints the events and who was killed as JSON.
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

OPTIONS = Options(max_steps_per_epoch=2, cpu=True)


def refusal(**resources: float) -> str:
    """What is said about resources that no node has."""
    try:
        run_grid([], OPTIONS, Path(sys.argv[1]) / "refused", address="auto", **resources)
    except ValueError as error:
        return str(error)
    return ""


def main(folder: Path) -> None:
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    grid = GRIDS["cnn"]
    cells = cells_of(grid, find_rows(grid, "smoke", ["*cifar10*"])[0], "smoke")
    cells = [cell for cell in cells if cell.axes["pipeline"] == "E2E" and cell.axes["task"] == "BW"]
    seen: list[tuple[str, str, str]] = []
    killed: list[str] = []

    def watch(event: Event) -> None:
        seen.append((event.cell.name, event.state, event.note))
        if second.node_id[:8] in event.note and not killed:
            killed.append(event.cell.name)
            cluster.remove_node(second, allow_graceful=False)

    run_grid(cells[:4], OPTIONS, folder, watch)
    alive = [node["NodeID"][:8] for node in ray.nodes() if node["Alive"]]
    words = {
        "asked": [cell.name for cell in cells[:4]],
        "seen": seen,
        "killed": killed,
        "alive": alive,
    }
    again: list[str] = []
    run_grid(cells[:4], OPTIONS, folder, lambda event: again.append(event.state))
    words |= {"second": second.node_id[:8], "again": again, "refusal": refusal(gpus=1.0)}
    sys.stdout.write(json.dumps(words) + "\n")
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
