"""A user's mistakes: each one clear sentence, status 2, and nothing written or overwritten."""

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

from proxbit.cli.root import app
from proxbit.train import Config, fit
from proxbit.train.config import read_config

pytestmark = pytest.mark.usefixtures("light_garbage")
NETS = """
import torch
from torch import nn

def net(classes, channels):
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3),
        nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes),
    )

def number():
    return 3

def wrong(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, classes + 1))

def crash():
    raise RuntimeError("not today")

def narrow(classes, channels):
    return nn.Sequential(
        nn.Conv2d(channels, 4, 8), nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 4),
        nn.BatchNorm1d(4), nn.Linear(4, classes),
    )
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models, images of 3 classes, images that are wrong, and weights."""
    path = tmp_path_factory.mktemp("place")
    (path / "net.py").write_text(NETS)
    (path / "broken.py").write_text("def net(:")
    images, labels = np.zeros((32, 8, 8, 3), "u1"), np.arange(32) % 3
    good = {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels}
    np.savez(path / "good.npz", **good)
    np.savez(path / "oblong.npz", **good | {"x_train": images[:, :6]})
    np.savez(path / "floats.npz", **good | {"x_train": images.astype("f4")})
    np.savez(path / "flat.npz", **good | {"x_train": images[:, 0, 0]})
    np.savez(path / "fewer.npz", **good | {"y_train": labels[:-1]})
    np.savez(path / "beyond.npz", **good | {"y_test": labels + 1})
    np.savez(path / "below.npz", **good | {"y_train": labels - 1})
    np.savez(path / "half.npz", x_train=images, y_train=labels)
    (path / "text.npz").write_text("no archive")
    save_weights(path)
    return path


def save_weights(path: Path) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip
    good = model.state_dict()
    save_file(good, path / "good.safetensors")
    save_file({n: t for n, t in good.items() if n != "3.bias"}, path / "less.safetensors")
    save_file(good | {"9.extra": torch.zeros(2)}, path / "more.safetensors")
    classes = {"7.weight": torch.zeros(5, 4), "7.bias": torch.zeros(5)}
    save_file(good | classes, path / "five.safetensors")
    (path / "text.safetensors").write_text("no weights")


def refusal(command: list[str]) -> str:
    """The one sentence with which a command is refused."""
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == 2, result.output
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("proxbit: ") and "Traceback" not in lines[0]
    return lines[0]


def train(place: Path, out: Path, *options: str) -> list[str]:
    model, data = f"{place}/net.py:net", f"npz:{place}/good.npz"
    base = [f"--model={model}", f"--data={data}", "--batch-size=8", "--epochs=1", "--cpu"]
    return [
        "train",
        *base,
        f"--out={out}",
        *(each.replace("PLACE", str(place)) for each in options),
    ]


