"""The HTML page of a report: self-contained, escaped, and alive in a real browser."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxbit.experiments.report.assembly import render
from proxbit.experiments.report.charts import (
    Bar,
    ChartCurve,
    bars_chart,
    curves_chart,
    heat_map,
    spread,
    ticks,
)
from proxbit.experiments.reproduce.results import ResultLine

NASTY = "<img src=x onerror=alert(1)> \"quoted\" 'single' </script> & ]]>"
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
VOID = {"meta", "input", "br"}


def line(method: str, hard: float | None, grid: str = "cnn", **more: Any) -> ResultLine:
    """One run; what is free text in it is as hostile as can be."""
    axes = {"model": "ResNet20", "dataset": "CIFAR-10", "pipeline": "FT", "task": "BW"}
    extra = {name: more.pop(name) for name in ("block", "task") if name in more}
    record = {"epoch": 1, "hard": hard, "soft": hard}
    given = {
        "grid": grid, "row": "r", "preset": "small", "key": axes | {"method": method} | extra,
        "seed": 0, "config": {"model": NASTY, "data": "d", "epochs": 1}, "error": None,
        "result": {"hard": hard, "n": 100, "float": 0.9}, "curve": [record], "verdict": NASTY,
        "packed": None, "commit": NASTY, "versions": {"torch": NASTY}, "device": NASTY,
        "started": "2026", "seconds": 1.0,
    }  # fmt: skip
    broken = {"result": None, "error": NASTY, "curve": []} if hard is None else {}
    return ResultLine(**(given | broken | more))


LINES = [
    line("BC", 0.7), line("PC", 0.6), line("BNN", None), line("BC", 0.5, task="BWA"),
    line("PTB", 0.1, "ptb"), line("FP", 0.9, "ptb"), line(NASTY, 0.4), line("BC", 0.3, NASTY),
    *(line("BNN++", 0.8 - i / 10, "blocks", block=f"blocks.{i}") for i in range(3)),
]  # fmt: skip


@pytest.fixture(scope="module")
def page() -> str:
    return render(LINES, "html", [NASTY])


class Reader(HTMLParser):
    """Collects the elements, their attributes, and whether every one is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    return reader


def test_the_page_asks_for_nothing_from_outside(page):
    for tag, attributes in read(page).seen:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "form"}
        assert "src" not in attributes and (attributes.get("href") or "#").startswith("#")
    assert "@import" not in page and "url(" not in page


def test_nothing_from_results_becomes_markup(page):
    seen = read(page).seen
    assert not any(name.startswith("on") for _, attributes in seen for name in attributes)
    assert [tag for tag, _ in seen].count("script") == 1
    assert NASTY not in page and page.count("&lt;img src=x") > 10


def test_links_lead_to_places_and_filters_to_tables(page):
    seen = read(page).seen
    names = [attributes["id"] for _, attributes in seen if "id" in attributes]
    assert len(names) == len(set(names))
    for tag, attributes in seen:
        if tag == "a":
            assert (attributes["href"] or "")[1:] in names
        if "data-table" in attributes:
            assert attributes["data-table"] in names


def test_every_row_is_as_long_as_its_head(page):
    for table in re.findall(r"<table.*?</table>", page, re.DOTALL):
        columns = table.count("<th ")
        rows = re.findall(r"<tr><td.*?</tr>", table, re.DOTALL)
        assert rows and {row.count("<td") for row in rows} == {columns}


def test_curves_bars_and_the_heat_map_are_drawn(page):
    charts = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    titles = [ElementTree.fromstring(chart).get("aria-label") or "" for chart in charts]
    for words in ("Accuracy over epochs: ResNet20", "the black mark is the paper", "one block"):
        assert any(words in title for title in titles)


