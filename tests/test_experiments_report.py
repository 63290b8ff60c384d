"""``proxbit report``: cells from lines, tables, claims, Markdown, CSV, and what it refuses."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from proxbit.cli.reproduce_commands import report
from proxbit.experiments.report.assembly import (
    build_report,
    format_of,
    read_folders,
    render,
    write_report,
)
from proxbit.experiments.report.cells import outcomes
from proxbit.experiments.report.claims import MEMORY, claims
from proxbit.experiments.report.markdown_page import plain
from proxbit.experiments.report.parts import Claim, Entry, Table
from proxbit.experiments.report.statements import STATEMENTS
from proxbit.experiments.reproduce.paper import PROTOCOLS, figure_for
from proxbit.experiments.reproduce.results import ResultLine, append_result
from proxbit.train.divergence import CURE

AXES = {"model": "ResNet20", "dataset": "CIFAR-10", "pipeline": "FT", "task": "BW"}
(
    FAMILY, BEST, PLUS, DROP, ORIGINALS, BIVIT, PTB, EACH, ENDS, EIGHT, START,
) = (statement.text for statement in STATEMENTS)  # fmt: skip


def line(
    method: str, hard: float | None, seed: int = 0, grid: str = "cnn", **axes: str
) -> ResultLine:
    """One run that reached ``hard``; None: it broke."""
    record = {"epoch": 1, "hard": (hard or 0) / 2, "soft": (hard or 0) / 3}
    result = {
        "hard": hard,
        "n": 10_000,
        "soft": 0.9,
        "float": 0.95,
        "bytes_float": 3200,
        "seconds": 9,
    }
    return ResultLine(
        grid=grid, row="cifar10", preset="small", key=AXES | {"method": method} | axes, seed=seed,
        config={"model": "resnet20", "data": "npz:/far/away/c.npz", "epochs": 2,
                "max_steps_per_epoch": None},
        result=None if hard is None else result, error="it | broke" if hard is None else None,
        curve=[] if hard is None else [record, record | {"epoch": 2, "hard": hard}],
        verdict="admitted: yes", packed={"bytes": 100, "ms": 2.0, "float_ms": 5.0}, commit="abc",
        versions={"torch": "2.13.0"}, device="cpu", started=f"2026-01-01T00:00:{seed:02d}Z",
        seconds=12.0,
    )  # fmt: skip


def row(table: Table, label: str) -> dict[str, Entry]:
    """The first row that has a label, by column."""
    for entries in table.rows:
        names = (entries[0].text, *entries[0].detail)
        if any(name == label or name.endswith(f" for {label}") for name in names):
            return dict(zip(table.head, entries, strict=True))
    raise AssertionError(f"no row {label}")


def cnn_table(*lines: ResultLine) -> Table:
    return build_report(lines).sections[0].table


def judged(text: str, lines: Sequence[ResultLine]) -> Claim:
    (claim,) = [claim for claim in claims(outcomes(lines)) if claim.text == text]
    return claim


def test_a_cell_shows_mean_spread_seeds_the_paper_and_the_difference():
    cell = row(cnn_table(line("BC", 0.80), line("BC", 0.82, seed=1)), "FT, BW")["BC"]
    paper = figure_for("cnn", AXES | {"method": "BC"}).accuracy
    assert cell.text == "81.00 ± 1.41"
    assert cell.detail == (f"paper {paper:.2f}", f"{81 - paper:+.2f}, n 2")


def test_cells_that_were_not_run_are_empty_and_broken_ones_say_so():
    table = cnn_table(line("BC", 0.80), line("PC", None))
    cells = row(table, "FT, BW")
    assert cells["BC"].text == "80.00" and cells["BC"].detail[1].endswith("n 1")
    assert cells["PC"].text == "broken" and cells["PC"].broken
    assert cells["BNN"].text == "" and cells["BNN"].detail == ("paper 90.35",)
    assert "Broken: ResNet20, CIFAR-10, FT, BW, PC, seed 0: it | broke" in table.notes


def test_the_rows_and_columns_are_those_of_the_paper():
    table = cnn_table(line("BC", 0.80))
    methods = ("FP", "PQ", "rPC", "BC", "PC", "BNN", "BNN+", "BNN++")
    assert table.head == ("row", *methods, "here")
    models = [entries[0].text for entries in table.rows]
    assert models == ["ResNet20"] * 5 + ["ResNet50"] * 5


@pytest.mark.parametrize(("second", "bold"), [(0.80, True), (0.8299, False)])
def test_the_best_is_bold_only_when_the_second_is_surely_worse(second, bold):
    cells = row(cnn_table(line("FP", 0.9), line("BC", 0.83), line("PC", second)), "FT, BW")
    assert [name for name, cell in cells.items() if cell.strong] == ["BC"] * bold


def test_seeds_decide_where_there_are_several():
    """0.83 against 0.82 over 10,000 images is hardly chance; with this spread over seeds it is."""
    wide = [line("BC", 0.83 + d, seed) for seed, d in enumerate((-0.03, 0.0, 0.03))]
    other = [line("PC", 0.82 + d, seed) for seed, d in enumerate((-0.03, 0.0, 0.03))]
    assert not row(cnn_table(*wide, *other), "FT, BW")["BC"].strong
    assert row(cnn_table(line("BC", 0.84), line("PC", 0.82)), "FT, BW")["BC"].strong


def test_the_same_seed_again_replaces_and_a_later_failure_does_not():
    later = replace(line("BC", 0.9), started="2026-02-01T00:00:00Z")
    failed = replace(line("BC", None), started="2026-03-01T00:00:00Z")
    (cell,) = outcomes([failed, later, line("BC", 0.1)])
    assert cell.sample.values == (0.9,) and cell.broken == ()


def test_runs_of_another_length_are_another_row_and_never_averaged():
    longer = replace(line("BC", 0.9, seed=1), config=line("BC", 0.9).config | {"epochs": 7})
    table = cnn_table(line("BC", 0.8), line("PC", 0.7), longer)
    rows = [dict(zip(table.head, entries, strict=True)) for entries in table.rows[:2]]
    assert [cells["BC"].text for cells in rows] == ["80.00", "90.00"]
    assert [cells["here"].text for cells in rows] == [
        "resnet20, c.npz, 2 epochs", "resnet20, c.npz, 7 epochs"
    ]  # fmt: skip
    assert judged(BEST, [line("BNN++", 0.9), replace(longer, key=line("BC", 0).key)]).evidence == ()


def test_an_ablation_lists_methods_and_switches_down_as_the_paper_does():
    axes = {"model": "ViT-B", "protocols": "scale+norm"}
    table = build_report([line("PC", 0.6, grid="ablation", **axes)]).sections[0].table
    third = [entry.text for entry in table.rows[2]]
    assert third == ["PC", "✓", "✓", "-", "-", "60.00", "resnet20, c.npz, 2 epochs"]
    assert table.rows[2][5].detail == ("paper 66.51", "-6.51, n 1") and len(table.rows) == 10


@pytest.mark.parametrize(
    ("plus", "outcome"), [(0.80, "holds"), (0.86, "does not hold"), (0.8301, "not decided")]
)
def test_a_claim_is_decided_by_significant_differences(plus, outcome):
    claim = judged(PLUS, [line("BNN++", 0.83), line("BNN+", plus)])
    assert claim.outcome == outcome and "BNN++ 83.00" in claim.reason


def test_one_comparison_against_a_claim_refutes_it_and_one_open_leaves_it_open():
    good = [line("BNN++", 0.9), line("BC", 0.8), line("PC", 0.8)]
    assert judged(BEST, good).outcome == "holds"
    assert judged(BEST, [*good, line("BNN", 0.9)]).outcome == "not decided"
    assert judged(BEST, [*good, line("BNN", 0.9), line("BNN+", 0.95)]).outcome == "does not hold"


def test_every_claim_of_the_paper_can_hold_and_its_reverse_cannot():
    middle = ("BNN", "BC", "PC", "BNN+", "Poly+", "EDE+")
    low = ("PQ", "rPC", "Bi-Real", "R-BNN", "EDE", "PTB")
    scores = {"BNN++": 0.9} | dict.fromkeys(middle, 0.8) | dict.fromkeys(low, 0.5)
    drops = {"patch_embed": 0.3, "blocks.0": 0.1, "blocks.10": 0.1, "head": 0.3}
    widths = {"4 bits": 0.1, "7 bits": 0.2, "8 bits": 0.75}

    def register(bits: str, hard: float, start: str = "FT") -> ResultLine:
        return line("BC", hard, grid="accumulators", bits=bits, pipeline=start, task="BWAA")

    def lines(way: float) -> list[ResultLine]:
        methods = [line(m, 0.5 + way * (hard - 0.5)) for m, hard in scores.items()]
        floats = [line("FP", 0.95 if way else 0.6)]
        steps = [line("PC", 0.5 + way * i / 10, grid="ablation", protocols=p)
                 for i, p in enumerate(PROTOCOLS)]  # fmt: skip
        blocks = [line("BNN++", 0.5 - way * drop, grid="blocks", block=name)
                  for name, drop in drops.items()]  # fmt: skip
        tuned = [register(bits, 0.45 + way * (hard - 0.45)) for bits, hard in widths.items()]
        scratch = [register("8 bits", 0.45 - way * 0.3, "E2E")]
        wide = [register("16 bits", 0.8, start) for start in ("FT", "E2E")]
        others = [line("BNN++", 0.708 + way / 10, grid="bivit", **SWIN)]
        return [*methods, *floats, *steps, *blocks, *tuned, *scratch, *wide, *others]

    def said(way: float) -> list[Claim]:
        every = claims(outcomes([replace(each, preset="paper") for each in lines(way)]))
        return [claim for claim in every if claim.text != MEMORY]

    assert {claim.outcome for claim in said(1)} == {"holds"}
    assert {claim.outcome for claim in said(-1)} == {"does not hold"}
    assert {claim.outcome for claim in said(0)} == {"not decided"}
    counts = {claim.text: len(claim.evidence) for claim in said(1)}
    each = (FAMILY, PLUS, DROP, ORIGINALS, BIVIT, PTB, EACH, ENDS, EIGHT, START)
    assert [counts[text] for text in each] == [10, 1, 1, 3, 1, 1, 4, 4, 3, 1]


SWIN = {"model": "Swin-T", "dataset": "ImageNet-1K"}


@pytest.mark.parametrize(("text", "grid"), [(each.text, each.grid) for each in STATEMENTS])
def test_a_claim_without_results_says_what_runs_it(text, grid):
    for preset, other in (("small", "small"), ("paper", "paper"), ("smoke", "small")):
        lone = replace(line("BC", 0.8, task="BWA"), preset=preset, packed=None)
        claim = judged(text, [lone])
        needed = "paper" if grid == "bivit" else other
        assert (claim.outcome, claim.evidence) == ("not run", ())
        assert (
            claim.reason == f"run it with  proxbit reproduce {grid} --preset {needed} --data DATA"
        )


def test_a_width_that_diverged_did_not_work_and_one_that_broke_otherwise_says_nothing():
    axes = {"grid": "accumulators", "task": "BWAA"}
    wide, eight = (
        line("BC", hard, bits=b, **axes) for b, hard in (("16 bits", 0.8), ("8 bits", 0.7))
    )
    lost = line("BC", None, bits="7 bits", **axes)
    diverged = replace(lost, error=f"the loss became nan at step 3, where w is not finite: {CURE}")
    assert judged(EIGHT, [wide, eight, diverged]).outcome == "holds"
    assert len(judged(EIGHT, [wide, eight, diverged]).evidence) == 2
    assert len(judged(EIGHT, [wide, eight, lost]).evidence) == 1


@pytest.mark.parametrize(("smaller", "outcome"), [(100, "holds"), (200, "does not hold")])
def test_memory_is_counted_in_bytes(smaller, outcome):
    found = [replace(line("BC", 0.8), packed={"bytes": smaller}), line("FP", 0.9)]
    claim = judged(MEMORY, found)
    assert claim.outcome == outcome and f"{3200 / smaller:.3g} times" in claim.reason
    assert judged(MEMORY, [replace(found[0], packed=None)]).outcome == "not run"


def test_the_figures_of_bivit_stand_beside_ours():
    table = build_report([line("BNN++", 0.713, grid="bivit", **SWIN)]).sections[0].table
    cells = row(table, "Swin-T")
    assert (cells["BNN++"].text, cells["BiViT"].text) == ("71.30", "")
    assert cells["BNN++"].detail == ("paper 71.30", "+0.00, n 1")
    assert cells["BiViT"].detail == ("paper 70.80",)
    assert row(table, "NesT-T")["BiViT"].detail == ("paper 68.70",)


@pytest.mark.parametrize(
    ("model", "data", "labels"),
    [
        ("tiny_vit", "fashion", ["tiny_vit for DeiT-T", "fashion for CIFAR-10"]),
        ("timm/deit_tiny_patch16_224.fb_in1k", "cifar10", ["DeiT-T", "CIFAR-10"]),
        ("timm/deit_tiny_patch16_224", "npz:/a/cifar10.npz", ["DeiT-T", "CIFAR-10"]),
        ("DeiT-T", "npz:cifar100.npz", ["DeiT-T", "cifar100.npz for CIFAR-10"]),
        ("nets/a.py:build", "folder:/x/clothes", ["a.py:build for DeiT-T", "clothes for CIFAR-10"]),
    ],
)
def test_a_row_says_what_was_trained_in_the_place_of_the_papers(model, data, labels):
    found = line("BC", 0.8, grid="vit-tasks", model="DeiT-T")
    found = replace(found, config=found.config | {"model": model, "data": data})
    table = build_report([found]).sections[0].table
    words = " ".join([*(t for e in table.rows[0][:1] for t in (e.text, *e.detail)), *table.notes])
    for label in labels:
        assert label in words
    assert words.count(" for ") == sum(" for " in label for label in labels)
    assert "for" not in table.rows[-1][0].text  # a row that was not run names the paper's alone


def test_a_run_that_stands_in_two_grids_is_one_run_in_two_cells():
    once = line("BNN++", 0.9)
    facts = build_report([once, replace(once, grid="additional"), line("BNN++", 0.8, 1)]).facts
    assert "Runs: 2 finished, 0 broken, in 2 cells" in facts


def test_smoke_runs_decide_nothing():
    lines = [replace(line(m, hard), preset="smoke") for m, hard in (("BNN++", 0.9), ("BNN+", 0.1))]
    found = claims(outcomes(lines))
    assert {c.outcome for c in found} == {"not decided", "not run"}
    assert {c.evidence for c in found} == {()}
    assert {c.text for c in found if c.outcome == "not decided"} == {BEST, PLUS, MEMORY}


def test_csv_holds_every_cell_with_the_figures_of_the_table():
    lines = [line("BC", 0.80), line("BC", 0.82, seed=1), line("PC", None), line("FP", 0.9)]
    first, second, third = csv.DictReader(io.StringIO(render(lines, "csv")))
    assert (first["method"], first["hard"], first["seeds"]) == ("BC", "81.0", "2")
    assert float(first["std"]) == pytest.approx(2**0.5, abs=1e-4)
    assert float(first["difference"]) == pytest.approx(81 - float(first["paper"]))
    assert (second["hard"], second["error"]) == ("", "it | broke") and third[
        "bytes_packed"
    ] == "100.0"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x"])
def test_no_word_in_csv_is_a_formula(text):
    (found,) = csv.DictReader(io.StringIO(render([replace(line("BC", None), error=text)], "csv")))
    assert found["error"] == "'" + text


@given(st.text("ab|\\`*_[]<>&~# \t\n\r\x85\u2028"))
def test_no_text_breaks_a_markdown_table(text):
    shown = plain(text)
    assert (
        "\n" not in shown
        and "<" not in shown
        and "|" not in shown.replace("\\\\", "").replace("\\|", "")
    )


def test_every_row_of_a_markdown_table_has_as_many_cells_as_its_head():
    text = render([line("BC", 0.80), line("PC", None)], "markdown")
    tables = [part.splitlines() for part in text.split("\n\n") if part.startswith("|")]
    assert len(tables) == 3  # the grid, the packed networks, the verdicts; charts and runs are not
    for lines in tables:
        assert len({each.replace("\\|", "").count("|") for each in lines}) == 1


def test_the_tables_of_packed_networks_and_verdicts_say_how_many_times_less():
    packed, verdicts = build_report([line("BC", 0.8)]).tables[:2]
    cells = dict(zip(packed.head, packed.rows[0], strict=True))
    assert (cells["smaller"].text, cells["faster"].text) == ("32 x", "2.5 x")
    assert [entry.text for entry in verdicts.rows[0]] == ["BC", "admitted: yes"]


@pytest.mark.parametrize(
    "result",
    [{}, {"hard": 1.2, "n": 5}, {"hard": 0.5, "n": 0}, {"hard": "x", "n": 1},
     {"hard": False, "n": 1}, {"hard": 0.5, "n": True}],
)  # fmt: skip
def test_a_result_without_its_figures_is_refused_by_name(result):
    with pytest.raises(
        ValueError, match=r"^cnn, small, ResNet20, .*, BC, seed 0: (hard|n) must be"
    ):
        outcomes([replace(line("BC", 0.5), result=result)])


def test_cells_of_one_grid_have_one_kind_of_key():
    odd = line("PC", 0.6, grid="ablation", model="ViT-B")
    for form in ("html", "markdown", "csv"):
        with pytest.raises(ValueError, match="some cells of 'ablation' name protocols and others"):
            render([odd], form)


def said(*arguments: str | Path) -> tuple[int, str, str]:
    app = typer.Typer()
    app.command()(report)
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    append_result(tmp_path / "a", line("BC", 0.80))
    append_result(tmp_path / "b", line("BC", 0.82, seed=1))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "form", "begins"),
    [("r.html", "html", "<!DOCTYPE html>"), ("r.md", "markdown", "# "), ("r.CSV", "csv", "grid,")],
)
def test_the_ending_of_the_file_says_the_format(folder, name, form, begins):
    status, words, _ = said(folder / "a", folder / "b", "-o", folder / name)
    assert (status, words.split(":")[0]) == (0, f"written as {form}")
    assert (folder / name).read_text(encoding="utf-8").startswith(begins)


def test_folders_come_together_and_one_given_twice_counts_once(folder):
    _, text, _ = said(folder / "a", folder / "b", folder / "a", "--format", "csv")
    (found,) = csv.DictReader(io.StringIO(text))
    assert (found["hard"], found["seeds"]) == ("81.0", "2")


def test_the_same_results_give_the_same_bytes(folder):
    for name in ("one.html", "two.html"):
        write_report([folder / "a"], folder / name)
    assert (folder / "one.html").read_bytes() == (folder / "two.html").read_bytes()


def test_mistakes_are_one_sentence_and_write_nothing(folder):
    (folder / "empty").mkdir()
    (folder / "empty" / "results.jsonl").write_text("")
    (folder / "old").mkdir()
    (folder / "old" / "results.jsonl").write_text(json.dumps({"version": 99}) + "\n")
    a, out = folder / "a", folder / "new.html"
    for arguments, words in [
        ([a, "-o", folder / "r.pdf"], "no format is known for"),
        ([a, "-o", out, "--format", "pdf"], "unknown format 'pdf'"),
        ([folder / "none", "-o", out], "there are no results in"),
        ([folder / "empty", "-o", out], "no cell has run yet in"),
        ([folder / "old", "-o", out], "line 1"),
        ([a, "-o", folder / "no" / "r.html"], "cannot write"),
    ]:
        status, shown, problem = said(*arguments)
        assert (status, shown, problem.count("\n")) == (2, "", 1) and words in problem
        assert not out.exists() and not (folder / "r.pdf").exists()


def test_a_given_format_beats_the_ending():
    assert format_of("r.html", "csv") == "csv" and format_of("r.htm") == "html"


def test_the_page_of_our_results_is_that_of_our_lines():
    root = Path(__file__).resolve().parents[1]
    page = (root / "docs" / "results" / "tables.md").read_text()
    folders = page.split("- From: ")[1].split("\n")[0].split(", ")
    lines = read_folders([root / folder for folder in folders])
    assert page == render(lines, "markdown", folders)
