"""CIFAR's pickles are read right, and no pickle can run anything."""

import hashlib
import os
import pickle
import struct
import tarfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from proxbit.data import ImageSet, open_data
from proxbit.data.unpickle import ADMITTED, ByteArray, read_pickle
from proxbit.util.compat import allow_torchvision

PER_FILE = 4
FILES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
CLASSES = ["plane", "car", "bird"]

SAME_FILE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def dump(path: Path, value: object, protocol: int = 2) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    return path


def a_batch(seed: int, key: str = "labels", classes: int = 3) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    data = generator.integers(0, 256, (PER_FILE, 3072), dtype=np.uint8)
    return {"data": data, key: generator.integers(0, classes, PER_FILE).tolist(), "batch_label": ""}


def write_cifar10(root: Path) -> dict[str, dict[str, Any]]:
    folder = root / "cifar-10-batches-py"
    written = {name: a_batch(i) for i, name in enumerate(FILES)}
    for name, batch in written.items():
        dump(folder / name, batch)
    dump(folder / "batches.meta", {"label_names": CLASSES, "num_vis": 3072})
    return written


def planes(rows: np.ndarray) -> torch.Tensor:
    """Rows of CIFAR as images, one plane after the other, by its description."""
    return torch.from_numpy(
        np.stack([rows[:, i * 1024 : (i + 1) * 1024] for i in range(3)], 1)
    ).view(-1, 3, 32, 32)


def test_cifar10_is_read_as_written(tmp_path: Path) -> None:
    written = write_cifar10(tmp_path)
    data = open_data("cifar10", root=tmp_path)
    assert isinstance(data, ImageSet)
    assert (data.name, data.classes) == ("cifar10", tuple(CLASSES))
    assert (data.channels, data.image_size) == (3, 32)
    assert (data.count("train"), data.count("test")) == (5 * PER_FILE, PER_FILE)
    rows = np.concatenate([written[name]["data"] for name in FILES[:5]])
    assert torch.equal(data.x_train, planes(rows))
    assert data.y_train.tolist() == [i for name in FILES[:5] for i in written[name]["labels"]]
    assert torch.equal(data.x_test, planes(written["test_batch"]["data"]))
    assert data.y_test.tolist() == written["test_batch"]["labels"]
    assert data.y_test.dtype == torch.int64
    assert data.x_train.is_contiguous(memory_format=torch.channels_last)


