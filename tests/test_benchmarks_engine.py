"""The benchmarks of kernels and networks run, and what they write can be read."""

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.slow  # processes that import torch and time layers

ROOT = Path(__file__).resolve().parents[1]
OURS = {"float", "BW", "BW input8", "BWA", "BWAA"}


def run(script: str, folder: Path, *arguments: str) -> dict[str, Any]:
    """What a smoke run writes, with the page beside it under "page"."""
    files = ["--json", str(folder / "rows.json"), "--markdown", str(folder / "page.md")]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(ROOT / "benchmarks" / script), "--quick", *files, *arguments]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": paths})
    written: dict[str, Any] = json.loads((folder / "rows.json").read_text())
    return written | {"page": (folder / "page.md").read_text()}


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run("kernels.py", tmp_path_factory.mktemp("layers"))


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run("network.py", tmp_path_factory.mktemp("networks"))


def test_every_layer_meets_every_contender_of_ours(layers: dict[str, Any]) -> None:
    met: dict[str, set[str]] = {}
    for row in layers["rows"]:
        met.setdefault(json.dumps(row["case"]), set()).add(row["contender"])
    kinds = {json.loads(case)["kind"] for case in met}
    assert kinds == {"linear", "gemv", "conv"}
    assert all(names >= OURS for names in met.values())


def test_a_ratio_of_layers_has_its_rounds_and_its_error(layers: dict[str, Any]) -> None:
    for row in layers["rows"]:
        timing = row["timing"]
        assert timing["rounds"] == layers["environment"]["rounds"]
        assert timing["least_us"] <= timing["us"]
        if row["contender"] in ("BWA", "BWAA"):
            assert row["error"] == 0


def test_each_kind_of_layer_has_its_own_section(layers: dict[str, Any]) -> None:
    page = layers["page"]
    names = re.findall(r"<!-- (\S+):begin -->", page)
    assert names == ["kernels-linear", "kernels-gemv", "kernels-conv"]
    for name in names:
        section = page.split(f"<!-- {name}:begin -->")[1].split(f"<!-- {name}:end -->")[0]
        assert re.search(r"\| layer \| float µs \| float \|", section)
        assert re.search(r"\| \d+\.\d\d ±\d+\.\d\d \(\d+\.\d\d\) \|", section)


def test_the_float_copies_of_a_streamed_layer_exceed_the_caches(layers: dict[str, Any]) -> None:
    streamed = [row["case"] for row in layers["rows"] if row["case"]["copies"] > 1]
    assert {case["kind"] for case in streamed} == {"gemv"}
    for case in streamed:
        assert 4 * case["outputs"] * case["inputs"] * case["copies"] > 64 * 2**20


def test_packed_networks_agree_with_hard_ones_and_are_smaller(networks: dict[str, Any]) -> None:
    rows = {row["contender"]: row for row in networks["rows"]}
    assert set(rows) == OURS | {"hard BW", "hard BWA", "hard BWAA"}
    for name in OURS - {"float"}:
        assert rows[name]["error"] < (0.2 if name == "BW input8" else 1e-4)
        assert rows[name]["bytes"] < rows["float"]["bytes"] / 10
        assert re.fullmatch(r"\d+ of 18", rows[name]["on_bits"])


def test_the_table_of_networks_stands_between_its_marks(networks: dict[str, Any]) -> None:
    section = networks["page"].split("<!-- networks:begin -->")[1].split("<!-- networks:end")[0]
    assert "### resnet20, batch 1, 1 thread" in section
    assert re.search(r"\| BWA \| \d+\.\d\d ±", section)


def test_the_numbers_carry_their_evidence(layers: dict[str, Any], networks: dict[str, Any]) -> None:
    for about in (layers["environment"], networks["environment"]):
        assert {"cpu", "cores", "threads", "versions", "commit", "command", "kernels"} <= set(about)
        assert "torch " in about["versions"]


def test_several_threads_are_measured_in_processes_of_their_own(tmp_path: Path) -> None:
    script, page = ROOT / "benchmarks" / "threads.py", tmp_path / "page.md"
    options = ["--model", "resnet20", "--processes", "2", "--rounds", "1", "--markdown", str(page)]
    subprocess.run([sys.executable, str(script), *options], check=True, stdout=subprocess.PIPE)
    rows = re.findall(r"^\| resnet20 BWA \| (\d) \| (.*) \|$", page.read_text(), re.MULTILINE)
    assert [number for number, _ in rows] == ["1", "2"]
    for _, cells in rows:
        one, two, ratio, of_float = map(float, cells.split(" | ")[:4])
        assert one > 0 and of_float > 0
        assert ratio == pytest.approx(one / two, rel=0.05)  # one round; what is printed is rounded


@given(mine=st.floats(1e-4, 9), base=st.floats(1e-4, 9), copies=st.integers(1, 3))
def test_a_ratio_says_how_many_times_faster_than_the_other_one_is(
    mine: float, base: float, copies: int
) -> None:
    """On a clock that only calls move."""
    now = [0.0]

    def takes(seconds: float) -> list[Callable[[], None]]:
        return [lambda: now.append(now.pop() + seconds)] * copies

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        pairing = importlib.import_module("pairing")
        clock = SimpleNamespace(perf_counter=lambda: now[0], sleep=lambda _: None)
        patch.setattr(pairing, "time", clock)
        patch.setattr(pairing, "gc", SimpleNamespace(collect=int))
        timing = pairing.compare(takes(mine), takes(base), rounds=3)
    assert (timing.ratio, timing.best) == (pytest.approx(base / mine),) * 2
    assert (timing.us, timing.least_us) == (pytest.approx(1e6 * mine),) * 2
    assert timing.spread == pytest.approx(0, abs=1e-6 * timing.ratio)


@pytest.mark.parametrize(("over", "reached"), [("float", "1 of 2"), ("BW", "2 of 2")])
def test_an_aim_is_judged_by_the_ratio_to_whom_it_names(
    over: str, reached: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    pairing = importlib.import_module("pairing")
    ratios = {"float": 0.5, "BW": 1.0, "BWA": 4.0}, {"float": 2.0, "BW": 0.5, "BWA": 2.5}
    rows = [
        pairing.Row(case, threads, name, 0.0, pairing.Timing(ratio, 0, 0, 0, 0, 3))
        for case, found in enumerate(ratios)
        for name, ratio in found.items()
        for threads in (1, 2)
    ]
    aim = pairing.Aim("BWA", 3, over, "every case", lambda case: True)
    line = pairing.judged(rows, [aim])
    assert f"reached in {reached}" in line
    assert ("missed: 1 2.50x" in line) == (over == "float")