# One wrong option beside a good call, and what the sentence must say.
MISTAKES = [
    ("--model=resnet9", ["unknown model 'resnet9'", "did you mean 'resnet8'?"]),
    ("--model=PLACE/none.py:net", ["there is no file", "none.py"]),
    ("--model=PLACE/net.py:nett", ["has no 'nett'", "net"]),
    ("--model=PLACE/net.py:number", ["number", "int", "must return an nn.Module"]),
    ("--model=PLACE/net.py:wrong", ["gives (1, 4)", "(1, 3)"]),
    ("--model=PLACE/net.py:crash", ["does not run", "not today"]),
    ("--model=PLACE/broken.py:net", ["does not run", "SyntaxError"]),
    ("--model=PLACE/net.py", ["FILE.py:NAME"]),
    ("--data=fashoin", ["unknown data 'fashoin'", "did you mean 'fashion'?"]),
    ("--data=npz:PLACE/none.npz", ["cannot find", "none.npz"]),
    ("--data=folder:PLACE/none", ["none"]),
    ("--data=cifar10", ["cifar"]),
    ("--data=npz:PLACE/oblong.npz", ["(32, 6, 8, 3)", "square"]),
    ("--data=npz:PLACE/floats.npz", ["float32", "uint8"]),
    ("--data=npz:PLACE/flat.npz", ["(32, 3)", "(n, h, w"]),
    ("--data=npz:PLACE/fewer.npz", ["(31,)", "32 images"]),
    ("--data=npz:PLACE/beyond.npz", ["label 3", "0 to 2"]),
    ("--data=npz:PLACE/below.npz", ["label -1", "begin at 0"]),
    ("--data=npz:PLACE/half.npz", ["lacks x_test, y_test"]),
    ("--data=npz:PLACE/text.npz", ["cannot read"]),
    ("--method=bnn+++", ["unknown method 'bnn+++'", "did you mean 'bnn++'?"]),
    ("--task=BWX", ["unknown task 'BWX'", "known: BW, BWA, BWAA"]),
    ("--task=bw", ["unknown task 'bw'", "BWAA"]),
    ("--pipeline=finetune", ["unknown pipeline", "did you mean 'fine-tune'?"]),
    ("--pipeline=fine-tune", ["give --weights"]),
    ("--settings=papers", ["did you mean 'paper'?"]),
    ("--optimizer=adamm", ["unknown optimizer", "did you mean 'adam"]),
    ("--lr-schedule=cos", ["unknown lr_schedule 'cos'", "cosine"]),
    ("--augment=autoaugment", ["unknown augment"]),
    ("--relu=gelu", ["unknown relu 'gelu'"]),
    ("--precision=fp8", ["unknown precision 'fp8'", "bf16"]),
    ("--precision=fp16", ["fp16", "GPU"]),
    ("--scale=chanel", ["did you mean 'channel'?"]),
    ("--unit=ones", ["did you mean 'one'?"]),
    ("--strength=5:x", ["'5:x'", "a strength is"]),
    ("--strength=x", ["'x'", "a strength is"]),
    ("--strength=1:2:3:4", ["'1:2:3:4'", "a strength is"]),
    ("--strength=nan", ["nan", "finite"]),
    ("--strength=-1", ["-1", ">= 0"]),
    ("--strength=", ["a strength is"]),
    ("--patch-size=4", ["unknown option", "'patch_size'", "known: classes, channels"]),
    ("--drop-path=0.1", ["unknown option", "'drop_path'", "known: classes, channels"]),
    ("--only=blocks.*", ["blocks.*"]),
    ("--skip=blocks.*", ["blocks.*"]),
    ("--terms=logits,hiden", ["'hiden'", "did you mean 'hidden'?"]),
    ("--batch-size=64", ["batch of 64", "32 training images", "--batch-size 32"]),
    ("--batch-size=0", ["batch_size", "above 0", "0"]),
    ("--grad-accum-steps=9", ["batch of 8", "9 parts"]),
    ("--epochs=0", ["epochs", "above 0", "0"]),
    ("--epochs=-3", ["epochs", "above 0", "-3"]),
    ("--max-steps-per-epoch=0", ["max_steps_per_epoch", "above 0"]),
    ("--lr=0", ["lr", "above 0"]),
    ("--lr=nan", ["lr", "nan"]),
    ("--lr=inf", ["lr", "inf"]),
    ("--clip-norm=-1", ["clip_norm", "-1"]),
    ("--temperature=0", ["temperature", "0"]),
    ("--warmup=1", ["warmup", "below 1"]),
    ("--warmup=nan", ["warmup", "nan"]),
    ("--frozen=1.5", ["frozen", "1.5"]),
    ("--ema=1", ["ema", "below 1"]),
    ("--ema=-0.1", ["ema", "-0.1"]),
    ("--label-smoothing=nan", ["label_smoothing", "nan"]),
    ("--weight-decay=-1", ["weight_decay", "-1"]),
    ("--latent-decay=inf", ["latent_decay", "inf"]),
    ("--penalty=-1", ["penalty", "-1"]),
    ("--val-split=0.001", ["0.001", "no image"]),
    ("--val-split=1", ["val_split", "below 1"]),
    ("--workers=-1", ["workers", "-1"]),
    ("--pretrain=-1", ["pretrain", "-1"]),
    ("--seed=-1", ["seed", "-1"]),
    ("--seed=99999999999999999999", ["seed", "99999999999999999999"]),
    ("--bits=0", ["bits", "0"]),
    ("--image-size=2", ["2x2"]),
    ("--image-size=0", ["image_size", "above 0"]),
    ("--weights=PLACE/none.safetensors", ["there is no weight file", "none.safetensors"]),
    ("--weights=PLACE/text.safetensors", ["not a whole safetensors file"]),
    ("--weights=PLACE/less.safetensors", ["3.bias", "missing"]),
    ("--weights=PLACE/more.safetensors", ["9.extra", "unknown to the model"]),
    ("--weights=pretrained", ["pretrained"]),
    ("--distill", ["--teacher", "--no-distill"]),
    ("--teacher=PLACE/less.safetensors", ["3.bias", "missing"]),
    ("--config=PLACE/none.json", ["there is no file", "none.json"]),
    ("--config=PLACE/net.py", ["not a readable JSON file"]),
    ("--config=PLACE", ["not a readable JSON file"]),
]


