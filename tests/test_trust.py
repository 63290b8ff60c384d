"""Whose folders are used and whose code is run: only what the user named, where no other writes."""

import os
import pickle
import stat
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from proxbit.data.unpickle import ADMITTED, read_pickle
from proxbit.experiments.reproduce.blocks import skeleton
from proxbit.experiments.reproduce.configs import check_alike
from proxbit.experiments.reproduce.on_ray import folder_here
from proxbit.experiments.reproduce.process import RunRefused, train
from proxbit.models import user_object
from proxbit.train import Config, fit
from proxbit.train.setup import resolve
from proxbit.util.files import (
    LOCK,
    is_trusted,
    lock_folder,
    open_lock,
    private_folder,
    write_atomically,
)
from small_net import NET

AWAY = "/not/on/this/node"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The common temporary folder of a node."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


# Folders


def test_the_folder_of_a_node_is_private(temporary):
    own = Path(folder_here(AWAY))
    assert stat.S_IMODE(own.stat().st_mode) == 0o700 and own.stat().st_uid == os.getuid()
    assert folder_here(AWAY) == str(own)
    own.chmod(0o777)  # others may have written into it by now
    with pytest.raises(ValueError, match=r"others can reach it: remove it, or set TMPDIR"):
        folder_here(AWAY)


def test_a_folder_that_another_put_there_is_not_used(temporary, monkeypatch):
    own = temporary / "own"
    assert private_folder(own) == private_folder(own)
    monkeypatch.setattr(os, "getuid", lambda: own.stat().st_uid + 1)
    with pytest.raises(ValueError, match="was put there by another user"):
        private_folder(own)


@pytest.mark.parametrize("kind", ["link", "file"])
def test_what_is_no_folder_is_not_used(temporary, kind):
    own = Path(folder_here(AWAY))
    own.rmdir()
    (temporary / "theirs").mkdir(mode=0o700)
    if kind == "link":
        own.symlink_to(temporary / "theirs")
    else:
        own.touch(mode=0o600)
    with pytest.raises((ValueError, OSError)):
        folder_here(AWAY)
    assert not any((temporary / "theirs").iterdir())


def test_the_results_folder_of_another_user_is_not_taken_for_ours(temporary, monkeypatch):
    """On a node that does not see ours, somebody else may have a folder of that name."""
    results = temporary / "results"
    results.mkdir()
    assert folder_here(str(results)) == str(results) and is_trusted(results)
    assert not is_trusted(temporary / "none") and not is_trusted(__file__)
    if os.getuid() == 0:  # what the system owns is trusted: give it away
        os.chown(results, 12345, 12345)
    else:
        monkeypatch.setattr(os, "getuid", lambda: results.stat().st_uid + 1)
        monkeypatch.setattr(
            "proxbit.experiments.reproduce.on_ray.private_folder", lambda path: path
        )
    assert not is_trusted(results) and folder_here(str(results)) != str(results)


# Links


@pytest.mark.parametrize("name", [LOCK, ".float.lock"])
def test_a_lock_is_never_a_link_and_never_empties_a_file(tmp_path, name):
    precious = tmp_path / "precious"
    precious.write_text("all I have")
    (tmp_path / name).symlink_to(precious)
    with pytest.raises(ValueError, match=r"is a link, and a lock is a file: remove it"):
        open_lock(tmp_path / name)
    (tmp_path / name).unlink()
    (tmp_path / name).hardlink_to(precious)
    open_lock(tmp_path / name).close()
    assert precious.read_text() == "all I have"


def test_a_lock_still_keeps_others_out(tmp_path):
    with lock_folder(tmp_path, "writing"), pytest.raises(ValueError, match="another process is"):
        lock_folder(tmp_path, "writing")
    lock_folder(tmp_path, "writing").close()


