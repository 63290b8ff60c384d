"""The benchmark runs, and what it writes can be read."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # a process that imports timm's peers and trains a while

ROOT = Path(__file__).resolve().parents[1]
SMALL = ["--rounds=1", "--model=resnet20", "--batch-size=4", "--methods=bc", "--threads=1"]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("benchmark")
    script = str(ROOT / "benchmarks" / "training_step.py")
    files = ["--json", str(folder / "rows.json"), "--markdown", str(folder / "page.md")]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [sys.executable, script, *SMALL, *files], check=True, env=os.environ | {"PYTHONPATH": paths}
    )
    return folder


def test_every_task_has_a_ratio_to_float(outcome: Path) -> None:
    rows = json.loads((outcome / "rows.json").read_text())["rows"]
    assert {row["task"] for row in rows if row["method"] in ("-", "bc")} == {
        "float", "BW", "BWA", "BWAA",
    }  # fmt: skip
    for row in rows:  # of one round, whose median is its best
        assert (row["ratio"], row["spread"], row["rounds"]) == (row["best"], 0, 1)
        assert (row["extra_copies"] == 0) == (row["task"] == "float")


def test_the_numbers_carry_their_evidence(outcome: Path) -> None:
    about = json.loads((outcome / "rows.json").read_text())["environment"]
    assert {"cpu", "cores", "threads", "versions", "commit", "date", "command"} <= set(about)
    assert about["threads"] == 1
    assert "torch " in about["versions"]


def test_the_table_stands_between_its_markers(outcome: Path) -> None:
    page = (outcome / "page.md").read_text()
    table = page.split("<!-- training-step:begin -->")[1].split("<!-- training-step:end -->")[0]
    assert re.search(r"\| float \| - \| \d\.\d{3} \|", table)
