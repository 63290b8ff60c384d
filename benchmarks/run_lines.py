"""Folders of runs as lines of a results file: options, figures, versions; nothing is trained.

    python benchmarks/run_lines.py ROUND RUN... --results results/new-classes.jsonl

Lines have the form of results/recipes.jsonl, and *last*, the hard network's accuracy after the last
epoch (*hard* is that of the best epoch). Where images and weights lay is left out.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PLACES = ("data", "weights", "teacher", "data_root", "download", "workers", "cpu", "seed")
ABOUT = ("commit", "proxbit", "torch", "started", "threads")


def line_of(name: str, run: Path) -> dict[str, Any]:
    """One finished run."""
    config, result, about = (
        json.loads((run / f"{each}.json").read_text()) for each in ("config", "result", "about")
    )
    options = {key: value for key, value in config.items() if key not in PLACES}
    figures = {key: value for key, value in result.items() if key not in config}
    figures["last"] = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["hard"]
    figures |= {key: about[key] for key in ABOUT}
    return {"rounds": [name], "seed": config["seed"], "options": options, "result": figures}


def new_lines(name: str, runs: Sequence[Path], kept: str) -> list[str]:
    """The lines of runs that are not there yet."""
    lines = [json.dumps(line_of(name, run)) for run in runs]
    return [line for line in dict.fromkeys(lines) if line not in kept.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("round")
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--results", type=Path, required=True)
    given = parser.parse_intermixed_args()
    kept = given.results.read_text() if given.results.exists() else ""
    lines = new_lines(given.round, given.runs, kept)
    given.results.write_text(kept + "".join(f"{line}\n" for line in lines))
    print(f"{len(lines)} new lines in {given.results}")


if __name__ == "__main__":
    main()