def test_a_file_is_not_written_through_a_link(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("all I have")
    (tmp_path / f".new.{os.getpid()}.tmp").symlink_to(precious)
    write_atomically(tmp_path / "new", b"content")
    assert precious.read_text() == "all I have" and (tmp_path / "new").read_bytes() == b"content"


# Code


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """A file that leaves a mark when it is executed."""
    mark = tmp_path / "mark"
    (tmp_path / "evil.py").write_text(f"import os\nos.mkdir({str(mark)!r})\n" + NET)
    return mark


@pytest.mark.parametrize("name", ["x/resnet8", "a.b", "a b"])
def test_a_file_is_not_executed_for_what_cannot_be_a_name(tmp_path, evil, name):
    with pytest.raises(ValueError, match=r"write FILE\.py:NAME"):
        user_object(f"{tmp_path}/evil.py:{name}")
    assert not evil.exists()


@pytest.mark.parametrize("planted", ["{}/evil.py:x/resnet8", "{}/evil.py:net", "x/resnet8"])
def test_models_are_compared_by_their_whole_names(tmp_path, planted):
    asked = Config(model="resnet8", data="npz:/here/i.npz")
    wanted = resolve(asked, skeleton("resnet8"))
    kept = asdict(wanted) | {"model": planted.format(tmp_path)}
    with pytest.raises(ValueError, match=r"has model .*, not resnet8: give the same options"):
        check_alike(wanted, kept, "the run")
    check_alike(wanted, asdict(wanted) | {"data": "npz:/there/i.npz"}, "the run")


def test_a_planted_run_executes_nothing(tmp_path, evil):
    """A run whose config names another file than the user did is refused before it is resumed."""
    asked = Config(model="resnet8", epochs=1, max_steps_per_epoch=1, batch_size=8, cpu=True)
    run = tmp_path / "runs" / "cell"
    list(fit(asked, run))
    (run / "result.json").unlink()
    text = (run / "config.json").read_text()
    (run / "config.json").write_text(text.replace('"resnet8"', f'"{tmp_path}/evil.py:x/resnet8"'))
    with pytest.raises(ValueError, match="has model "):
        train(asked, run)
    assert not evil.exists()


def test_a_run_imports_nothing_from_the_working_folder(tmp_path, monkeypatch):
    """A folder of that name may be another user's on a node."""
    mark = tmp_path / "mark"
    for name in ("typer", "torch"):
        (tmp_path / f"{name}.py").write_text(f"import os\nos.mkdir({str(mark)!r})\n")
    monkeypatch.chdir(tmp_path)
    paths = [str(Path(path).resolve()) for path in sys.path if path]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(p for p in paths if p != str(tmp_path)))
    with pytest.raises(RunRefused, match=r"no\.npz"):
        train(Config(data="npz:no.npz"), tmp_path / "run")
    assert not mark.exists()


# Pickles


def builds(module: str, name: str, state: bytes) -> bytes:
    """A pickle that changes what a name stands for."""
    return f"c{module}\n{name}\n".encode() + state + b"b."


STATES = {
    "defaults": b"(N}(V__defaults__\n(Vabc\nVlatin1\ntst",
    "keyword defaults": b"(N}(V__kwdefaults__\nNst",
    "a class": b"(N}(Vvalues\nI1\nst",
    "a dict": b"}(Vx\nI1\ns",
}


@pytest.mark.parametrize("what", STATES)
@pytest.mark.parametrize("admitted", ADMITTED, ids=".".join)
def test_a_pickle_cannot_change_our_reader(tmp_path, what, admitted):
    """Also not for the next file: what is admitted lives as long as the process."""
    path, stand_in = tmp_path / "batch", ADMITTED[admitted]
    before = dict(vars(type(stand_in))), dict(getattr(stand_in, "__dict__", {}))
    path.write_bytes(builds(*admitted, STATES[what]))
    with pytest.raises(ValueError, match="cannot read"):
        read_pickle(path)
    assert (dict(vars(type(stand_in))), dict(getattr(stand_in, "__dict__", {}))) == before
    assert getattr(stand_in, "__defaults__", None) is None
    path.write_bytes(pickle.dumps({"a": b"", "b": b"xyz"}, 2))
    assert read_pickle(path) == {"a": b"", "b": b"xyz"}
