"""Data by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from proxbit.data.cifar import CIFAR10, CIFAR100, open_cifar
from proxbit.data.fashion import fashion_mnist
from proxbit.data.image_folder import FolderSet, open_folder
from proxbit.data.image_set import ImageSet
from proxbit.data.npz import open_npz
from proxbit.util.text import unknown_name_message

Data = ImageSet | FolderSet

CIFAR = {layout.name: layout for layout in (CIFAR10, CIFAR100)}
PLACES: dict[str, Callable[[Path], Data]] = {"npz": open_npz, "folder": open_folder}
FORMS = ("fashion", "fashion_mnist", *CIFAR, "npz:FILE.npz", "folder:DIR")


def open_data(name: str = "fashion", root: str | Path = "data", download: bool = False) -> Data:
    """Open labelled images by name.

    Args:
        name: ``fashion`` (in the package), ``cifar10``, ``cifar100``, ``npz:FILE.npz`` or
            ``folder:DIR``.
        root: Where the folder of CIFAR lies.
        download: Whether to fetch CIFAR where it is missing.

    >>> data = open_data("fashion")
    >>> data.count("train"), data.channels, data.image_size, len(data.classes)
    (8000, 1, 28, 10)
    """
    kind, _, place = name.partition(":")
    if name in ("fashion", "fashion_mnist"):
        return fashion_mnist()
    if name in CIFAR:
        return open_cifar(CIFAR[name], Path(root).expanduser(), download)
    if kind in PLACES and place:
        return PLACES[kind](Path(place).expanduser())
    raise ValueError(unknown_name_message("data", name, FORMS))
