"""``proxbit show``: what curves are called, and where their ticks stand."""

from pathlib import Path

import pytest

from proxbit.train.config import Config
from proxbit.train.records import Record
from proxbit.train.showing import RunView, _figure, draw_runs, labels


def run(name: str, epochs: int = 2, **options: object) -> RunView:
    records = tuple(
        Record(
            epoch=epoch, step=epoch, phase="soft", loss=1.0, lr=0.1, strength=1.0, soft=0.5,
            hard=0.5, flips=0.1, saturated=0.5, overflow=None, seconds=1.0, part="test", best=True,
        )
        for epoch in range(1, epochs + 1)
    )  # fmt: skip
    return RunView(name, Config(**options), records, None)


def test_curves_are_named_by_method_and_task_and_by_what_else_differs():
    views = [run("runs/a", method="bc"), run("runs/b", method="pc", task="BWA")]
    assert labels(views) == ["bc, BW (a)", "pc, BWA (b)"]
    views = [run("runs/a", data="npz:/far/c.npz"), run("runs/b", data="fashion", seed=3)]
    assert labels(views) == ["bnn++, BW, c.npz, seed 0 (a)", "bnn++, BW, fashion, seed 3 (b)"]


def test_folders_of_one_name_are_told_apart():
    assert labels([run("x/a/"), run("y/a")]) == ["bnn++, BW (x/a/)", "bnn++, BW (y/a)"]


@pytest.mark.parametrize("epochs", [1, 2, 3, 40])
def test_epochs_are_whole_numbers(epochs: int, tmp_path: Path):
    pytest.importorskip("matplotlib")
    figure = _figure([run("a", epochs), run("b", epochs, method="bc")])
    for axes in figure.axes:
        low, high = axes.get_xlim()
        ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
        assert ticks and all(tick == int(tick) for tick in ticks)
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert shown == ["bnn++, BW (a)", "bc, BW (b)"]
    draw_runs([run("a", epochs)], str(tmp_path / "c.png"))
    assert (tmp_path / "c.png").stat().st_size > 1000
