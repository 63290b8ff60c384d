"""Model families of timm, torchvision and transformers: from binarize to load, nothing breaks."""

from pathlib import Path
from typing import Any

import journey
import pytest
import sweep
import torch
import zoo
from entry import Entry
from torch import Tensor, nn
from torch.nn import functional

import proxbit as pb

PAGE = Path(__file__).resolve().parents[1] / "docs" / "models.md"


@pytest.mark.models
@pytest.mark.filterwarnings("ignore")  # what other packages say when they are imported
@pytest.mark.parametrize("task", list(journey.METHODS))
@pytest.mark.parametrize("key", list(zoo.ENTRIES))
def test_a_model_keeps_every_promise(key: str, task: str) -> None:
    zoo.prepare()
    entry = zoo.ENTRIES[key]
    pytest.importorskip(entry.library)
    record = journey.travel(entry, task)
    assert not record.broken, record
    assert record.binary


def test_the_page_has_a_row_for_every_model() -> None:
    text = PAGE.read_text(encoding="utf-8").split(sweep.BEGIN)[1].split(sweep.END)[0]
    rows = [line.split("|")[1].split() for line in text.splitlines() if "`" in line]
    assert [f"{row[0]}/{row[1].strip('`')}" for row in rows] == list(zoo.ENTRIES)


class Plain(nn.Module):
    """Three layers, with a gap in front of the last where a subclass may bypass the second."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def middle(self, x: Tensor) -> Tensor:
        return self.two(x)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.three(self.middle(self.one(x).tanh()).tanh())  # type: ignore[no-any-return]


class Bypassing(Plain):
    """Reads a weight where neither source nor graph show it."""

    def middle(self, x: Tensor) -> Tensor:
        layer = getattr(self, "t" + "wo")
        return functional.linear(x, layer.weight)


def travelled(kind: type[nn.Module], task: str = "BW") -> journey.Record:
    entry = Entry("torch", kind.__name__, "nothing", kind, lambda: torch.randn(4, 8))
    return journey.travel(entry, task)


@pytest.mark.parametrize("task", list(journey.METHODS))
def test_a_plain_model_is_whole(task: str) -> None:
    record = travelled(Plain, task)
    assert not record.broken, record
    assert record.binary == (2 if task == "BW" else 1)
    assert record.bytes_packed == record.promised > 0
    assert "| equal |" in sweep.row([record, record]) or task == "BW"


def test_a_bypassed_weight_is_noticed() -> None:
    assert travelled(Bypassing).broken == ("not used: two.weight",)


def test_another_sign_is_noticed_in_the_weights_and_in_the_outputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load = pb.load

    def wrong(*given: Any) -> nn.Module:
        net: Any = load(*given)
        net.two.scale.neg_()
        return net  # type: ignore[no-any-return]

    monkeypatch.setattr(pb, "load", wrong)
    first, second = travelled(Plain).broken
    assert first.startswith("outputs differ by ")
    assert second == "other weights in two.weight"


def test_another_size_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    save = pb.save

    def longer(net: nn.Module, path: Path) -> None:
        save(net, path, labels=["a", "b", "c"])

    monkeypatch.setattr(pb, "save", longer)
    (only,) = travelled(Plain).broken
    assert only.startswith("sizes differ: ")


def test_an_exception_is_a_failure_in_the_table() -> None:
    class Breaking(Plain):
        def middle(self, x: Tensor) -> Tensor:
            raise RuntimeError("no way\nhere")

    record = travelled(Breaking)
    assert record.broken == ("RuntimeError: no way",)
    assert "**BW breaks: RuntimeError: no way**" in sweep.row([record])


def test_every_promise_can_be_told_from_a_record() -> None:
    entry = Entry("torch", "a", "nothing", Plain, lambda: torch.randn(1, 8))
    assert journey.Record(entry, "BWA", difference=1e-9, exact=True).broken
    assert not journey.Record(entry, "BWA", difference=0.0, exact=True).broken
    assert not journey.Record(entry, "BW", difference=1e-9).broken
    assert journey.Record(entry, "BW").broken  # NaN: never compared
