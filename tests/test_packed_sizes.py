"""One size, that of the file: in the report, in the summary, and in the file itself."""

import copy
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import proxbit as pb
from binarizing import binarize
from proxbit.deploy.packed_networks import inspect_file
from proxbit.engine.packed import packed_layers
from proxbit.packfile.contents import About, Contents
from proxbit.packfile.file import read, write
from proxbit.packfile.sizes import file_bytes


class Tied(nn.Module):
    """Embedding and head are one tensor; so are the weights of two hidden layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 32)
        self.a, self.b = nn.Linear(32, 32), nn.Linear(32, 32)
        self.b.weight = self.a.weight
        self.head = nn.Linear(32, 40, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.b(self.a(self.embedding(x)).tanh()))  # type: ignore[no-any-return]


class Untied(Tied):
    def __init__(self) -> None:
        super().__init__()
        self.b.weight = nn.Parameter(torch.randn(32, 32))
        self.head.weight = nn.Parameter(torch.randn(40, 32))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16),
        nn.ReLU(), nn.Conv2d(16, 5, 1), nn.Flatten(), nn.Linear(80, 4),
    )  # fmt: skip


class Odd(nn.Module):
    """Weights without a packed kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(12, 9)
        self.up = nn.ConvTranspose2d(9, 6, 3, groups=3)
        self.head = nn.Linear(6, 2)


NETS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "cnn": (cnn, {}),
    "tied": (Tied, {}),
    "attention": (lambda: nn.TransformerEncoderLayer(24, 2, 40), {}),
    "odd": (Odd, {"parametrize": ("lstm", "up")}),
    "half": (lambda: nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 9)).bfloat16(), {}),
    "all": (lambda: nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 9)), {"only": "*"}),
}


def hard(
    model: nn.Module, method: str = "bnn++", task: Any = "BW", **options: Any
) -> tuple[nn.Module, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pb.SettingsWarning)
        report = binarize(model, method, task, **options)
    return pb.harden(model).eval(), report


def packed(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pb.KernelWarning)
        return pb.pack(model)


@pytest.mark.parametrize("method", ["bnn++", "bc", "react"])
@pytest.mark.parametrize("scale", ["none", "layer", "channel"])
@pytest.mark.parametrize("task", ["BW", "BWA"])
@pytest.mark.parametrize("name", [*NETS])
def test_report_summary_and_file_tell_one_size(
    name: str, task: str, scale: str, method: str, tmp_path: Path
) -> None:
    make, options = NETS[name]
    model, report = hard(make(), method, task, scale=scale, **options)
    net, path = packed(model), tmp_path / "a"
    pb.save(net, path)
    assert report.bytes_packed == pb.summary(net).bytes_packed == path.stat().st_size


@pytest.mark.parametrize("tables", ["float", "int8"])
@pytest.mark.parametrize("rest", ["float32", "float16"])
def test_a_summary_follows_the_options_of_save(rest: str, tables: str, tmp_path: Path) -> None:
    model, _ = hard(nn.Sequential(nn.Linear(90, 80), nn.Linear(80, 80)))
    net, path, options = pb.pack(model), tmp_path / "a", {"float_rest": rest, "tables": tables}
    pb.save(net, path, labels=["é", "b"], input={"shape": [3, 8, 8]}, **options)
    loaded = pb.load(path, nn.Sequential(nn.Linear(90, 80), nn.Linear(80, 80)))
    found = pb.summary(loaded, **options)
    assert found.bytes_packed == path.stat().st_size == inspect_file(path).summary.bytes_packed
    assert sum(part.bytes for part in found.parts) + found.bytes_header == found.bytes_packed


DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64,
]  # fmt: skip


@given(
    floats=st.dictionaries(
        st.text(max_size=9),
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 99), max_size=3)),
        max_size=9,
    ),
    rest=st.sampled_from(["float32", "float16"]), tables=st.sampled_from(["float", "int8"]),
    labels=st.none() | st.lists(st.text(max_size=5), max_size=4),
)  # fmt: skip
def test_the_size_is_known_to_the_byte_before_a_file_is_written(
    floats: dict[str, Any], rest: str, tables: str, labels: list[str] | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    tensors = {n: torch.zeros(shape, dtype=dtype) for n, (dtype, shape) in floats.items()}
    held = Contents((), tensors, About(labels=None if labels is None else tuple(labels)))
    path = tmp_path_factory.mktemp("sizes") / "a"
    try:
        write(held, path, float_rest=rest, tables=tables)
    except ValueError:  # names that a file cannot have
        return
    assert file_bytes(held, float_rest=rest, tables=tables) == path.stat().st_size


@pytest.mark.parametrize("skeleton", [Tied, Untied])
@torch.no_grad()
def test_tied_tensors_are_stored_once_and_loaded_tied(
    skeleton: Callable[[], nn.Module], tmp_path: Path
) -> None:
    model, report = hard(Tied())
    net = pb.pack(model)
    pb.save(net, tmp_path / "a")
    held = read(tmp_path / "a")
    assert held.tied == {"b.weight": "a.weight", "head.weight": "embedding.weight"}
    assert [w.name for w in held.weights] == ["a.weight"]
    assert pb.summary(net).bytes_float == report.bytes_float
    loaded: Any = pb.load(tmp_path / "a", skeleton())
    assert loaded.head.weight is loaded.embedding.weight
    assert loaded.a.signs is loaded.b.signs
    x = torch.randint(40, (3, 7))
    assert torch.equal(loaded(x), net(x))
    torch.testing.assert_close(loaded(x), model(x), rtol=1e-4, atol=1e-5)
    pb.save(loaded, tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()


def test_thresholds_of_tied_layers_stay_their_own(tmp_path: Path) -> None:
    model: Any = hard(Tied(), "react", "BWA")[0]
    nn.init.normal_(model.b.binary.input_quantizer.shift)
    pb.save(pb.pack(model), tmp_path / "a")
    loaded, x = pb.load(tmp_path / "a", Tied()), torch.randint(40, (3, 7))
    assert torch.equal(loaded(x), model(x))


@pytest.mark.parametrize(
    "tied", [{"x": "nothing"}, {"embedding.weight": "a.bias"}, {"head.weight": "a.bias"},
             {"a.weight.more": "embedding.weight"}],
)  # fmt: skip
def test_ties_that_cannot_be_are_refused(tied: dict[str, str], tmp_path: Path) -> None:
    pb.save(pb.pack(hard(Tied())[0]), tmp_path / "a")
    held = replace(read(tmp_path / "a"), tied=tied)
    with pytest.raises(ValueError, match=r"another name|do not fit|skeleton has none"):
        write(held, tmp_path / "b")
        pb.load(tmp_path / "b", Tied())


def test_a_moved_network_is_saved_as_small_as_it_was(tmp_path: Path) -> None:
    net = pb.pack(hard(Tied())[0])
    pb.save(net, tmp_path / "a")
    pb.save(copy.deepcopy(net).double().float(), tmp_path / "b")
    assert (tmp_path / "a").stat().st_size == (tmp_path / "b").stat().st_size
    assert len({id(layer.signs) for _, layer in packed_layers(net)}) == 1
