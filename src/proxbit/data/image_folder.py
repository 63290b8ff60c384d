"""Images in folders, train/CLASS/* and val/CLASS/*, decoded when they are needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from proxbit.data.image_set import balanced_split, one_part
from proxbit.util.compat import extra

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp")
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB")
MOST_RATIO = 100

# Of ImageNet's training images.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
MOST_BYTES = 2**30  # of pictures that are kept
T = TypeVar("T")


class Memory:
    """Results by key; once the bytes are full, further ones are made anew each time.

    A copy, deep or pickled, starts empty: worker processes should not be sent gigabytes.

    >>> memory = Memory(most=3)
    >>> two = torch.ones(2, dtype=torch.uint8)
    >>> made = [memory.get(key, two.clone) for key in ("a", "b", "a")]
    >>> made[0] is made[2], memory.used
    (True, 2)
    """

    def __init__(self, most: int = MOST_BYTES) -> None:
        """Start empty."""
        self.most, self.used = most, 0
        self._kept: dict[Hashable, object] = {}

    def __reduce__(self) -> tuple[type[Memory], tuple[int]]:
        """Copy the limit alone."""
        return Memory, (self.most,)

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What ``make`` gave for this key: a tensor, or a picture of PIL."""
        if key in self._kept:
            return self._kept[key]  # type: ignore[return-value]
        made = make()
        taken = _bytes(made)
        if self.used + taken <= self.most:
            self._kept[key], self.used = made, self.used + taken
        return made


def _bytes(made: object) -> int:
    nbytes = getattr(made, "nbytes", None)
    if nbytes is not None:
        return int(nbytes)
    width, height = made.size  # type: ignore[attr-defined]
    return 4 * int(width) * int(height)  # PIL pads RGB to four bytes


@dataclass(frozen=True, eq=False)
class Files:
    """Image files with their labels; the paths in one array, which worker processes can share."""

    paths: np.ndarray[Any, np.dtype[np.str_]]
    labels: Tensor

    def take(self, rows: Tensor) -> Files:
        """The files of these rows."""
        return Files(self.paths[rows.numpy()], self.labels[rows])


@dataclass(frozen=True, eq=False)
class FolderSet:
    """Labelled image files in parts; the images may be of any size and are read as RGB.

    Pictures are decoded once and kept as long as they fit into ``memory``.
    """

    name: str
    classes: tuple[str, ...]
    train: Files
    test: Files
    validation: Files | None = None
    channels: int = 3
    image_size: int | None = None
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD
    memory: Memory = field(default_factory=Memory, repr=False)

    def files(self, part: str) -> Files:
        """The files of a part."""
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        return one_part(self.name, parts, part)

    def labels(self, part: str) -> Tensor:
        """The int64 labels of a part."""
        return self.files(part).labels

    def count(self, part: str) -> int:
        """Number of images of a part."""
        return len(self.files(part).paths)

    def picture(self, part: str, row: int) -> Any:
        """One image of a part, decoded by PIL."""
        path = self._path(part, row)
        return self.memory.get(path, lambda: read_picture(Path(path)))

    def fixed_picture(self, part: str, row: int, size: int, transform: Any) -> Tensor:
        """One image of a part through a transform to this size that has no random choice."""
        path = self._path(part, row)
        return self.memory.get(
            (path, size), lambda: torch.as_tensor(transform(read_picture(Path(path))))
        )

    def _path(self, part: str, row: int) -> str:
        return str(self.files(part).paths[row])

    def with_val_split(self, share: float, seed: int = 0) -> FolderSet:
        """The same set with a share of every class moved from the train to the validation part."""
        if self.validation is not None:
            raise ValueError(f"{self.name} has a validation part already: hold back only once")
        kept, held = balanced_split(self.train.labels, share, seed)
        return replace(self, train=self.train.take(kept), validation=self.train.take(held))


def open_folder(root: Path) -> FolderSet:
    """The images below ``root/train`` and ``root/val`` (or ``root/test``), a folder per class."""
    train = root / "train"
    tests = [root / name for name in ("val", "test") if (root / name).is_dir()]
    if not train.is_dir() or not tests:
        raise FileNotFoundError(
            f"{root} needs the folders train and val (or test) with a folder for each class"
        )
    classes = _folders(train)
    if not classes:
        raise ValueError(f"{train} has no class folders: put images into {train / 'CLASS'}")
    seen = _folders(tests[0])
    strange = [name for name in seen if name not in set(classes)]
    if strange:
        raise ValueError(
            f"{tests[0]} has the class {strange[0]!r}, which {train} lacks: remove or rename it"
        )
    if not seen:
        raise ValueError(f"{tests[0]} has no class folders: put images into {tests[0] / 'CLASS'}")
    files = _files(train, classes, classes), _files(tests[0], seen, classes)
    return FolderSet(root.resolve().name, classes, *files)


def _folders(root: Path) -> tuple[str, ...]:
    with os.scandir(root) as entries:
        return tuple(sorted(e.name for e in entries if e.is_dir() and not e.name.startswith(".")))


def _files(root: Path, names: tuple[str, ...], classes: tuple[str, ...]) -> Files:
    index = {name: i for i, name in enumerate(classes)}
    paths, labels = [], []
    for name in names:
        found = _images(root / name)
        if not found:
            raise ValueError(f"{root / name} has no image ({' '.join(SUFFIXES)}): add some")
        paths += found
        labels += [index[name]] * len(found)
    return Files(np.array(paths), torch.tensor(labels))


def _images(folder: Path) -> list[str]:
    every = [(place, file) for place, _, files in os.walk(folder) for file in files]
    found = [each for each in every if each[1].lower().endswith(SUFFIXES) and each[1][0] != "."]
    return sorted(str(Path(*each)) for each in found)


def too_narrow(given: tuple[int, int]) -> str | None:
    """Why a picture cannot be resized by its shorter side: the longer one would have no end."""
    narrow = max(given) > MOST_RATIO * min(given)
    return f"more than {MOST_RATIO} times as long as wide: cut or remove it" if narrow else None


def read_picture(path: Path, refuse: Callable[[tuple[int, int]], str | None] = too_narrow) -> Any:
    """The image in a file as RGB; a file that cannot be read is named.

    ``refuse`` says why a picture of this width and height is not read, before it takes memory.
    """
    image = extra("PIL.Image")
    try:
        with image.open(path) as picture:
            (width, height), mode = picture.size, picture.mode
            reason = refuse((width, height))
            if reason is None and mode in MODES:
                # A palette may hold transparency, which only RGBA takes over.
                return (picture.convert("RGBA") if mode == "P" else picture).convert("RGB")
    except (OSError, SyntaxError, ValueError, EOFError, image.DecompressionBombError) as error:
        raise ValueError(f"cannot read the image {path} ({error}): replace or remove it") from error
    if reason is not None:
        raise ValueError(f"{path} has {width:,} x {height:,} pixels, {reason}")
    raise ValueError(f"{path} is an image of mode {mode}: convert it to 8-bit colour or grey")
