"""Data by name; Fashion-MNIST is in the package, 8,000 + 2,000 images.

The images are by Zalando (MIT, see FASHION_MNIST_LICENSE); ``tools/make_fashion.py`` made the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path

from proxbit.data.cifar import CIFAR10, CIFAR100, open_cifar
from proxbit.data.image_folder import FolderSet, open_folder
from proxbit.data.image_set import ImageSet
from proxbit.data.npz import open_npz
from proxbit.util.text import unknown_name_message

CLASSES = (
    "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
    "ankle boot",
)  # fmt: skip


def fashion_mnist() -> ImageSet:
    """Fashion-MNIST's first 800 train and 200 test images of each of its ten classes.

    Nothing is downloaded: the images are part of the package.

    >>> images = fashion_mnist()
    >>> images.x_train.shape, images.x_test.shape
    (torch.Size([8000, 1, 28, 28]), torch.Size([2000, 1, 28, 28]))
    >>> images.classes[images.y_train[0]]
    'ankle boot'
    """
    with as_file(files(__package__) / "fashion_mnist.npz") as path:
        images = open_npz(path)
    # Of the whole set, of which these are a part.
    return replace(images, classes=CLASSES, mean=(0.2864,), std=(0.3537,))


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
