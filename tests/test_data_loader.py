"""Batches follow from seed, epoch and place: over ranks, resumes and workers nothing changes."""

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from proxbit.data import RECIPES, ImageSet, Loader, Recipe
from proxbit.data.epoch_rng import EpochRNG, ShardedBatches, seeded
from proxbit.util.compat import allow_torchvision

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
BATCHED = [RECIPES["none"], RECIPES["crop"], Recipe("flip", flip=True), Recipe("move", crop=0.4)]

seeds = st.integers(0, 2**40)
epochs = st.integers(0, 1000)
recipes = st.sampled_from(BATCHED)


def an_image_set(train: int, test: int = 1, size: int = 8, channels: int = 3) -> ImageSet:
    """Images of which no two are alike; the label of each is its row."""
    generator = np.random.default_rng(train * 1000 + test)
    x, y = (
        torch.from_numpy(generator.integers(1, 256, (n, channels, size, size), dtype=np.uint8))
        for n in (train, test)
    )
    classes = tuple(str(i) for i in range(max(train, test)))
    rows = torch.arange(train), torch.arange(test)
    return ImageSet("set", x, rows[0], y, rows[1], classes, MEAN[:channels], STD[:channels])


Batch = tuple[Tensor, Tensor]


def joined(batches: Iterable[Batch]) -> Batch:
    parts = list(batches)
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def same(one: Iterable[Batch], two: Iterable[Batch]) -> bool:
    pairs = zip(one, two, strict=True)
    return all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in pairs)


def by_formula(image: Tensor) -> Tensor:
    """A normalized image, channel by channel."""
    planes = zip(image.double(), MEAN, STD, strict=True)
    return torch.stack([(plane / 255 - m) / s for plane, m, s in planes]).float()


def slowly(image: Tensor, down: int, right: int, mirror: bool, pad: int) -> Tensor:
    """The image seen through a window that may reach into the black around it, pixel by pixel."""
    channels, height, width = image.shape
    seen = torch.zeros_like(image)
    for c in range(channels):
        for i in range(height):
            for j in range(width):
                y, x = i + down - pad, (width - 1 - j if mirror else j) + right - pad
                if 0 <= y < height and 0 <= x < width:
                    seen[c, i, j] = image[c, y, x]
    return seen


