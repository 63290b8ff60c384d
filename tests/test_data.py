"""The images in the package are the ones we chose, and batches of them follow from a seed alone."""

import hashlib
from importlib.resources import files

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor

from proxbit.data import ImageSet, Loader, fashion_mnist
from proxbit.data.epoch_rng import EpochRNG
from proxbit.data.pixels import shifted

SHA256 = "bfc365533c7d4f53eef38323463b2d4d45166c59cfa8437f7124b34ad03d62d6"


@pytest.fixture(scope="module")
def images() -> ImageSet:
    return fashion_mnist()


def seeded(seed: int) -> Generator:
    return Generator().manual_seed(seed)


def test_the_file_is_the_one_that_tools_make_fashion_writes() -> None:
    data = files("proxbit.data").joinpath("fashion_mnist.npz").read_bytes()
    assert len(data) <= 5_000_000
    assert hashlib.sha256(data).hexdigest() == SHA256


def test_the_licence_travels_with_the_images() -> None:
    text = files("proxbit.data").joinpath("FASHION_MNIST_LICENSE").read_text()
    assert "Copyright (c) 2017 Zalando SE" in text


def test_shapes_and_types(images: ImageSet) -> None:
    assert images.x_train.shape == (8000, 1, 28, 28)
    assert images.x_test.shape == (2000, 1, 28, 28)
    assert images.x_train.dtype == images.x_test.dtype == torch.uint8
    assert images.y_train.dtype == images.y_test.dtype == torch.int64


def test_every_class_is_equally_frequent(images: ImageSet) -> None:
    assert len(images.classes) == 10
    assert images.y_train.bincount().tolist() == [800] * 10
    assert images.y_test.bincount().tolist() == [200] * 10


def test_mean_and_std_are_those_of_the_train_part(images: ImageSet) -> None:
    x = images.x_train / 255
    assert images.mean == pytest.approx((x.mean().item(),), abs=1e-4)
    assert images.std == pytest.approx((x.std().item(),), abs=1e-4)


def test_no_image_is_in_both_parts(images: ImageSet) -> None:
    train = {image.numpy().tobytes() for image in images.x_train}
    assert not train & {image.numpy().tobytes() for image in images.x_test}


def test_test_batches_are_the_normalized_original_in_order(images: ImageSet) -> None:
    parts = list(Loader(images, part="test", batch_size=300))
    x, y = torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
    assert torch.equal(y, images.y_test)
    torch.testing.assert_close(x, (images.x_test / 255 - 0.2864) / 0.3537)


def numbered(n: int, channels: int = 2) -> tuple[Tensor, Tensor]:
    x = torch.randint(1, 256, (n, channels, 5, 4), generator=seeded(n)).to(torch.uint8)
    return x, torch.arange(n)


def views(image: Tensor, pad: int) -> list[Tensor]:
    """Every crop of the padded image and its mirror, by plain loops."""
    channels, height, width = image.shape
    canvas = image.new_zeros(channels, height + 2 * pad, width + 2 * pad)
    canvas[:, pad : pad + height, pad : pad + width] = image
    shifts = [(i, j) for i in range(2 * pad + 1) for j in range(2 * pad + 1)]
    crops = [canvas[:, i : i + height, j : j + width] for i, j in shifts]
    return crops + [crop.flip(-1) for crop in crops]


@given(seed=st.integers(0, 2**31), pad=st.integers(0, 2))
def test_augmented_images_are_crops_of_the_padded_image_or_their_mirrors(
    seed: int, pad: int
) -> None:
    x, _ = numbered(4)
    rng = EpochRNG(seed, 0, 4)
    moved = shifted(x, *rng.shifts(pad), rng.mirrors(), pad)
    assert moved.shape == x.shape and moved.dtype == x.dtype
    for before, after in zip(x, moved, strict=True):
        assert any(torch.equal(after, view) for view in views(before, pad))


def test_all_crops_and_both_mirrors_occur() -> None:
    x, rng = numbered(1)[0], EpochRNG(0, 0, 2000)
    moved = shifted(x.expand(2000, -1, -1, -1), *rng.shifts(2), rng.mirrors(), 2)
    assert len({image.numpy().tobytes() for image in moved}) == 50
