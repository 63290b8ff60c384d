"""Files of strangers on the command line: a terminal that is not obeyed, costs that are bounded."""

import json
import resource
import time
import unicodedata
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import proxbit as pb
from proxbit.cli.root import app
from proxbit.data.image_folder import read_picture
from proxbit.deploy.image_inputs import InputForm, read_image
from proxbit.experiments.reproduce.grid_planning import CellQuery, plan
from proxbit.experiments.reproduce.grid_progress import line_of
from proxbit.experiments.reproduce.results import FILE
from proxbit.experiments.reproduce.running import Event
from proxbit.models import build
from proxbit.packfile.contents import About
from proxbit.packfile.file import read, write
from proxbit.train import Config
from proxbit.util.compat import allow_torchvision
from proxbit.util.text import table, visible

ROOT = Path(__file__).resolve().parents[1]
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil\r\n  99.9 %  cat\x7f"


def said(*arguments: str | Path, status: int = 0) -> str:
    """All that a command says, which holds nothing that a terminal obeys."""
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code == status, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    assert not [c for c in result.output if unicodedata.category(c)[0] == "C" and c != "\n"]
    return result.output


def packed(path: Path, model: torch.nn.Module, **about: object) -> Path:
    """A packed file of a stranger."""
    pb.binarize(model, "bnn++", "BW")
    pb.save(pb.pack(pb.harden(model)), path)
    held = read(path)
    write(replace(held, about=replace(held.about, **about)), path)
    return path


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed resnet8 for images of 32 pixels, with labels that are no words."""
    path = tmp_path_factory.mktemp("net") / "n"
    labels = tuple(f"{ESCAPES}{i}" for i in range(3))
    model = build("resnet8", classes=3, channels=3, image_size=32, width=2)
    return packed(path, model, labels=labels, made_by=ESCAPES, input={"shape": [3, 32, 32]})


def picture(path: Path, width: int, height: int, mode: str = "L") -> Path:
    image = pytest.importorskip("PIL.Image")
    image.new(mode, (width, height)).save(path)
    return path


# The terminal


@given(text=st.text() | st.just(ESCAPES))
def test_what_is_visible_is_one_line_of_printable_letters(text):
    shown = visible(text)
    assert not [c for c in shown if unicodedata.category(c)[0] == "C"] and "\n" not in shown
    assert visible(shown) == shown and (shown == text) == all(c in shown for c in text)
    assert len(table(("a", "b"), [(text, "x")]).split("\n")) == 2


def test_labels_and_names_of_a_packed_file_do_not_reach_the_terminal_as_commands(net, tmp_path):
    assert "\\x1b[2J\\x9b31m\\u202eevil\\r\\n" in said("inspect", net)
    shown = said("run", net, picture(tmp_path / "p.png", 40, 40)).splitlines()
    assert len(shown) == 4  # the newline in a label makes no line of its own
    held = read(net)
    strange = replace(held.about, architecture={"name": ESCAPES}, replaced={ESCAPES: ESCAPES})
    floats = held.floats | {f"{ESCAPES}.weight": torch.zeros(2)}
    write(replace(held, about=strange, floats=floats), tmp_path / "n")
    said("inspect", tmp_path / "n")
    for command in (("run", tmp_path / "n", "x.png"), ("bench", tmp_path / "n")):
        said(*command, status=2)
    assert json.loads(CliRunner().invoke(app, ["inspect", str(net), "--json"]).stdout)


def test_the_files_of_a_run_do_not_reach_the_terminal_as_commands(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(Config(model=ESCAPES, data=ESCAPES).to_json())
    said("show", run)
    for command in (("train", "--resume", run), ("evaluate", run)):
        said(*command, status=2)
    (run / "config.json").write_text(json.dumps(asdict(Config()) | {ESCAPES: 1}))
    said("show", run, status=2)


def test_results_do_not_reach_the_terminal_as_commands(tmp_path):
    values = json.loads((ROOT / "results" / FILE).read_text().split("\n")[0])
    strange = {"device": ESCAPES, "verdict": ESCAPES, "grid": ESCAPES}
    (tmp_path / FILE).write_text(json.dumps(values | strange) + "\n")
    for form in ("markdown", "csv", "html"):
        assert "evil" in said("report", tmp_path, "--format", form)
    cell = plan(CellQuery("cnn", "smoke"))[0]
    shown = visible(line_of(Event(cell, "broken", note=ESCAPES)))
    assert "\x1b" not in shown


# What a file costs


def cost(path: Path, **options: int) -> tuple[float, int]:
    """Seconds of this process, however busy the machine is, and megabytes of a refusal or load."""
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        pb.load(path, **options)
    except ValueError as error:
        assert "cannot load" in str(error)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return time.process_time() - began, (after - before) // 1024


@pytest.mark.parametrize("side", [512, 513, 1024, 1025, 4096, 2**40, 1e300])
def test_the_image_size_in_a_header_costs_little(net, tmp_path, side):
    held = read(net)
    wanted = held.about.architecture | {"image_size": side}
    write(replace(held, about=replace(held.about, architecture=wanted)), tmp_path / "n")
    seconds, megabytes = cost(tmp_path / "n")
    assert seconds < 15 and megabytes < 200
    if side > 1024:
        with pytest.raises(ValueError, match=r"image_size=.*more than 1024: give skeleton= .*or"):
            pb.load(tmp_path / "n")
    if side == 4096:
        seconds, megabytes = cost(tmp_path / "n", largest_side=4096)
        assert seconds < 15 and megabytes < 200
        assert isinstance(pb.load(tmp_path / "n", largest_side=4096), torch.nn.Module)


@pytest.mark.parametrize("name", ["resnet56", "timm/vit_giant_patch14_224", "timm/resnet152"])
def test_a_network_larger_than_its_file_is_not_made(net, tmp_path, name):
    allow_torchvision()
    pytest.importorskip("timm")
    held = read(net)
    wanted = {"name": name, "classes": 3}
    write(replace(held, about=replace(held.about, architecture=wanted)), tmp_path / "n")
    with pytest.raises(ValueError, match=r"has [\d,]+ numbers, and it holds [\d,]+"):
        pb.load(tmp_path / "n")
    seconds, megabytes = cost(tmp_path / "n")
    assert seconds < 20 and megabytes < 200


def test_a_network_that_cannot_be_looked_at_before_it_is_made_is_not_made(net, monkeypatch):
    def make(*_: object) -> None:
        raise RuntimeError("no meta")

    monkeypatch.setattr("proxbit.engine.loading.make", make)
    with pytest.raises(ValueError, match=r"cannot be looked at before it is made .*skeleton="):
        pb.load(net)


@pytest.mark.parametrize("shape", [[3, 1025, 8], [3, 4096, 4096], [4000, 1024, 1024]])
@pytest.mark.parametrize("command", ["run", "bench"])
def test_an_input_that_costs_too_much_is_refused_with_the_way_to_raise_it(
    net, tmp_path, shape, command
):
    held = read(net)
    write(replace(held, about=replace(held.about, input={"shape": shape})), tmp_path / "n")
    images = ["x.png"] if command == "run" else []
    words = said(command, tmp_path / "n", *images, status=2)
    assert "more than 16 channels of 1024 x 1024 pixels; raise --largest-side" in words
    if command == "run":
        more = said("run", tmp_path / "n", "x.png", "--largest-side=100000", status=2)
        assert "raise --largest-side" not in more


@pytest.mark.parametrize("size", [(1, 65_000), (65_000, 1)])
def test_a_narrow_picture_is_not_resized_without_end(net, tmp_path, size):
    path = picture(tmp_path / "p.png", *size)
    assert path.stat().st_size < 400
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    words = said("run", net, path, status=2)
    shown = " x ".join(f"{n:,}" for n in size)
    assert f"has {shown} pixels, which would be resized to" in words
    assert "2,080,000: cut it, or raise" in words or "2,080,000 x 32: cut it, or raise" in words
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000
    assert time.process_time() - began < 10
    with pytest.raises(ValueError, match="more than 100 times as long as wide: cut or remove it"):
        read_picture(path)


def test_a_large_picture_is_not_decoded_and_may_be(tmp_path):
    form = InputForm(1, 8, 8, (0.0,), (1.0,))
    path = picture(tmp_path / "p.png", 600, 500)
    with pytest.raises(ValueError, match=r"has 600 x 500 pixels, more than 262,144 in all: make"):
        read_image(str(path), form, largest_side=64)
    assert read_image(str(path), form, largest_side=128).shape == (1, 1, 8, 8)


def test_what_fits_is_read_as_before(tmp_path):
    pytest.importorskip("PIL")
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3)).astype("u1")
    from PIL import Image

    Image.fromarray(pixels).save(tmp_path / "p.png")
    form = InputForm(3, 16, 16, (0.0,) * 3, (1.0,) * 3)
    found = read_image(str(tmp_path / "p.png"), form)
    whole = Image.fromarray(pixels).resize((24, 16), Image.Resampling.BILINEAR)
    wanted = np.asarray(whole.crop((4, 0, 20, 16))).transpose(2, 0, 1) / 255
    np.testing.assert_allclose(found[0], wanted, atol=1e-6)


# A shape that does not fit


def test_a_transformer_that_asserts_its_size_is_one_sentence(tmp_path):
    allow_torchvision()
    pytest.importorskip("timm")
    model = build("mini_vit", classes=3, channels=3, image_size=28)
    path = packed(tmp_path / "n", model, input={"shape": [3, 32, 32]})
    image = picture(tmp_path / "p.png", 32, 32, "RGB")
    for command in (("run", path, image), ("bench", path)):
        words = said(*command, status=2)
        assert "the network does not take an input of shape (1, 3, 32, 32)" in words
    assert read(path).about != About()