@pytest.mark.parametrize(("option", "words"), MISTAKES, ids=[option for option, _ in MISTAKES])
def test_a_wrong_option_is_one_sentence_and_no_folder(place, tmp_path, option, words):
    out = tmp_path / "run"
    before = {path: path.read_bytes() for path in place.iterdir() if path.is_file()}
    sentence = refusal(train(place, out, option))
    for word in words:
        assert word in sentence
    assert not out.exists()
    assert all(path.read_bytes() == content for path, content in before.items())


TOGETHER = [
    (["--weights=PLACE/good.safetensors", "--pipeline=end-to-end"], "leave out --weights"),
    (["--weights=PLACE/good.safetensors", "--distill", "--terms=relations"], "'relations'"),
    (["--weights=PLACE/good.safetensors", "--distill", "--terms="], "no term acts"),
    (["--only=3", "--skip=3"], "3"),
    (["--task=BWAA", "--bits=40"], "40"),
    (["--pretrain=1", "--pretrain-data=npz:PLACE/none.npz"], "none.npz"),
    (["--weights=PLACE/five.safetensors", "--float-epochs=0", "--distill"], "same classes"),
    (["--weights=PLACE/five.safetensors", "--no-new-head"], "5 classes, the model 3"),
    (["--float-epochs=2"], "needs weights to start from"),
    (["--resume=PLACE", "--out=x"], "leave out --out"),
    (["--model=resnet8", "--patch-size=4"], "unknown option of resnet8 'patch_size'"),
    (["--model=resnet8", "--drop-path=0.1"], "unknown option of resnet8 'drop_path'"),
]


@pytest.mark.parametrize(("options", "words"), TOGETHER, ids=[" ".join(o) for o, _ in TOGETHER])
def test_options_that_contradict_each_other_are_one_sentence(place, tmp_path, options, words):
    assert words in refusal(train(place, tmp_path / "run", *options))
    assert not (tmp_path / "run").exists()


def test_the_call_that_all_these_change_is_a_good_one(place, tmp_path):
    result = CliRunner().invoke(app, train(place, tmp_path / "run"))
    assert result.exit_code == 0 and result.stderr == ""


def test_what_only_shows_in_training_is_one_sentence_too(place, tmp_path):
    """A batch norm over single images has nothing to average."""
    command = train(place, tmp_path / "run", "--model=PLACE/net.py:narrow", "--batch-size=1")
    assert "Expected more than 1 value per channel" in refusal(command)


# Folders


