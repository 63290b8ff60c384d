"""The paper's figures: all there, each found by the cell that it belongs to."""

import csv

import pytest

from proxbit.core.methods import METHODS
from proxbit.experiments.reproduce.grids import GRIDS, cells_of
from proxbit.experiments.reproduce.paper import (
    FILE,
    PROTOCOLS,
    TABLES,
    figure_for,
    figures_of,
    paper_figures,
)

OF_OTHERS = {"BiViT"}  # a rival that the paper quotes and does not run


def all_cells():
    return [
        (grid, cell)
        for grid in GRIDS.values()
        for row in grid.rows
        for cell in cells_of(grid, row, "paper", seeds=(0,), blocks=["blocks.0"])
    ]


def test_every_line_of_the_file_is_a_figure():
    with FILE.open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    assert len(rows) == len(paper_figures()) > 300
    for row, figure in zip(rows, paper_figures(), strict=True):
        assert row[:6] == [
            figure.table, figure.model, figure.dataset, figure.pipeline, figure.task, figure.method
        ]  # fmt: skip
        assert float(row[6]) == figure.accuracy
        assert (float(row[7]) if row[7] else None) == figure.std


def test_accuracies_are_percentages_and_stds_are_small():
    for figure in paper_figures():
        assert 0 < figure.accuracy < 100
        assert figure.std is None or 0 <= figure.std < 5


def test_every_figure_of_the_paper_has_exactly_one_cell_in_its_grid():
    for grid in GRIDS.values():
        cells = [cell for other, cell in all_cells() if other is grid]
        for figure in figures_of(grid.name):
            if figure.table.startswith(("tab7", "tab8")) or figure.method in OF_OTHERS:
                continue
            assert sum(figure.shows(cell.axes) for cell in cells) == 1, figure


def test_error_bars_belong_to_cells_of_the_main_tables():
    bars = [each for each in paper_figures() if each.table.startswith(("tab7", "tab8"))]
    assert bars
    for bar in bars:
        assert any(bar.shows(cell.axes) and bar in figures_of(cell.grid) for _, cell in all_cells())


def test_the_std_of_an_error_bar_is_put_beside_the_figure_of_the_main_table():
    axes = {"model": "ResNet20", "dataset": "CIFAR-10", "pipeline": "E2E", "task": "BW"}
    key = axes | {"method": "BNN++"}
    bars = [each for each in paper_figures() if each.table.startswith("tab7") and each.shows(key)]
    found = figure_for("cnn", key)
    assert found.table == "tab2_cnn" and [found.std] == [bar.std for bar in bars] != [None]


def test_a_figure_never_answers_for_another_cell():
    for grid, cell in all_cells():
        found = figure_for(grid.name, cell.axes)
        if found is None:
            assert grid.name in ("blocks", "accumulators") or cell.row == "resnet20-cifar10"
            continue
        assert (found.model, found.dataset) == (cell.axes["model"], cell.axes["dataset"])
        assert found.method.split("|")[0] == cell.axes["method"]
        assert found.protocols == cell.axes.get("protocols", "")


def test_the_ablation_is_cumulative():
    found = {(f.method.split("|")[0], f.protocols): f.accuracy for f in figures_of("ablation")}
    assert set(found) == {(m, p) for m in ("PC", "BNN++") for p in PROTOCOLS}
    for method in ("PC", "BNN++"):
        rising = [found[method, each] for each in PROTOCOLS]
        assert rising == sorted(rising)


def test_every_grid_has_its_tables_and_every_column_is_a_method():
    assert set(TABLES) == set(GRIDS)
    known = {method.name for method in METHODS.values()}
    for grid in GRIDS.values():
        assert set(grid.methods) <= known
        for figure in figures_of(grid.name):
            assert figure.method.split("|")[0] in known | OF_OTHERS


@pytest.mark.parametrize("name", list(GRIDS))
def test_the_columns_of_a_grid_are_those_of_its_tables(name):
    printed = {figure.method.split("|")[0] for figure in figures_of(name)} - OF_OTHERS
    assert not printed or printed == set(GRIDS[name].methods)
