"""Images from a .npz file: x_train, y_train, x_test, y_test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxbit.data.image_set import ImageSet, statistics
from proxbit.util.text import saying

ARRAYS = ("x_train", "y_train", "x_test", "y_test")

Array = np.ndarray[Any, np.dtype[Any]]


def open_npz(path: Path) -> ImageSet:
    """The images of a .npz file: uint8 ``(n, h, w, channels)`` or ``(n, h, w)``, whole labels."""
    arrays = _load(path)
    x_train, x_test = (_images(path, name, arrays[name]) for name in ("x_train", "x_test"))
    if x_train.shape[1:] != x_test.shape[1:]:
        given = [tuple(arrays[name].shape[1:]) for name in ("x_train", "x_test")]
        raise ValueError(
            f"{path}: the images of x_train are {given[0]} and those of x_test {given[1]}: "
            f"give both the same size and channels"
        )
    y_train = _labels(path, "y_train", arrays["y_train"], len(x_train))
    y_test = _labels(path, "y_test", arrays["y_test"], len(x_test))
    classes = tuple(str(i) for i in range(_class_count(path, y_train, y_test)))
    mean, std = statistics(x_train)
    return ImageSet(path.stem, x_train, y_train, x_test, y_test, classes, mean, std)


def _load(path: Path) -> dict[str, Array]:
    if not path.is_file():
        raise FileNotFoundError(f"cannot find {path}: give an existing file as npz:FILE.npz")
    # A damaged archive fails in as many ways as there are bytes.
    told = saying(f"cannot read {path} (write it with numpy.savez and plain arrays)")
    with told, path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        names = set(archive.files)
        missing = [name for name in ARRAYS if name not in names]
        arrays = {name: archive[name] for name in ARRAYS if name in names}
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}: it must hold {', '.join(ARRAYS)}")
    return arrays


def _images(path: Path, name: str, array: Array) -> Tensor:
    given = f"{path}: {name} is {array.dtype} of shape {tuple(array.shape)}"
    if array.dtype != np.uint8:
        raise ValueError(f"{given}: store images as uint8, 0 to 255")
    if array.ndim not in (3, 4):
        raise ValueError(f"{given}: store images as (n, h, w, channels) or (n, h, w)")
    if array.shape[1] != array.shape[2]:
        raise ValueError(f"{given}: images must be square, as (n, h, w, channels) or (n, h, w)")
    if not array.size:
        raise ValueError(f"{given}: it holds no image")
    pixels = torch.from_numpy(np.ascontiguousarray(array))
    return pixels.unsqueeze(1) if array.ndim == 3 else pixels.permute(0, 3, 1, 2)


def _labels(path: Path, name: str, array: Array, images: int) -> Tensor:
    given = f"{path}: {name} is {array.dtype} of shape {tuple(array.shape)}"
    if array.dtype.kind not in "iu":
        raise ValueError(f"{given}: store labels as whole numbers")
    if array.shape != (images,):
        raise ValueError(f"{given}: store one label for each of the {images} images")
    if array.min() < 0:
        raise ValueError(f"{path}: {name} has the label {array.min()}: labels begin at 0")
    return torch.from_numpy(array.astype(np.int64))


def _class_count(path: Path, train: Tensor, test: Tensor) -> int:
    known = train.unique()
    if len(known) <= int(known[-1]):
        gap = next(i for i, label in enumerate(known.tolist()) if i != label)
        raise ValueError(
            f"{path}: y_train has labels up to {int(known[-1])} but no image of class {gap}: "
            f"number the classes from 0 without gaps"
        )
    if int(test.max()) >= len(known):
        raise ValueError(
            f"{path}: y_test has the label {int(test.max())}, outside 0 to {len(known) - 1} of "
            f"y_train: a network cannot learn a class without training images"
        )
    return len(known)
