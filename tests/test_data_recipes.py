"""What a recipe does to images and labels, against plain formulas."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from proxbit.data import RECIPES, ImageSet, Loader, Recipe, open_data
from proxbit.data.pixels import normalize, resize, shifted, take
from proxbit.data.recipes import smoothed
from proxbit.util.compat import allow_torchvision

seeds = st.integers(0, 2**31)


@pytest.fixture
def timm() -> None:
    allow_torchvision()
    pytest.importorskip("timm")


def noise(*shape: int, seed: int = 0) -> Tensor:
    pixels = np.random.default_rng(seed).integers(1, 256, shape, dtype=np.uint8)
    return torch.from_numpy(pixels)


def an_image_set(n: int = 24, size: int = 12, channels: int = 3) -> ImageSet:
    """Every image is a class of its own."""
    x, y = noise(n, channels, size, size), torch.arange(n)
    classes = tuple(str(i) for i in range(n))
    return ImageSet("set", x, y, x, y, classes, (0.5,) * channels, (0.25,) * channels)


@given(seed=seeds, pad=st.integers(0, 3), channels=st.integers(1, 4), data=st.data())
def test_a_shifted_image_is_a_window_of_the_padded_one(
    seed: int, pad: int, channels: int, data: st.DataObject
) -> None:
    images = noise(3, channels, 5, 4, seed=seed)
    table = st.lists(st.integers(0, 2 * pad), min_size=3, max_size=3)
    down, right = data.draw(table), data.draw(table)
    mirror = data.draw(st.lists(st.booleans(), min_size=3, max_size=3))
    moved = shifted(images, *map(torch.tensor, (down, right, mirror)), pad)
    assert moved.dtype == torch.uint8
    for i in range(3):
        canvas = np.pad(images[i].numpy(), ((0, 0), (pad, pad), (pad, pad)))
        window = canvas[:, down[i] : down[i] + 5, right[i] : right[i] + 4]
        assert np.array_equal(moved[i], window[:, :, ::-1] if mirror[i] else window)


@given(rows=st.lists(st.integers(0, 5), max_size=8), last=st.booleans())
def test_take_gives_the_rows_asked_for(rows: list[int], last: bool) -> None:
    images = noise(6, 3, 4, 4)
    kept = images.contiguous(memory_format=torch.channels_last) if last else images
    taken = take(kept, torch.tensor(rows, dtype=torch.long))
    assert taken.shape == (len(rows), 3, 4, 4)
    assert all(torch.equal(image, images[row]) for image, row in zip(taken, rows, strict=True))


@given(seed=seeds, channels=st.integers(1, 4), n=st.integers(0, 3))
def test_normalized_is_the_formula_in_each_channel(seed: int, channels: int, n: int) -> None:
    generator = np.random.default_rng(seed)
    mean, std = (tuple(generator.uniform(0.1, 0.9, channels).tolist()) for _ in "ms")
    images = noise(n, channels, 3, 5, seed=seed)
    x = normalize(images, mean, std)
    assert x.shape == images.shape and x.dtype == torch.float32
    for c in range(channels):
        torch.testing.assert_close(
            x[:, c], ((images[:, c].double() / 255 - mean[c]) / std[c]).float()
        )


def triangles(before: int, after: int) -> np.ndarray:
    """Weights of a resize, (after, before): triangles around each new pixel's middle."""
    scale = before / after
    reach = max(scale, 1.0)
    middle = (np.arange(after)[:, None] + 0.5) * scale
    weights = np.maximum(0, 1 - np.abs(np.arange(before) + 0.5 - middle) / reach)
    return weights / weights.sum(1, keepdims=True)


@given(before=st.integers(2, 12), after=st.integers(2, 20), channels=st.integers(1, 4), seed=seeds)
def test_a_resized_pixel_is_a_weighted_mean_of_those_it_covers(
    before: int, after: int, channels: int, seed: int
) -> None:
    images = noise(2, channels, before, before, seed=seed)
    weights = triangles(before, after)
    expected = np.einsum("ai,bj,ncij->ncab", weights, weights, images.numpy().astype(float))
    found = resize(images, after)
    assert found.shape == (2, channels, after, after) and found.dtype == torch.uint8
    assert np.abs(found.numpy() - expected).max() <= 1.5  # two roundings, rows and columns


