"""What the commands of packed networks are made of: files, images, speed; and their page."""

import re
import runpy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from typer.testing import CliRunner

import proxbit as pb
from proxbit.cli.root import app
from proxbit.data import fashion_mnist
from proxbit.data.image_folder import Files, FolderSet
from proxbit.deploy.image_inputs import InputForm, read_image
from proxbit.deploy.packed_networks import float_network, inspect_file, packed_network
from proxbit.deploy.runs import compare, input_of
from proxbit.deploy.speed import Speed, Timing
from proxbit.engine.timing import race
from proxbit.packfile.file import read
from proxbit.util.compat import allow_torchvision

# Files


def test_inspect_shows_registers(tmp_path):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    pb.binarize(model, "bnn", pb.Task("BWAA", bits=6))
    pb.save(pb.pack(pb.harden(model)), tmp_path / "n")
    found = inspect_file(tmp_path / "n")
    assert found.accumulator == (6, 2.0) and "6 bits, slope 2" in str(found)


def test_weights_in_rows_come_together(tmp_path):
    make = "from torch import nn\ndef net():\n    return nn.TransformerEncoderLayer(8, 2, 16)\n"
    (tmp_path / "t.py").write_text(make)
    model = nn.TransformerEncoderLayer(8, 2, 16)
    pb.binarize(model, "bc", only="*")
    pb.save(pb.pack(pb.harden(model)), tmp_path / "n")
    spec, held = f"{tmp_path}/t.py:net", read(tmp_path / "n")
    plain = float_network(tmp_path / "n", held, spec)
    weight: Any = model.self_attn.in_proj_weight
    torch.testing.assert_close(plain.self_attn.in_proj_weight, weight, rtol=1e-6, atol=0)
    x = torch.randn(5, 2, 8)
    with torch.inference_mode():
        packed = packed_network(tmp_path / "n", held, spec)
        torch.testing.assert_close(packed(x), plain(x), rtol=1e-4, atol=1e-4)


class Fixed(nn.Module):
    """Gives the outputs that it was made of, whatever the input."""

    def __init__(self, outputs: list[list[float]]) -> None:
        super().__init__()
        self.outputs = torch.tensor(outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outputs


def test_disagreement_is_counted():
    one, other = Fixed([[1.0, 0.0], [0.0, -4.0]]), Fixed([[1.0, 0.5], [-1.0, 0.0]])
    found = compare(one, other, [torch.zeros(2, 1)] * 3)
    assert (found.images, found.same, found.difference) == (6, 3, 1.0)


# Images


FORM = InputForm(3, 6, 6, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7))


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "1", "CMYK"])
@pytest.mark.parametrize("channels", [1, 3])
def test_grey_and_colour_become_what_the_network_takes(tmp_path, mode, channels):
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (6, 6, 3)).astype("u1")
    format = "tiff" if mode == "CMYK" else "png"
    path = tmp_path / f"x.{format}"
    image.fromarray(pixels).convert(mode).save(path)
    with image.open(path) as there:
        seen = there.convert("RGB").convert("L" if channels == 1 else "RGB")
    wanted = np.array(seen, dtype=np.float64).reshape(6, 6, channels).transpose(2, 0, 1) / 255
    form = FORM if channels == 3 else replace(FORM, channels=1, mean=(0.1,), std=(0.5,))
    mean, std = (np.array(each)[:, None, None] for each in (form.mean, form.std))
    found = read_image(str(path), form)
    assert found.shape == (1, channels, 6, 6) and found.dtype == torch.float32
    np.testing.assert_allclose(found[0].numpy(), (wanted - mean) / std, atol=1e-5)


@given(width=st.integers(1, 60), height=st.integers(1, 60), side=st.sampled_from([7, 14, 16]))
def test_images_of_folders_are_seen_as_in_the_test_of_a_run(tmp_path_factory, width, height, side):
    image = pytest.importorskip("PIL.Image")
    allow_torchvision()
    pytest.importorskip("timm")
    from proxbit.data.decoding import plain_transform

    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3)).astype("u1")
    path = tmp_path_factory.mktemp("images") / "x.png"
    image.fromarray(pixels).save(path)
    form = InputForm(3, side, side, (0.0,) * 3, (1.0,) * 3, crop=0.875)
    wanted = torch.as_tensor(plain_transform(side)(image.fromarray(pixels)))
    torch.testing.assert_close(read_image(str(path), form)[0], wanted / 255, rtol=0, atol=1e-6)


