"""Data by name: what opens, what is refused, and in which words."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxbit.data import ImageSet, Loader, Recipe, open_data
from proxbit.data.image_set import balanced_split, statistics

SAME_FILE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def contents(
    train: int = 6, test: int = 4, size: int = 5, channels: int | None = 3, seed: int = 0
) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    side = (size, size) if channels is None else (size, size, channels)
    return {
        "x_train": generator.integers(0, 256, (train, *side), dtype=np.uint8),
        "y_train": np.arange(train) % 3,
        "x_test": generator.integers(0, 256, (test, *side), dtype=np.uint8),
        "y_test": np.arange(test) % 3,
    }


def save(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return f"npz:{path}"


@pytest.mark.parametrize("name", ["fashion", "fashion_mnist"])
def test_the_embedded_images_open_by_both_names(name: str) -> None:
    data = open_data(name)
    assert (data.name, data.channels, data.image_size) == ("fashion_mnist", 1, 28)
    assert (data.count("train"), data.count("test")) == (8000, 2000)


@pytest.mark.parametrize(
    ("given_name", "near"),
    [("fashon", "fashion"), ("CIFAR10", "cifar10"), ("cifar-100", "cifar100")],
)
def test_an_unknown_name_is_answered_with_a_near_one_and_all_forms(
    given_name: str, near: str
) -> None:
    sentence = f"unknown data '{given_name}': did you mean '{near}'? known: fashion, "
    with pytest.raises(ValueError, match=re.escape(sentence)) as caught:
        open_data(given_name)
    assert "cifar10, cifar100, npz:FILE.npz, folder:DIR" in str(caught.value)


@pytest.mark.parametrize("name", ["", "npz:", "folder:", "images.npz", "zip:x"])
def test_a_form_without_its_place_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="unknown data"):
        open_data(name)


@SAME_FILE
@given(
    train=st.integers(3, 9),
    test=st.integers(1, 5),
    size=st.integers(1, 6),
    channels=st.none() | st.integers(1, 5),
    labels=st.sampled_from(["uint8", "int16", "int64", "uint64"]),
)
def test_an_npz_is_read_as_written(
    tmp_path: Path, train: int, test: int, size: int, channels: int | None, labels: str
) -> None:
    arrays = contents(train, test, size, channels, seed=train)
    kinds = {"y_train": arrays["y_train"].astype(labels), "y_test": arrays["y_test"].astype(labels)}
    data = open_data(save(tmp_path / "set.npz", **arrays | kinds))
    assert isinstance(data, ImageSet)
    assert (data.name, data.channels, data.image_size) == ("set", channels or 1, size)
    assert data.classes == ("0", "1", "2")
    for part in ("train", "test"):
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        for i, image in enumerate(data.images(part)):
            for c, plane in enumerate(image):
                assert np.array_equal(plane, x[i] if channels is None else x[i, :, :, c])
        assert data.labels(part).tolist() == y.tolist()
        assert data.labels(part).dtype == torch.int64


@given(
    n=st.integers(1, 5), channels=st.integers(1, 4), size=st.integers(1, 4), seed=st.integers(0, 99)
)
def test_mean_and_std_are_those_of_the_scaled_images(
    n: int, channels: int, size: int, seed: int
) -> None:
    x = np.random.default_rng(seed).integers(0, 256, (n, channels, size, size), dtype=np.uint8)
    x[:, 0, 0, 0] = np.arange(n) * 50  # more than one value, unless there is only one pixel
    mean, std = statistics(torch.from_numpy(x))
    scaled = x.astype(np.float64) / 255
    assert mean == pytest.approx(scaled.mean((0, 2, 3)))
    spread = scaled.std((0, 2, 3))
    assert std == pytest.approx(np.where(spread == 0, 1, spread))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "dtype": ({"x_train": np.zeros((6, 5, 5, 3))}, "x_train is float64 .*: store images as uint8"),
    "rank": ({"x_train": np.zeros((6, 5), np.uint8)}, r"shape \(6, 5\): store images as \(n, h, w"),
    "planes": ({"x_test": np.zeros((4, 3, 5, 5), np.uint8)}, "x_test is .*: images must be square"),
    "empty": ({"x_test": np.zeros((0, 5, 5, 3), np.uint8)}, "x_test is .*: it holds no image"),
    "sizes": (
        {"x_test": np.zeros((4, 6, 6, 3), np.uint8)},
        r"x_train are \(5, 5, 3\) and those of x_test \(6, 6, 3\): give both the same size",
    ),
    "channels": ({"x_test": np.zeros((4, 5, 5), np.uint8)}, "give both the same size and channels"),
    "length": ({"y_train": np.arange(5) % 3}, "y_train is .*: store one label for each of the 6"),
    "label shape": ({"y_test": np.zeros((4, 1), int)}, "y_test is .*: store one label for each"),
    "label dtype": ({"y_test": np.zeros(4)}, "y_test is float64 .*: store labels as whole numbers"),
    "negative": ({"y_test": np.array([0, 1, -2, 0])}, "y_test has the label -2: labels begin at 0"),
    "out of range": ({"y_test": np.array([0, 1, 3, 0])}, "y_test has the label 3, outside 0 to 2"),
    "gap": ({"y_train": np.array([0, 1, 3, 3, 0, 1])}, "labels up to 3 but no image of class 2"),
    "from one": ({"y_train": np.array([1, 2, 3, 1, 2, 3])}, "but no image of class 0"),
    "objects": ({"y_test": np.array([0, 1, None, 0])}, "write it with numpy.savez and plain"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_npz_gets_one_sentence(tmp_path: Path, case: str) -> None:
    change, sentence = WRONG[case]
    with pytest.raises(ValueError, match=sentence) as caught:
        open_data(save(tmp_path / "set.npz", **contents() | change))
    assert str(tmp_path / "set.npz") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_npz_that_lacks_arrays_or_is_none_is_refused(tmp_path: Path) -> None:
    arrays = contents()
    del arrays["y_test"], arrays["x_train"]
    with pytest.raises(ValueError, match="lacks x_train, y_test: it must hold x_train, y_train"):
        open_data(save(tmp_path / "set.npz", **arrays))
    with pytest.raises(FileNotFoundError, match=r"cannot find .*none.npz: give an existing file"):
        open_data(f"npz:{tmp_path / 'none.npz'}")
    np.save(tmp_path / "one.npy", arrays["x_test"])
    with pytest.raises(ValueError, match=r"cannot read .*one.npy .*numpy.savez"):
        open_data(f"npz:{tmp_path / 'one.npy'}")


@SAME_FILE
@given(cut=st.floats(0, 1, exclude_max=True))
def test_an_npz_cut_anywhere_is_refused(tmp_path: Path, cut: float) -> None:
    path = tmp_path / "set.npz"
    name = save(path, **contents())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(cut * len(whole))])
    with pytest.raises(ValueError, match=f"cannot read {path}"):
        open_data(name)


@given(share=st.floats(0.15, 0.99), seed=st.integers(0, 2**40))
def test_a_val_split_splits_every_class_by_the_same_share(share: float, seed: int) -> None:
    labels = torch.tensor([0] * 10 + [1] * 20 + [2] * 5)[torch.randperm(35)]
    pixels = torch.arange(35, dtype=torch.uint8).view(-1, 1, 1, 1)  # each image names its row
    data = ImageSet("rows", pixels, labels, pixels, labels, ("a", "b", "c"), (0.5,), (0.5,))
    split = data.with_val_split(share, seed)
    kept, held = (split.images(part).flatten().tolist() for part in ("train", "validation"))
    assert kept == sorted(kept) and held == sorted(held)
    assert sorted(kept + held) == list(range(35))
    assert split.labels("validation").bincount(minlength=3).tolist() == [
        min(round(share * n), n - 1) for n in (10, 20, 5)
    ]
    assert torch.equal(split.labels("train"), labels[kept])
    assert torch.equal(split.labels("validation"), labels[held])
    assert torch.equal(split.images("test"), pixels)
    assert data.with_val_split(share, seed).images("validation").flatten().tolist() == held


def test_a_class_always_keeps_an_image() -> None:
    kept, held = balanced_split(torch.tensor([0, 0, 1, 1, 1, 2]), 0.95)
    assert (len(kept), len(held)) == (3, 3)


def test_another_seed_holds_back_other_images() -> None:
    data = open_data("fashion")
    one, two = (data.with_val_split(0.1, seed).images("validation") for seed in (0, 1))
    assert len(one) == len(two) == 800
    assert not torch.equal(one, two)


def test_a_part_that_does_not_exist_is_explained() -> None:
    data = open_data("fashion")
    with pytest.raises(
        ValueError, match=r"no validation part: make one with data.with_val_split\(0.1"
    ):
        data.count("validation")
    with pytest.raises(ValueError, match="unknown part 'tests': did you mean 'test'"):
        data.labels("tests")
    with pytest.raises(ValueError, match="has a validation part already"):
        data.with_val_split(0.1).with_val_split(0.1)
    with pytest.raises(ValueError, match=r"a share of 1.5: choose one between 0 and 1"):
        data.with_val_split(1.5)
    with pytest.raises(ValueError, match="holds back no image of any class"):
        data.with_val_split(0.0001)


def test_images_in_memory_need_no_optional_package() -> None:
    code = """
import sys
from proxbit.data import Loader, open_data
next(Loader(open_data("fashion"), image_size=32).epoch(0))
assert not {"PIL", "torchvision", "timm"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_absent_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm.data.mixup", None)
    loader = Loader(open_data("fashion"), recipe=Recipe("mixup", mixup=1.0))
    sentence = re.escape("needs timm: pip install 'proxbit[vision]'")
    with pytest.raises(ModuleNotFoundError, match=sentence):
        next(loader.epoch(0))