def test_images_of_the_size_asked_for_are_not_resized() -> None:
    images = noise(2, 3, 6, 6)
    assert resize(images, 6) is images


@given(size=st.integers(4, 20))
def test_a_loader_gives_the_size_asked_for_after_the_crop(size: int) -> None:
    data = an_image_set()
    crop = Loader(data, batch_size=8, seed=4)
    x, y = next(Loader(data, batch_size=8, seed=4, image_size=size).epoch(1))
    small, same_labels = next(crop.epoch(1))
    assert torch.equal(y, same_labels)
    pixels = ((small * 0.25 + 0.5) * 255).round().to(torch.uint8)
    torch.testing.assert_close(x, normalize(resize(pixels, size), data.mean, data.std))


@given(labels=st.lists(st.integers(0, 4), min_size=1, max_size=6), smoothing=st.floats(0, 1))
def test_smoothed_targets_are_the_mixture_with_the_uniform_one(
    labels: list[int], smoothing: float
) -> None:
    soft = smoothed(torch.tensor(labels), 5, smoothing)
    for row, label in zip(soft.tolist(), labels, strict=True):
        for c, value in enumerate(row):
            own = 1 - smoothing if c == label else 0.0
            assert math.isclose(value, own + smoothing / 5, abs_tol=1e-6)


def test_smoothing_alone_gives_soft_targets_and_leaves_the_images() -> None:
    data = an_image_set()
    soft = Loader(data, batch_size=8, recipe=Recipe("soft", label_smoothing=0.2)).epoch(0)
    for (x, y), (z, rows) in zip(
        soft, Loader(data, batch_size=8, recipe=Recipe("")).epoch(0), strict=True
    ):
        assert torch.equal(x, z)
        assert torch.equal(y, smoothed(rows, 24, 0.2))