def test_cifar100_takes_the_fine_labels(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    coarse = {"coarse_labels": [0] * PER_FILE}
    train, test = (a_batch(seed, "fine_labels") | coarse for seed in (7, 8))
    dump(folder / "train", train)
    dump(folder / "test", test)
    dump(folder / "meta", {"fine_label_names": CLASSES, "coarse_label_names": ["thing"]})
    data = open_data("cifar100", root=tmp_path)
    assert data.classes == tuple(CLASSES)
    assert data.labels("train").tolist() == train["fine_labels"]
    assert torch.equal(data.images("test"), planes(test["data"]))


def python2_batch(data: np.ndarray, labels: list[int]) -> bytes:
    """The stream that Python 2 wrote, opcode by opcode: its strings are bytes of no encoding."""

    def short(text: bytes) -> bytes:
        return b"U" + bytes([len(text)]) + text

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    raw = data.tobytes()
    kind = b"cnumpy\ndtype\n" + short(b"u1") + b"K\x00K\x01\x87R"
    kind += b"(K\x03" + short(b"|") + b"NNN" + number(-1) * 2 + b"K\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\n"
    array += b"K\x00\x85" + short(b"b") + b"\x87R"
    array += b"(K\x01" + number(data.shape[0]) + number(data.shape[1]) + b"\x86" + kind
    array += b"\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"
    listed = b"](" + b"".join(number(label) for label in labels) + b"e"
    return b"\x80\x02}(" + short(b"labels") + listed + short(b"data") + array + b"u."


def test_a_stream_of_python_2_is_read(tmp_path: Path) -> None:
    batch = a_batch(3)
    path = tmp_path / "data_batch_1"
    path.write_bytes(python2_batch(batch["data"], batch["labels"]))
    found = read_pickle(path)
    assert found["labels"] == batch["labels"]
    assert np.array_equal(found["data"].values, batch["data"])


@SAME_FILE
@given(
    array=arrays.arrays(np.uint8, arrays.array_shapes(max_dims=3, max_side=4)),
    rest=st.dictionaries(st.text(), st.lists(st.integers() | st.text() | st.binary())),
    protocol=st.integers(0, 4),
    fortran=st.booleans(),
)
def test_arrays_of_bytes_and_plain_values_come_back(
    tmp_path: Path, array: np.ndarray, rest: dict[str, Any], protocol: int, fortran: bool
) -> None:
    stored = np.asfortranarray(array) if fortran else array
    found = read_pickle(dump(tmp_path / "file", {**rest, "the array": stored}, protocol))
    pixels = found.pop("the array")
    rest.pop("the array", None)
    assert isinstance(pixels, ByteArray)
    assert np.array_equal(pixels.values, array)
    assert found == rest


class Calls:
    """A value whose pickle asks the reader to call something."""

    def __init__(self, function: Any, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Any, tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", range(5))
def test_a_hostile_pickle_runs_nothing(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "mark"
    code = f"__import__('os').mkdir({str(mark)!r})"
    for call in (Calls(os.mkdir, str(mark)), Calls(eval, code), Calls(os.system, f"mkdir {mark}")):
        path = dump(tmp_path / "batch", {"data": call}, protocol)
        with pytest.raises(ValueError, match=f"cannot read {path} .*replace it .*: it names "):
            read_pickle(path)
        assert not mark.exists()
        pickle.loads(path.read_bytes())
        mark.rmdir()  # an ordinary reader did run it


@pytest.mark.parametrize("call", [(getattr, "", "format"), (np.dtype, "i8"), (Path, "x"), (bool,)])
def test_other_names_are_refused_however_harmless(tmp_path: Path, call: tuple[Any, ...]) -> None:
    path = dump(tmp_path / "batch", {"data": Calls(*call)})
    with pytest.raises(ValueError, match=f"cannot read {path}"):
        read_pickle(path)


@given(name=st.sampled_from(["ndarray.__class__", "ndarray.__init__.__globals__", "load", "save"]))
def test_no_path_leads_from_the_admitted_names_to_others(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    path = tmp_path_factory.mktemp("pickle") / "file"
    path.write_bytes(b"\x80\x04\x8c\x05numpy\x8c" + bytes([len(name)]) + name.encode() + b"\x93.")
    with pytest.raises(ValueError, match="it names numpy"):
        read_pickle(path)


def test_what_is_admitted_is_ours() -> None:
    for stand_in in ADMITTED.values():
        assert stand_in.__module__ == "proxbit.data.unpickle"


@SAME_FILE
@given(cut=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, cut: float) -> None:
    path = dump(tmp_path / "batch", a_batch(0))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(cut * len(whole))])
    with pytest.raises(ValueError, match=f"cannot read {path}"):
        read_pickle(path)


@SAME_FILE
@given(place=st.integers(0, 200), byte=st.integers(0, 255), end=st.booleans())
def test_a_damaged_file_gives_a_sentence_or_a_set_but_no_other_error(
    tmp_path: Path, place: int, byte: int, end: bool
) -> None:
    write_cifar10(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "test_batch"
    whole = bytearray(path.read_bytes())
    whole[-1 - place if end else place] = byte
    path.write_bytes(whole)
    try:
        data = open_data("cifar10", root=tmp_path)
    except ValueError as error:
        assert str(path) in str(error)
    else:
        assert data.count("test") == PER_FILE


WRONG = {
    "no images": ({"data": None}, "no images as rows of 3072 bytes under 'data'"),
    "short rows": ({"data": np.zeros((4, 3071), np.uint8)}, "rows of 3072 bytes"),
    "no rows": ({"data": np.zeros((0, 3072), np.uint8), "labels": []}, "rows of 3072 bytes"),
    "other numbers": ({"data": np.zeros((4, 3072))}, "an array of 'f8', not of unsigned bytes"),
    "few labels": ({"labels": [0, 1]}, "no list of 4 labels under 'labels'"),
    "negative label": ({"labels": [0, 1, -1, 0]}, "the label -1, outside 0 to 2"),
    "large label": ({"labels": [0, 1, 3, 0]}, "the label 3, outside 0 to 2"),
    "half a label": ({"labels": [0, 1, 0.5, 0]}, "the label 0.5, outside 0 to 2"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_batch_is_named_with_its_fault(tmp_path: Path, case: str) -> None:
    change, sentence = WRONG[case]
    write_cifar10(tmp_path)
    path = dump(tmp_path / "cifar-10-batches-py" / "data_batch_2", a_batch(0) | change)
    with pytest.raises(ValueError, match=sentence) as caught:
        open_data("cifar10", root=tmp_path)
    assert str(path) in str(caught.value)


def test_a_pickle_of_something_else_is_refused(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    meta = dump(tmp_path / "cifar-10-batches-py" / "batches.meta", ["plane"])
    with pytest.raises(ValueError, match="holds a list, not a dictionary"):
        open_data("cifar10", root=tmp_path)
    dump(meta, {"label_names": [1, 2]})
    with pytest.raises(ValueError, match="no list of class names under 'label_names'"):
        open_data("cifar10", root=tmp_path)


@pytest.mark.parametrize("missing", [*FILES, "batches.meta"])
def test_a_missing_file_is_named_with_its_place(tmp_path: Path, missing: str) -> None:
    write_cifar10(tmp_path)
    folder = tmp_path / "cifar-10-batches-py"
    (folder / missing).unlink()
    with pytest.raises(FileNotFoundError) as caught:
        open_data("cifar10", root=tmp_path)
    assert f"cannot find {folder / missing}: put the files data_batch_1, " in str(caught.value)
    assert f"into {folder}, or open the data with download=True" in str(caught.value)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A small CIFAR-10 in an archive, at the address that torchvision would fetch it from."""
    allow_torchvision()
    source = pytest.importorskip("torchvision.datasets").CIFAR10
    far = tmp_path / "far"
    write_cifar10(far)
    with tarfile.open(far / "cifar.tar.gz", "w:gz") as tar:
        tar.add(far / "cifar-10-batches-py", "cifar-10-batches-py")
    digest = hashlib.md5((far / "cifar.tar.gz").read_bytes()).hexdigest()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=far)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("no_proxy", "*")
        monkeypatch.setattr(source, "url", f"http://127.0.0.1:{server.server_port}/cifar.tar.gz")
        monkeypatch.setattr(source, "tgz_md5", digest)
        yield far / "cifar.tar.gz"
        server.shutdown()


def test_download_fetches_what_is_missing_and_only_that(tmp_path: Path, archive: Path) -> None:
    near = tmp_path / "near"
    data = open_data("cifar10", root=near, download=True)
    assert torch.equal(data.images("test"), planes(a_batch(FILES.index("test_batch"))["data"]))
    archive.unlink()  # a second fetch would fail
    assert open_data("cifar10", root=near, download=True).count("train") == 5 * PER_FILE


def test_an_archive_that_is_not_the_expected_one_is_not_unpacked(
    tmp_path: Path, archive: Path
) -> None:
    archive.write_bytes(archive.read_bytes() + b"x")
    with pytest.raises(OSError, match=r"cannot download http:.*unpack it there"):
        open_data("cifar10", root=tmp_path / "near", download=True)
    assert not (tmp_path / "near" / "cifar-10-batches-py").exists()


def test_an_address_that_does_not_answer_is_explained(tmp_path: Path, archive: Path) -> None:
    archive.unlink()
    with pytest.raises(OSError, match=r"cannot download http:.*404.*: fetch it by hand from https"):
        open_data("cifar10", root=tmp_path / "near", download=True)
