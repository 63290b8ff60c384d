"""``proxbit select``: what it prints, and how it refuses and resumes."""

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from proxbit.cli.root import app
from proxbit.cli.select_commands import select
from small_net import NET, write_images

pytestmark = pytest.mark.usefixtures("light_garbage")
COMMAND = "import typer; from proxbit.cli.select_commands import select; typer.run(select)"
# From its first checkpoint on it takes its time, so that Ctrl-C finds it at work on any machine.
UNHURRIED = (
    """
import time, torch
from pathlib import Path

real = torch.Tensor.backward

def backward(*args, **kwargs):
    if list(Path("s").glob("runs/*/last.safetensors")):
        time.sleep(0.5)
    return real(*args, **kwargs)

torch.Tensor.backward = backward
"""
    + COMMAND
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    write_images(Path("i.npz"), 300)
    options = {"model": "net.py:net", "data": "npz:i.npz", "batch_size": 10, "recalibrate": 1}
    Path("c.json").write_text(json.dumps(options | {"cpu": True, "epochs": 1}))
    return tmp_path


def invoke(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(select)
    return CliRunner().invoke(app, list(arguments))


def refusal(*arguments: str) -> str:
    result = invoke(*arguments)
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == 2
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("proxbit: ") and "Traceback" not in line
    return line


def test_text_and_json_tell_the_same_recommendation(place):
    first = invoke("--config=c.json", "--minutes=2", "--methods=bc,bnn", "--seed=3")
    assert first.exit_code == 0, first.output
    again = invoke("--resume=runs/select-1", "--json")
    found = json.loads(again.stdout)
    assert f"recommended: {found['method']}, hard {100 * found['hard']:.2f} %" in first.stdout
    assert found["command"] in first.stdout
    rows = [line.split() for line in first.stdout.splitlines() if line.startswith("   1  ")]
    assert [(r[1], int(r[2]), int(r[3])) for r in rows] == [
        (t["method"], t["seed"], t["steps"]) for t in found["trials"]
    ]
    assert {t["seed"] for t in found["trials"]} == {3, 4, 5}


def test_the_command_that_is_printed_is_one_that_train_takes(place):
    found = json.loads(
        invoke("--config=c.json", "--minutes=2", "--methods=bc", "--out=s", "--json").stdout
    )
    words = shlex.split(found["command"])
    assert words[:2] == ["proxbit", "train"] and "--val-split" in words
    done = CliRunner().invoke(app, [*words[1:], "--out=run", "--quiet"])
    assert done.exit_code == 0, done.output
    kept = json.loads(Path("run/config.json").read_text())
    assert (kept["method"], kept["epochs"], kept["max_steps_per_epoch"]) == ("bc", 1, None)
    assert kept["val_split"] == 0.1 and kept["recalibrate"] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--methods=bnm"], "unknown method 'bnm'"),
        (["--methods=,"], "--methods names methods with commas between them, not ','"),
        (["--minutes=-1"], "minutes is a number above 0, not -1.0"),
        (["--own=bc"], "FILE.py:NAME, not 'bc'"),
        (["--model=none"], "unknown model 'none'"),
        (["--data=npz:none.npz"], "none.npz"),
        (["--config=none.json"], "there is no file 'none.json'"),
        (["--task=BX"], "unknown task 'BX'"),
        (["--resume=none"], "'none' is not the folder of a selection"),
        (["--resume=none", "--minutes=3", "--out=x"], "leave out --minutes, --out"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(place, arguments, words):
    before = sorted(place.iterdir())
    assert words in refusal(*arguments)
    assert sorted(place.iterdir()) == before


def test_a_folder_in_use_is_not_overwritten(place):
    Path("full").mkdir()
    Path("full/file").write_text("mine")
    assert "'full' exists and is not empty" in refusal("--config=c.json", "--out=full")


def test_an_interrupted_command_says_how_to_continue_and_does(place):
    arguments = ["--config=c.json", "--minutes=3", "--methods=bc,bnn", "--out=s"]
    process = subprocess.Popen(
        [sys.executable, "-c", UNHURRIED, *arguments], stderr=subprocess.PIPE, text=True,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    while process.poll() is None and not list(Path("s").glob("runs/*/last.safetensors")):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130 and "proxbit select --resume s" in errors
    done = {t for t in Path("s/log.jsonl").read_text().splitlines() if '{"trial"' in t}
    found = json.loads(invoke("--resume=s", "--json").stdout)
    assert {json.dumps({"trial": t}) for t in found["trials"]} >= done
    assert len(found["trials"]) == 6