@given(seed=seeds, epoch=epochs, n=st.integers(1, 40), batch=st.integers(1, 12))
def test_an_epoch_of_training_shows_images_once_and_drops_only_a_partial_batch(
    seed: int, epoch: int, n: int, batch: int
) -> None:
    loader = Loader(an_image_set(n), batch_size=batch, seed=seed, recipe=RECIPES["none"])
    parts = list(loader.epoch(epoch))
    assert len(parts) == loader.steps == max(1, n // batch)
    assert {len(x) for x, _ in parts} == {min(n, batch)}
    x, y = joined(parts)
    assert len(set(y.tolist())) == len(y)
    for image, row in zip(x, y.tolist(), strict=True):
        torch.testing.assert_close(image, by_formula(loader.data.images("train")[row]))


@given(n=st.integers(1, 60), batch=st.integers(1, 20), world=st.integers(1, 6), part=st.booleans())
def test_a_part_for_testing_is_shown_exactly_once_over_the_ranks(
    n: int, batch: int, world: int, part: bool
) -> None:
    world = min(world, n)
    data = an_image_set(4, n, size=3)
    if part:
        data = replace(data, x_validation=data.x_test, y_validation=data.y_test)
    name = "validation" if part else "test"
    ranks = [Loader(data, name, batch, rank=rank, world=world) for rank in range(world)]
    assert len({loader.steps for loader in ranks}) == 1
    epochs = [list(loader.epoch(0)) for loader in ranks]
    assert all(len(y) for epoch in epochs for _, y in epoch)
    in_order = joined(batch for step in zip(*epochs, strict=True) for batch in step)
    assert in_order[1].tolist() == list(range(n))
    for image, original in zip(in_order[0], data.x_test, strict=True):
        torch.testing.assert_close(image, by_formula(original))


@given(
    count=st.integers(1, 500),
    batch=st.integers(1, 64),
    world=st.integers(1, 9),
    train=st.booleans(),
)
def test_shares_are_as_equal_as_can_be_and_never_empty(
    count: int, batch: int, world: int, train: bool
) -> None:
    world = min(world, count)
    batch = batch * world if train else batch
    ranks = [ShardedBatches(count, batch, rank, world, train) for rank in range(world)]
    sizes = [
        [one.rows(step).stop - one.rows(step).start for one in ranks]
        for step in range(ranks[0].steps)
    ]
    assert all(min(step) > 0 and max(step) - min(step) <= 1 for step in sizes)
    whole = [sum(step) for step in sizes]
    assert max(whole) - min(whole) <= 1
    assert sum(whole) == (max(count // batch * batch, min(count, batch)) if train else count)
    assert max(whole) <= max(batch, 2 * world)


@given(seed=seeds, epoch=epochs, recipe=recipes, world=st.integers(1, 4), each=st.integers(1, 3))
def test_the_ranks_together_see_the_batch_of_one_process(
    seed: int, epoch: int, recipe: Recipe, world: int, each: int
) -> None:
    data, batch = an_image_set(29), world * each
    whole = Loader(data, batch_size=batch, seed=seed, recipe=recipe).epoch(epoch)
    ranks = [
        Loader(data, batch_size=batch, seed=seed, recipe=recipe, rank=rank, world=world).epoch(
            epoch
        )
        for rank in range(world)
    ]
    assert same(whole, (joined(step) for step in zip(*ranks, strict=True)))


@given(seed=seeds, epoch=epochs, recipe=recipes, start=st.integers(0, 6))
def test_a_resumed_epoch_goes_on_as_the_whole_one(
    seed: int, epoch: int, recipe: Recipe, start: int
) -> None:
    loader = Loader(an_image_set(25), batch_size=4, seed=seed, recipe=recipe, image_size=6)
    assert loader.steps == 6
    assert same(list(loader.epoch(epoch))[start:], loader.epoch(epoch, start=start))


@given(seed=seeds, epoch=epochs, recipe=recipes)
def test_the_same_seed_and_epoch_give_the_same_batches_and_others_do_not(
    seed: int, epoch: int, recipe: Recipe
) -> None:
    data = an_image_set(40)
    loader = Loader(data, batch_size=8, seed=seed, recipe=recipe)
    again = Loader(data, batch_size=8, seed=seed, recipe=recipe)
    assert same(loader.epoch(epoch), again.epoch(epoch))
    assert not same(loader.epoch(epoch), again.epoch(epoch + 1))
    assert not same(loader.epoch(epoch), Loader(data, batch_size=8, seed=seed + 1).epoch(epoch))


@given(seed=seeds, epoch=epochs, recipe=recipes, channels=st.sampled_from([1, 2, 3]))
def test_every_image_is_the_window_that_was_drawn_for_its_place(
    seed: int, epoch: int, recipe: Recipe, channels: int
) -> None:
    data = replace(an_image_set(7, channels=channels), mean=(0.0,), std=(1 / 255,))
    loader = Loader(data, batch_size=3, seed=seed, recipe=recipe)
    draws, pad = EpochRNG(seed, epoch, 7), recipe.padding(8)
    order, (down, right), mirror = draws.order(), draws.shifts(pad), draws.mirrors()
    x, y = joined(loader.epoch(epoch))
    assert y.tolist() == order[:6].tolist()
    for place, (image, row) in enumerate(zip(x, y.tolist(), strict=True)):
        window = int(down[place]), int(right[place]), bool(mirror[place]) and recipe.flip
        expected = slowly(data.x_train[row], *window, pad)
        torch.testing.assert_close(image, expected.float())


def test_all_windows_and_both_mirrors_are_drawn_about_equally_often() -> None:
    draws, places = EpochRNG(1, 2, 5000), torch.arange(5000)
    down, right = draws.shifts(2)
    kinds = (down * 5 + right) * 2 + draws.mirrors()
    counts = kinds.bincount(minlength=50)
    assert len(counts) == 50 and counts.min() > 50 and counts.max() < 160  # 100 on average
    assert torch.equal(draws.order().sort().values, places)
    assert abs(float((draws.erasings(0.25) >= 0).float().mean()) - 0.25) < 0.03


def test_a_validation_part_is_neither_shuffled_nor_augmented() -> None:
    data = replace(an_image_set(30), y_train=torch.arange(30) % 3).with_val_split(0.3, seed=1)
    x, y = joined(Loader(data, part="validation", batch_size=4, seed=9).epoch(5))
    assert torch.equal(y, data.labels("validation"))
    for image, original in zip(x, data.images("validation"), strict=True):
        torch.testing.assert_close(image, by_formula(original))


def states() -> tuple[object, ...]:
    kind, keys, *rest = np.random.get_state()
    numbers = torch.get_rng_state().tolist()
    return random.getstate(), kind, keys.tolist(), rest, numbers


@pytest.fixture
def vision() -> None:
    allow_torchvision()
    pytest.importorskip("timm")


@pytest.fixture(params=["none", "crop", "timm"])
def recipe(request: pytest.FixtureRequest) -> Recipe:
    if request.param == "timm":
        request.getfixturevalue("vision")
    return RECIPES[request.param]


@pytest.mark.parametrize("workers", [0, 1])
def test_no_global_generator_is_touched_or_asked(recipe: Recipe, workers: int) -> None:
    loader = Loader(an_image_set(16), batch_size=8, recipe=recipe, workers=workers)
    seen = []
    for key in (1, 2):
        with seeded(key):
            before = states()
            seen.append(list(loader.epoch(0)))
            assert states() == before
            batches = loader.epoch(0)
            next(batches)
            assert states() == before  # in the middle of an epoch, too
    assert same(*seen)


def test_seeded_restores_the_generators_after_an_error() -> None:
    before = states()
    with pytest.raises(KeyError), seeded(5):
        assert states() != before
        raise KeyError
    assert states() == before


def laws_of_single_images(recipe: Recipe) -> Iterator[tuple[Iterable[Batch], Iterable[Batch]]]:
    """Pairs of batches that must be alike, for recipes that work on each image by itself."""
    data = an_image_set(26)
    whole = list(Loader(data, batch_size=8, seed=3, recipe=recipe).epoch(2))
    yield whole, Loader(data, batch_size=8, seed=3, recipe=recipe, workers=1).epoch(2)
    yield whole, Loader(data, batch_size=8, seed=3, recipe=recipe, workers=2).epoch(2)
    yield whole[1:], Loader(data, batch_size=8, seed=3, recipe=recipe).epoch(2, start=1)
    ranks = [Loader(data, batch_size=8, seed=3, recipe=recipe, rank=r, world=2) for r in (0, 1)]
    yield whole, (joined(step) for step in zip(*(r.epoch(2) for r in ranks), strict=True))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.usefixtures("vision")
def test_workers_resumes_and_ranks_do_not_change_single_images() -> None:
    recipe = replace(RECIPES["timm"], mixup=0.0, cutmix=0.0, colour=0.3)
    for one, two in laws_of_single_images(recipe):
        assert same(one, two)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.usefixtures("vision")
def test_workers_and_resumes_do_not_change_mixed_images_and_ranks_mix_by_the_same_share() -> None:
    *pairs, (whole, over_ranks) = laws_of_single_images(RECIPES["timm"])
    for one, two in pairs:
        assert same(one, two)
    for (_, y), (_, z) in zip(whole, over_ranks, strict=True):
        # Each label is that of its row, so the largest entries show lambda; only the partner moves.
        torch.testing.assert_close(y.max(1).values, z.max(1).values)


def test_batches_are_stored_channels_last_whatever_the_images_are() -> None:
    data = an_image_set(9)
    last = replace(data, x_train=data.x_train.contiguous(memory_format=torch.channels_last))
    for recipe in BATCHED:
        pair = [list(Loader(one, batch_size=4, recipe=recipe).epoch(0)) for one in (data, last)]
        assert same(*pair)
        for x, _ in pair[0] + pair[1]:
            assert x.is_contiguous(memory_format=torch.channels_last)


def test_batches_go_to_the_device() -> None:
    for recipe in (RECIPES["crop"], Recipe("soft", label_smoothing=0.1)):
        x, y = next(Loader(an_image_set(4), batch_size=2, recipe=recipe, device="meta").epoch(0))
        assert x.device.type == y.device.type == "meta"


WRONG = {
    "part": ({"part": "tset"}, "unknown part 'tset': did you mean 'test'"),
    "no validation": ({"part": "validation"}, "no validation part: make one with"),
    "batch_size": ({"batch_size": 0}, "cannot have batch_size=0: choose 1 or more"),
    "seed": ({"seed": -1}, "cannot have seed=-1: choose 0 or more"),
    "workers": ({"workers": -2}, "cannot have workers=-2: choose 0 or more"),
    "size": ({"image_size": 0}, "cannot have image_size=0: choose 1 or more"),
    "rank": ({"rank": 2, "world": 2}, "no rank 2 of 2: count ranks from 0"),
    "negative rank": ({"rank": -1}, "no rank -1 of 1"),
    "ranks": (
        {"batch_size": 9, "world": 2},
        "a batch of 9 cannot be shared by 2 ranks: choose",
    ),
    "many ranks": ({"world": 11, "part": "test"}, "set has 10 images for 11 ranks: use fewer"),
    "odd": ({"batch_size": 6, "world": 2, "recipe": RECIPES["timm"]}, "batch of 6 over 2 .* of 4$"),
    "few": (
        {"recipe": Recipe("m", mixup=1.0), "batch_size": 64},
        "a batch of 21 over 1 ranks",
    ),
    "crop": ({"recipe": Recipe("far", crop=0.6)}, "'far' has crop=0.6: choose one from 0 to 0.5"),
    "erasing": ({"recipe": Recipe("all", erasing=1.5)}, "has erasing=1.5: .* from 0 to 1"),
    "mixup": ({"recipe": Recipe("un", mixup=-1.0)}, "'un' has mixup=-1.0: choose one not below 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_loader_gets_one_sentence_at_once(case: str) -> None:
    change, sentence = WRONG[case]
    with pytest.raises(ValueError, match=sentence):
        Loader(an_image_set(21, 10), **change)  # type: ignore[arg-type]


def test_pictures_of_two_channels_are_refused_by_recipes_for_single_images() -> None:
    with pytest.raises(
        ValueError, match="'timm' needs pictures in grey or RGB, and set has 2 chan"
    ):
        Loader(an_image_set(4, channels=2), batch_size=4, recipe=RECIPES["timm"])


@pytest.mark.parametrize(("epoch", "start"), [(-1, 0), (0, -1), (0, 6)])
def test_an_epoch_or_start_that_does_not_exist_is_refused_at_once(epoch: int, start: int) -> None:
    with pytest.raises(ValueError, match=r"there is no epoch -1|an epoch has the batches 0 to 4"):
        Loader(an_image_set(20), batch_size=4).epoch(epoch, start)


def test_a_loop_over_a_loader_is_epoch_after_epoch():
    """As a loop of torch's DataLoader is written: ``for x, y in loader``, in every epoch."""
    loader, other = (Loader(an_image_set(25), batch_size=4, seed=3) for _ in range(2))
    assert len(loader) == loader.steps == 6
    for number in range(3):
        batches = list(loader)
        assert len(batches) == len(loader)
        for (x, y), (a, b) in zip(batches, other.epoch(number), strict=True):
            assert torch.equal(x, a) and torch.equal(y, b)
    (x, _), (a, _) = next(iter(loader)), next(other.epoch(3))
    assert torch.equal(x, a)
    assert not torch.equal(a, next(other.epoch(0))[0])