def mixed_and_whole(recipe: Recipe) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Mixed batches with their targets, and the same batches unmixed with their labels."""
    data = an_image_set()
    plain = replace(recipe, mixup=0.0, cutmix=0.0, label_smoothing=0.0)
    for epoch in range(4):
        mixed, whole = (Loader(data, batch_size=8, recipe=r).epoch(epoch) for r in (recipe, plain))
        for (x, y), (z, rows) in zip(mixed, whole, strict=True):
            yield x, y, z, rows


def share_of_own(y: Tensor, rows: Tensor, smoothing: float) -> float:
    """Lambda, read off the targets; every image must have the same one and its partner the rest."""
    own = (y.gather(1, rows[:, None]) - smoothing / 24) / (1 - smoothing)
    other = (y.gather(1, rows.flip(0)[:, None]) - smoothing / 24) / (1 - smoothing)
    assert torch.allclose(own, own[0].expand_as(own), atol=1e-6)
    assert torch.allclose(own + other, torch.ones_like(own), atol=1e-6)
    return float(own[0])


@pytest.mark.usefixtures("timm")
def test_mixup_blends_each_image_and_target_with_its_partner_by_one_share() -> None:
    shares = []
    recipe = Recipe("mixup", flip=True, mixup=0.8, label_smoothing=0.1)
    for x, y, whole, rows in mixed_and_whole(recipe):
        share = share_of_own(y, rows, 0.1)
        torch.testing.assert_close(x, share * whole + (1 - share) * whole.flip(0))
        shares.append(share)
    assert len({round(share, 6) for share in shares}) == 12  # each batch draws its own


@pytest.mark.usefixtures("timm")
def test_cutmix_pastes_one_rectangle_of_the_partner_and_counts_its_area() -> None:
    for x, y, whole, rows in mixed_and_whole(Recipe("cutmix", cutmix=1.0)):
        share, own = share_of_own(y, rows, 0.0), (x == whole).all(1)
        assert torch.equal(own[0].expand_as(own), own)  # the same place in every image
        assert (own | (x == whole.flip(0)).all(1)).all()
        assert math.isclose(share, float(own[0].float().mean()), abs_tol=1e-5)
        assert is_rectangle(~own[0])


def is_rectangle(mask: Tensor) -> bool:
    return bool(torch.equal(mask, mask.any(1)[:, None] & mask.any(0)[None, :]))


@pytest.mark.usefixtures("timm")
def test_erasing_puts_noise_into_one_rectangle_of_the_images_that_were_drawn() -> None:
    data = an_image_set(40)
    plain = next(Loader(data, batch_size=40, recipe=Recipe("")).epoch(0))[0]
    drawn = next(Loader(data, batch_size=40, recipe=Recipe("some", erasing=0.25)).epoch(0))[0]
    every = next(Loader(data, batch_size=40, recipe=Recipe("all", erasing=1.0)).epoch(0))[0]
    changed = [bool((a != b).any()) for a, b in zip(drawn, plain, strict=True)]
    assert 3 <= sum(changed) <= 20  # 10 on average
    for image, whole in zip(every, plain, strict=True):
        mask = (image != whole).any(0)
        assert is_rectangle(mask)
        assert 0.01 < float(mask.float().mean()) < 0.45  # 2 % to 33 %, in whole pixels
    values = every[(every != plain)]
    assert abs(float(values.mean())) < 0.1 and abs(float(values.std()) - 1) < 0.1


@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize("name", ["fashion", "colour"])
def test_the_recipe_of_deit_works_on_images_in_memory(name: str) -> None:
    data = open_data("fashion") if name == "fashion" else an_image_set(64, size=32)
    loader = Loader(data, batch_size=32, recipe=RECIPES["timm"], image_size=24, seed=2)
    x, y = next(loader.epoch(0))
    assert x.shape == (32, data.channels, 24, 24) and x.isfinite().all()
    assert y.shape == (32, len(data.classes)) and y.dtype == torch.float32
    torch.testing.assert_close(y.sum(1), torch.ones(32))


@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize("channels", [1, 3])
def test_the_strongest_policy_runs_on_grey_and_colour(channels: int) -> None:
    recipe = Recipe("strong", policy="rand-m10-n3-p1-inc1", colour=0.4)
    data = an_image_set(256, size=8, channels=channels)
    ((x, y),) = Loader(data, batch_size=256, recipe=recipe).epoch(0)
    plain = take(data.x_train, y)
    changed = (normalize(plain, data.mean, data.std) != x).flatten(1).any(1)
    assert x.isfinite().all() and changed.float().mean() > 0.9


@pytest.mark.usefixtures("timm")
def test_colour_acts_beside_a_policy() -> None:
    data = an_image_set(64, size=8)
    still = Recipe("still", policy="rand-m9-n1-p0")  # a policy that is never applied
    whole = next(Loader(data, batch_size=64, recipe=Recipe("")).epoch(0))[0]
    assert torch.equal(next(Loader(data, batch_size=64, recipe=still).epoch(0))[0], whole)
    tinted = next(Loader(data, batch_size=64, recipe=replace(still, colour=0.4)).epoch(0))[0]
    assert (tinted != whole).flatten(1).any(1).float().mean() > 0.9


@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize("policy", ["rand-x9", "randy", "stronger"])
def test_a_policy_that_timm_cannot_read_is_refused_at_once(policy: str) -> None:
    sentence = f"'mine' has policy='{policy}', which timm cannot read: write it like rand-m9"
    with pytest.raises(ValueError, match=sentence):
        Loader(an_image_set(), batch_size=8, recipe=Recipe("mine", policy=policy))


def test_the_recipes_are_those_of_the_references() -> None:
    assert list(RECIPES) == ["none", "crop", "timm"]
    assert all(recipe.name == name for name, recipe in RECIPES.items())
    assert [RECIPES["crop"].padding(size) for size in (8, 28, 32, 64, 96)] == [0, 2, 4, 8, 12]
    deit = RECIPES["timm"]
    assert deit.policy == "rand-m9-mstd0.5-inc1"
    assert (deit.mixup, deit.cutmix, deit.erasing, deit.label_smoothing) == (0.8, 1.0, 0.25, 0.1)
