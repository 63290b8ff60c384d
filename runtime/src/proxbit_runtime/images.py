"""Image files as the arrays that a network wants: resized, cut to its input, normalized."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

_COLOURS = {1: "L", 3: "RGB"}
MOST_SIDE = 16384  # pixels, of an image on the way to its input


@dataclass(frozen=True)
class InputForm:
    """The image that a network expects.

    Attributes:
        channels: 1 for grey, 3 for colour.
        height: Rows of pixels.
        width: Pixels of a row.
        mean: What is subtracted from each channel, of values from 0 to 1.
        std: What each channel is divided by.
        crop: Share of the resized image's side that is kept, around its middle.
    """

    channels: int
    height: int
    width: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop: float = 1.0

    @staticmethod
    def of(given: Any) -> InputForm:
        """The ``proxbit.input`` of a file; one sentence for one that makes no sense."""
        try:
            channels, height, width = (int(n) for n in given["shape"])
            mean = tuple(float(v) for v in given.get("mean", [0.0] * channels))
            std = tuple(float(v) for v in given.get("std", [1.0] * channels))
            form = InputForm(channels, height, width, mean, std, float(given.get("crop", 1.0)))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"the file's input makes no sense: {str(given)[:120]}") from error
        sizes = 1 <= height <= MOST_SIDE and 1 <= width <= MOST_SIDE and 1 <= channels <= 4096
        numbers = len(mean) == len(std) == channels and all(map(math.isfinite, (*mean, *std)))
        if not sizes or not numbers or min(std) <= 0 or not 0.1 <= form.crop <= 1:
            raise ValueError(f"the file's input makes no sense: {str(given)[:120]}")
        return form

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of one image."""
        return self.channels, self.height, self.width

    def read(self, path: str) -> Any:
        """An image file as a batch of one."""
        if self.channels not in _COLOURS:
            raise ValueError(f"the network takes {self.channels} channels, and images have 1 or 3")
        picture = _open(path).convert(_COLOURS[self.channels])
        covering = self._covering(picture.size)
        if max(covering) > MOST_SIDE:
            raise ValueError(f"'{path}' is too long and thin to be resized to {covering}: cut it")
        picture = picture.resize(covering, _image_module().Resampling(3 if self.crop < 1 else 2))
        wanted = (self.width, self.height)
        left, top = (round((have - want) / 2) for have, want in zip(covering, wanted))  # noqa: B905
        picture = picture.crop((left, top, left + self.width, top + self.height))
        pixels = np.array(picture, np.uint8).reshape(1, self.height, self.width, self.channels)
        return self.normalize(pixels.transpose(0, 3, 1, 2))

    def normalize(self, pixels: Any) -> Any:
        """Bytes of images with their channels first as the network's floats."""
        values = pixels.astype(np.float32) / np.float32(255)
        mean, std = (np.array(v, np.float32).reshape(-1, 1, 1) for v in (self.mean, self.std))
        return np.ascontiguousarray((values - mean) / std)

    def _covering(self, given: tuple[int, int]) -> tuple[int, int]:
        """Width and height after resizing: in proportion, and nowhere too small."""
        width, height = given
        w, h = math.floor(self.width / self.crop), math.floor(self.height / self.crop)
        if width * h <= height * w:
            return w, int(w * height / width)
        return int(h * width / height), h


def _image_module() -> Any:
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise ValueError("image files need pillow: pip install pillow") from error
    return Image


def _open(path: str) -> Any:
    try:
        picture = _image_module().open(path)
        picture.load()
    except (OSError, SyntaxError) as error:
        raise ValueError(f"cannot read the image '{path}': {error}") from error
    return picture