@pytest.fixture
def run(place: Path, tmp_path: Path) -> Path:
    out = tmp_path / "run"
    assert CliRunner().invoke(app, train(place, out)).exit_code == 0
    return out


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_in_use_is_not_overwritten(place, run, tmp_path):
    before = content(run)
    assert "exists and is not empty" in refusal(train(place, run))
    assert content(run) == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    assert "exists and is not empty" in refusal(train(place, tmp_path / "mine"))
    assert content(tmp_path / "mine") == {"thesis.tex": b"precious"}
    (tmp_path / "file").write_text("mine")
    assert "exists and is not empty" in refusal(train(place, tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("command", [["train", "--resume"], ["show"], ["evaluate"]])
@pytest.mark.parametrize("folder", [".", "none", "file"])
def test_a_folder_that_is_no_run_is_said_to_be_none(tmp_path, command, folder):
    (tmp_path / "file").write_text("mine")
    sentence = refusal([*command, str(tmp_path / folder)])
    assert "is not the folder of a run" in sentence and str(tmp_path / folder) in sentence
    assert content(tmp_path) == {"file": b"mine"}


@pytest.mark.parametrize("option", ["--seed=3", "--epochs=9", "--method=bc", "--lr=0.5"])
def test_a_resumed_run_keeps_its_options(run, option):
    before = content(run)
    sentence = refusal(["train", "--resume", str(run), option])
    name, value = option.removeprefix("--").split("=")
    assert f"has {name} " in sentence and value in sentence
    assert content(run) == before


def test_other_commands_refuse_with_one_sentence(run, tmp_path):
    missing = tmp_path / "none" / "x.png"
    for words, command in {
        "a picture ends in .png or .svg": ["show", str(run), "--plot", str(tmp_path / "x.jpg")],
        "there is no folder": ["show", str(run), "--plot", str(missing)],
        "it is a folder": ["show", str(run), "--plot", str(_folder(tmp_path / "x.png"))],
        "unknown part 'tests': did you mean 'test'?": ["evaluate", str(run), "--part", "tests"],
        "has no validation part": ["evaluate", str(run), "--part", "validation"],
    }.items():
        assert words in refusal(command)
    (run / "model.safetensors").unlink()
    assert "there is no checkpoint" in refusal(["evaluate", str(run)])


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_tensorboard_is_asked_for_before_the_run_begins(place, tmp_path, monkeypatch):
    monkeypatch.setattr("proxbit.train.display.find_spec", lambda _: None)
    assert "pip install tensorboard" in refusal(train(place, tmp_path / "run", "--tensorboard"))
    assert not (tmp_path / "run").exists()


def test_matplotlib_is_asked_for_in_a_sentence(run, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    assert "pip install" in refusal(["show", str(run), "--plot", str(tmp_path / "x.png")])


# Configurations


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(max_examples=200)
@given(name=st.sampled_from([each.name for each in fields(Config)]), value=JUNK)
def test_a_configuration_takes_a_value_or_refuses_it_by_name(tmp_path_factory, name, value):
    path = tmp_path_factory.getbasetemp() / "config.json"
    path.write_text(json.dumps({name: value}))
    try:
        config = read_config(path)
    except ValueError as error:
        sentence = str(error)
        assert (
            name in sentence
            and str(path) in sentence
            and "\n" not in sentence.replace(repr(value), "")
        )
        return
    taken = getattr(config, name)
    assert taken == value and (isinstance(taken, bool) == isinstance(value, bool))


@settings(max_examples=50)
@given(values=JUNK.filter(lambda value: value != {}))
def test_any_other_json_is_refused(tmp_path_factory, values):
    path = tmp_path_factory.getbasetemp() / "config.json"
    path.write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"not a JSON object|unknown option") as caught:
        read_config(path)
    assert str(path) in str(caught.value)


def test_an_unknown_option_of_a_configuration_has_a_near_match(tmp_path):
    (tmp_path / "c.json").write_text('{"epoch": 3}')
    sentence = refusal(["train", "--config", str(tmp_path / "c.json")])
    assert "unknown option 'epoch': did you mean 'epochs'?" in sentence


@given(
    seed=st.integers(0, 2**63 - 1),
    rate=st.floats(0, exclude_min=True, allow_infinity=False),
    only=st.none() | st.text(),
    cpu=st.booleans(),
)
def test_a_configuration_survives_json(tmp_path_factory, seed, rate, only, cpu):
    config = Config(seed=seed, lr=rate, only=only, cpu=cpu)
    path = tmp_path_factory.getbasetemp() / "config.json"
    path.write_text(config.to_json())
    assert read_config(path) == config
    assert asdict(read_config(path)) == json.loads(config.to_json())


@pytest.mark.parametrize(
    "options", [{"epochs": "3"}, {"lr": "fast"}, {"model": 5}, {"cpu": 1}, {"epochs": 2.5}]
)
def test_a_wrong_type_is_refused_by_the_function_too(options: dict[str, Any]):
    ((name, value),) = options.items()
    with pytest.raises(ValueError, match=f"{name} must be .*, not {value!r}"):
        next(fit(Config(**options)))
