"""Image files for a packed network: read, fitted to its input, and named."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from proxbit.data import Loader, open_data
from proxbit.data.image_folder import read_picture
from proxbit.data.pixels import normalize
from proxbit.deploy.packed_networks import packed_network, refusing_shape
from proxbit.engine.loading import LARGEST_SIDE
from proxbit.engine.packing import finish
from proxbit.packfile.file import read
from proxbit.train.evaluation import count_right
from proxbit.util.compat import extra

MOST_CHANNELS = 16  # of the largest image
LONGEST, MOST_PIXELS = 16, 64  # of a picture on the way to it, in largest sides and images
_COLOURS = {1: "L", 3: "RGB"}


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
    def of(given: dict[str, Any] | None, largest_side: int = LARGEST_SIDE) -> InputForm:
        """The ``input`` of a packed file; one sentence for one that makes no sense.

        >>> InputForm.of({"shape": [1, 28, 28], "mean": [0.5], "std": [0.25]}).width
        28
        """
        if given is None:
            raise ValueError(
                "the file does not say what its input looks like: save it with "
                'input={"shape": [3, 224, 224], "mean": [...], "std": [...]}'
            )
        channels, height, width = input_shape(given, largest_side)
        mean = _numbers(given, "mean", [0.0] * channels)
        std = _numbers(given, "std", [1.0] * channels)
        crop = given.get("crop", 1.0)
        if len(mean) != channels or len(std) != channels or min(std) <= 0:
            raise ValueError(f"{_shown(given)}: mean and std have one number per channel, std > 0")
        if not _is_number(crop) or not 0.1 <= crop <= 1:
            raise ValueError(f"{_shown(given)}: crop is a share from 0.1 to 1")
        return InputForm(channels, height, width, mean, std, crop)


def input_shape(given: dict[str, Any], largest_side: int = LARGEST_SIDE) -> tuple[int, int, int]:
    """Channels, height and width, none of which costs more than the largest image may."""
    shape = given.get("shape")
    sizes = isinstance(shape, list) and all(type(n) is int and n > 0 for n in shape)
    if not isinstance(shape, list) or not sizes or len(shape) != 3:
        raise ValueError(f"{_shown(given)}: its shape is [channels, height, width]")
    if max(shape[1:]) > largest_side or math.prod(shape) > MOST_CHANNELS * largest_side**2:
        raise ValueError(
            f"{_shown(given)}: more than {MOST_CHANNELS} channels of {largest_side} x "
            f"{largest_side} pixels; raise --largest-side to run it"
        )
    return shape[0], shape[1], shape[2]


def _shown(given: dict[str, Any]) -> str:
    return f"the file's input is {str(given)[:120]}"


def _numbers(given: dict[str, Any], name: str, default: list[float]) -> tuple[float, ...]:
    values = given.get(name, default)
    if not isinstance(values, list) or not all(_is_number(value) for value in values):
        raise ValueError(f"{_shown(given)}: {name} is a list of numbers")
    return tuple(map(float, values))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def read_image(path: str, form: InputForm, largest_side: int = LARGEST_SIDE) -> Tensor:
    """An image file as a batch of one: resized to cover the input, cut to it, normalized.

    The same numbers as in the test of a run: for images of a folder the shorter side is resized to
    more than the input (its ``crop``) and the middle taken.
    """
    if form.channels not in _COLOURS:
        raise ValueError(
            f"the network takes {form.channels} channels, and image files give 1 (grey) or 3"
        )
    too_large = partial(_too_large, form, largest_side)
    with warnings.catch_warnings():  # PIL's own limit is above ours
        warnings.simplefilter("ignore", extra("PIL.Image").DecompressionBombWarning)
        picture = read_picture(Path(path), too_large).convert(_COLOURS[form.channels])
    kind = extra("PIL.Image").Resampling
    method = kind.BICUBIC if form.crop < 1 else kind.BILINEAR
    picture = picture.resize(covering(picture.size, form), method)
    width, height = picture.size
    left, top = round((width - form.width) / 2), round((height - form.height) / 2)
    picture = picture.crop((left, top, left + form.width, top + form.height))
    pixels = np.array(picture, dtype=np.uint8).reshape(1, form.height, form.width, form.channels)
    return normalize(torch.from_numpy(pixels).permute(0, 3, 1, 2), form.mean, form.std)


def _too_large(form: InputForm, largest_side: int, given: tuple[int, int]) -> str | None:
    """The reason why a picture costs too much to read or to resize; None where it does not."""
    resized = covering(given, form)
    if max(resized) > LONGEST * largest_side:
        shown = " x ".join(f"{n:,}" for n in resized)
        return f"which would be resized to {shown}: cut it, or raise --largest-side"
    if math.prod(given) > MOST_PIXELS * largest_side**2:
        most = MOST_PIXELS * largest_side**2
        return f"more than {most:,} in all: make it smaller, or raise --largest-side"
    return None


def covering(given: tuple[int, int], form: InputForm) -> tuple[int, int]:
    """Width and height of an image after resizing: in proportion, and nowhere too small.

    >>> covering((640, 480), InputForm(3, 224, 224, (0.0,) * 3, (1.0,) * 3, crop=0.875))
    (341, 256)
    """
    width, height = given
    w, h = math.floor(form.width / form.crop), math.floor(form.height / form.crop)
    if width * h <= height * w:
        return w, int(w * height / width)
    return int(h * width / height), h


@dataclass(frozen=True)
class Guess:
    """One class, and the share that softmax gives it."""

    index: int
    label: str
    share: float


def recognize(
    net: nn.Module, image: Tensor, labels: tuple[str, ...] | None, top: int
) -> list[Guess]:
    """The classes with the highest scores, best first."""
    with refusing_shape(image.shape), torch.inference_mode():
        scores = net(image)
    if not isinstance(scores, Tensor) or scores.dim() != 2 or len(scores) != 1:
        found = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise ValueError(f"the network gives {found} for one image, not one score per class")
    if labels is not None and len(labels) != scores.shape[1]:
        raise ValueError(f"the file has {len(labels)} labels for {scores.shape[1]} scores")
    names = labels or tuple(f"class {i}" for i in range(scores.shape[1]))
    shares, order = scores[0].float().softmax(0).topk(min(top, len(names)))
    pairs = zip(order.tolist(), shares.tolist(), strict=True)
    return [Guess(i, names[i], share) for i, share in pairs]


def evaluate_file(path: str | Path, name: str, skeleton: str | None = None) -> dict[str, Any]:
    """Measure the accuracy of a packed file on the test images of a data set, as it will run."""
    held, data = read(path), open_data(name)
    form, labels = InputForm.of(held.about.input), held.about.labels
    takes = form.channels, len(labels or data.classes)
    if takes != (data.channels, len(data.classes)) or form.height != form.width:
        raise ValueError(
            f"'{path}' takes {form.height}x{form.width} images of {takes[0]} channels and "
            f"{takes[1]} classes, and {name} has {data.channels} and {len(data.classes)}: give "
            "--data images like those that it was trained on"
        )
    net = packed_network(path, held, skeleton)
    finish(net, None)
    images = replace(data, mean=form.mean, std=form.std)
    loader = Loader(images, part="test", image_size=form.height)
    with refusing_shape((loader.batch_size, form.channels, form.height, form.width)):
        right, seen = count_right(net, loader.epoch(0))
    return {"file": str(path), "part": "test", "n": seen, "hard": right / max(seen, 1)}
