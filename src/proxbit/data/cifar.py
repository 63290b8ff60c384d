"""CIFAR-10 and CIFAR-100 from their files for Python, read without running any of their pickles."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxbit.data.image_set import ImageSet
from proxbit.data.unpickle import ByteArray, read_pickle
from proxbit.util.compat import extra

PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"


@dataclass(frozen=True)
class CifarLayout:
    """Where one of the two sets keeps what."""

    name: str
    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    labels: str
    meta: str
    names: str
    mean: tuple[float, ...]
    std: tuple[float, ...]


CIFAR10 = CifarLayout(
    name="cifar10", folder="cifar-10-batches-py",
    train=tuple(f"data_batch_{i}" for i in range(1, 6)), test=("test_batch",), labels="labels",
    meta="batches.meta", names="label_names",
    mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616),
)  # fmt: skip

CIFAR100 = CifarLayout(
    name="cifar100", folder="cifar-100-python",
    train=("train",), test=("test",), labels="fine_labels", meta="meta", names="fine_label_names",
    mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762),
)  # fmt: skip


def open_cifar(layout: CifarLayout, root: Path, download: bool = False) -> ImageSet:
    """One of the two CIFAR sets, from its folder below ``root``."""
    folder = root / layout.folder
    files = (*layout.train, *layout.test, layout.meta)
    if download and not all((folder / file).is_file() for file in files):
        _download(layout, root)
    for file in files:
        if not (folder / file).is_file():
            raise FileNotFoundError(
                f"cannot find {folder / file}: put the files {', '.join(files)} of the python "
                f"version ({PAGE}) into {folder}, or open the data with download=True"
            )
    classes = _class_names(folder / layout.meta, layout.names)
    x_train, y_train = _read([folder / file for file in layout.train], layout, len(classes))
    x_test, y_test = _read([folder / file for file in layout.test], layout, len(classes))
    return ImageSet(layout.name, x_train, y_train, x_test, y_test, classes, layout.mean, layout.std)


def _download(layout: CifarLayout, root: Path) -> None:
    source = getattr(extra("torchvision.datasets"), layout.name.upper())
    fetch = extra("torchvision.datasets.utils").download_and_extract_archive
    try:
        fetch(source.url, root, filename=source.filename, md5=source.tgz_md5)
    except (OSError, RuntimeError) as error:
        raise OSError(
            f"cannot download {source.url} to {root} ({error}): fetch it by hand from {PAGE} and "
            f"unpack it there"
        ) from error


def _class_names(path: Path, key: str) -> tuple[str, ...]:
    names = read_pickle(path).get(key)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{path} has no list of class names under {key!r}: replace it")
    return tuple(names)


def _read(paths: list[Path], layout: CifarLayout, classes: int) -> tuple[Tensor, Tensor]:
    found = [_read_batch(path, layout.labels, classes) for path in paths]
    planes = torch.from_numpy(np.concatenate([images for images, _ in found]))
    images = planes.view(-1, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    return images, torch.tensor([label for _, labels in found for label in labels])


def _read_batch(path: Path, key: str, classes: int) -> tuple[Any, list[int]]:
    entry = read_pickle(path)
    array, labels = entry.get("data"), entry.get(key)
    images = getattr(array, "values", None) if isinstance(array, ByteArray) else None
    if images is None or images.ndim != 2 or images.shape[1] != 3072 or not len(images):
        raise ValueError(f"{path} has no images as rows of 3072 bytes under 'data': replace it")
    if not isinstance(labels, list) or len(labels) != len(images):
        raise ValueError(
            f"{path} has no list of {len(images)} labels under {key!r}, one per image: replace it"
        )
    for label in labels:
        if type(label) is not int or not 0 <= label < classes:
            raise ValueError(
                f"{path} has the label {label!r}, outside 0 to {classes - 1}: replace the file"
            )
    return images, labels
