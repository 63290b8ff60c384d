"""Files of today's formats, which every later version must read: see tests/golden/make.py."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import proxbit as pb
from proxbit.testing import available_backends, use_backend
from proxbit.train import resume_run
from proxbit.train.checkpoint import load_checkpoint
from proxbit.train.records import read_records

GOLDEN = Path(__file__).parent / "golden"
sys.path.insert(0, str(GOLDEN))
from make import PACKED, example  # noqa: E402


@pytest.mark.parametrize("backend", available_backends())
@pytest.mark.parametrize("name", list(PACKED))
def test_a_packed_file_of_today_loads_for_ever(name: str, backend: str) -> None:
    build, _, shape, _ = PACKED[name]
    expected = load_file(GOLDEN / f"{name}.expected.safetensors")["output"]
    with use_backend(backend), torch.no_grad():
        net = pb.load(GOLDEN / f"{name}.safetensors", build())
        torch.testing.assert_close(net(example(shape)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", list(PACKED))
def test_what_was_loaded_is_saved_as_it_was(name: str, tmp_path: Path) -> None:
    """The same bits and floats under the same names; the header may say more than it did."""
    build, _, _, options = PACKED[name]
    path = GOLDEN / f"{name}.safetensors"
    pb.save(pb.load(path, build()), tmp_path / "again", **options)
    before, after = load_file(path), load_file(tmp_path / "again")
    assert before.keys() == after.keys()
    for key, tensor in before.items():
        assert tensor.dtype == after[key].dtype
        assert torch.equal(tensor, after[key]), key


def test_every_golden_file_is_read() -> None:
    files = {path.name for path in GOLDEN.glob("*.safetensors")}
    assert files == {f"{name}{end}.safetensors" for name in PACKED for end in ("", ".expected")}
    assert sum(path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file()) < 80_000


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The golden run after two of its three epochs, in a folder of its own."""
    shutil.copytree(GOLDEN / "run", tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "out"


def test_a_checkpoint_of_today_continues_for_ever(run: Path) -> None:
    """The last epoch ends where it ended then, as far as another machine rounds alike."""
    trainer = resume_run(run)
    assert trainer.progress.step == 4
    assert {w.quantizer.counter.step for w in pb.binary_weights(trainer.core)} == {4}
    list(trainer)
    expected = json.loads((run.parent / "expected.json").read_text())
    result = json.loads((run / "result.json").read_text())
    assert result["steps"] == expected["steps"]
    assert [record.epoch for record in read_records(run / "metrics.jsonl")] == [1, 2, 3]
    tensors, _ = load_checkpoint(run / "last.safetensors")
    for name, then in load_file(run.parent / "expected.safetensors").items():
        if then.is_floating_point():
            torch.testing.assert_close(tensors[name], then, rtol=1e-2, atol=1e-3)
        assert tensors[name].shape == then.shape