@given(
    width=st.integers(1, 40), height=st.integers(1, 40), sides=st.tuples(*[st.integers(1, 40)] * 2),
    crop=st.floats(0.1, 1),
)  # fmt: skip
def test_any_image_gives_an_input_without_a_border(tmp_path_factory, width, height, sides, crop):
    image = pytest.importorskip("PIL.Image")
    path = tmp_path_factory.mktemp("images") / "x.png"
    image.new("RGB", (width, height), (255, 255, 255)).save(path)
    form = InputForm(3, *sides, (0.0,) * 3, (1.0,) * 3, crop)
    assert torch.equal(read_image(str(path), form), torch.ones(1, 3, *sides))


def test_a_run_on_folders_says_how_its_images_were_cut():
    none = Files(np.array([]), torch.tensor([]))
    for data, crop in (
        (FolderSet("f", ("a",), none, none), {"crop": 0.875}),
        (replace(fashion_mnist(), mean=(0.5,)), {}),
    ):
        job: Any = SimpleNamespace(data=data, config=SimpleNamespace(image_size=64))
        shape = [data.channels, 64, 64]
        found = input_of(job)
        wanted = {"shape": shape, "mean": list(data.mean), "std": list(data.std)} | crop
        assert found == wanted
        assert InputForm.of(found).crop == crop.get("crop", 1.0)


# Speed


def test_unpacked_layers_and_slowness_are_said():
    speed = Speed(1, 1, "avx2", 3, Timing("contiguous", 4, 2), Timing("channels last", 2, 3),
                  ("layer1.0.conv", "layer1.1.conv"))  # fmt: skip
    assert "2.0x slower by the medians, 1.5x faster at best" in str(speed)
    assert "compute unpacked, faster here or without a kernel: layer1.*.conv" in str(speed)


def test_a_race_is_fair():
    """Everybody runs equally often, twice in a row, and not always in the same order."""
    called: list[str] = []
    shares: list[float] = []
    contenders = {name: lambda name=name: called.append(name) for name in "abc"}
    times = race(contenders, 0.005, shares.append)
    rounds = len(times["a"])
    assert rounds >= 3 and {len(each) for each in times.values()} == {rounds}
    assert len(called) == 6 * rounds and called[::2] == called[1::2]
    turns = ["".join(called[i : i + 6 : 2]) for i in range(0, len(called), 6)]
    assert all(sorted(turn) == ["a", "b", "c"] for turn in turns) and len(set(turns)) > 1
    assert shares == sorted(shares) and shares[-1] == 1.0


# The page


ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "packing.md").read_text(encoding="utf-8")


def test_the_snippets_of_the_page_run_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def new_model() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),
            nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(16, 3),
        )  # fmt: skip

    names: dict[str, Any] = {"model": new_model(), "new_model": new_model}
    names["example"] = torch.randn(2, 1, 8, 8)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    for block in blocks:
        exec(block, names)
    assert len(blocks) == 2 and read("net.safetensors").about.labels == ("cat", "dog", "bird")
    torch.testing.assert_close(names["net"](names["example"]), names["hard"](names["example"]))


def test_the_commands_of_the_page_exist():
    lines = re.findall(r"^\$ proxbit (\w+)([^#\n]*)", PAGE, re.MULTILINE)
    assert {command for command, _ in lines} >= {"pack", "inspect", "run", "bench"}
    for command, rest in lines:
        printed = CliRunner().invoke(app, [command, "--help"]).stdout
        for option in re.findall(r"(?<= )--?[a-z-]+", rest):
            assert option in printed, f"{command} has no {option}"


def test_the_table_of_sizes_is_current():
    """One row for all: the others need timm and a minute."""
    sizes = runpy.run_path(str(ROOT / "tools" / "sizes.py"))
    assert sizes["row"]("ResNet-20", *sizes["MODELS"]["ResNet-20"]) in PAGE
    assert sizes["HEAD"] in PAGE and all(f"| {name} |" in PAGE for name in sizes["MODELS"])