@given(st.text(st.characters(codec="utf-8", exclude_categories=["C"])), st.floats(0, 100))
def test_every_chart_is_well_formed_whatever_it_is_called(name, value):
    curve = ChartCurve(name, ((1, value), (2, 50)), ((1, 3),))
    texts = [
        curves_chart(name, [curve, ChartCurve("x", ((1, value),))]),
        bars_chart(name, [Bar(name, name, value, None), Bar(name, "b", None, value)]),
        heat_map(name, [name, "b"], ["m"], [[value], [None]]),
    ]
    for text in texts:
        assert ElementTree.fromstring(text).get("aria-label") == name


@given(st.floats(-100, 100), st.floats(0, 100))
def test_ticks_are_few_rise_evenly_and_cover_the_range(low, span):
    found = ticks(low, low + span)
    steps = [b - a for a, b in pairwise(found)]
    assert 2 <= len(found) <= 6 and min(steps) > 0
    assert max(steps) - min(steps) < 1e-6
    assert found[0] <= low + 1e-9 and low + span <= found[-1] + 1e-9


@given(st.lists(st.floats(0, 100), min_size=1, max_size=8))
def test_names_at_the_ends_of_curves_keep_their_order_and_their_distance(wanted):
    placed = spread(wanted, 12, 0, 100)
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    gaps = [placed[b] - placed[a] for a, b in pairwise(order)]
    assert all(gap >= 12 - 1e-9 for gap in gaps)
    assert max(placed) <= 100 + 1e-9 and min(placed) >= -1e-9


# Run in the page: what its first table shows as it is, sorted, filtered, and on a phone.
TRY = """
const table = document.querySelector("table"), input = document.querySelector("input");
const shown = (column) => [...table.tBodies[0].rows].filter((row) => row.offsetParent !== null)
  .map((row) => row.cells[column].dataset.sort);
const found = {wide: document.documentElement.scrollWidth - innerWidth};
const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
const column = names.indexOf("BC");
for (const word of ["up", "down"]) {
  table.querySelectorAll("th button")[column].click();
  found[word] = shown(column);
}
input.value = "bwa RESNET20";
input.dispatchEvent(new Event("input"));
found.filtered = shown(column);
input.value = "";
input.dispatchEvent(new Event("input"));
found.all = shown(column).length;
document.body.dataset.found = JSON.stringify(found);
"""


def browse(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(BROWSER), "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
               "--disable-dev-shm-usage", "--enable-logging=stderr", *options,
               f"--user-data-dir={path.parent / 'profile'}", path.as_uri()]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="Chromium is not installed")
def test_a_browser_loads_sorts_and_filters_the_page_without_complaint(page, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(page.replace("</body>", f"<script>{{{TRY}}}</script></body>"))
    done = browse(path, "--window-size=500,900", "--dump-dom")
    assert "CONSOLE" not in done.stderr, done.stderr
    found = json.loads(_attribute(done.stdout, "body", "data-found"))
    assert found["wide"] <= 0  # tables scroll inside their frames, the page does not
    assert found["up"][:2] == ["50", "70"] and found["down"][:2] == ["70", "50"]
    assert set(found["up"][2:]) == {""}  # what was not run comes last, both ways
    assert set(found["down"][2:]) == {""}
    assert found["filtered"] == ["50", "", ""] and found["all"] == len(found["up"])


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="Chromium is not installed")
def test_a_mistake_in_a_page_would_be_heard(tmp_path):
    path = tmp_path / "wrong.html"
    path.write_text("<!DOCTYPE html><title>t</title><script>nothing.here()</script>")
    assert "CONSOLE" in browse(path, "--dump-dom").stderr


def _attribute(page: str, tag: str, name: str) -> str:
    (value,) = [attributes[name] for each, attributes in read_loosely(page) if each == tag]
    return value or ""


def read_loosely(page: str) -> list[tuple[str, dict[str, str | None]]]:
    """The elements of a page as a browser writes it down, which closes what it likes."""
    reader = Reader()
    reader.handle_endtag = lambda tag: None  # type: ignore[method-assign]
    reader.feed(page)
    return reader.seen
