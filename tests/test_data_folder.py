"""Images in folders: found, decoded, refused with their names, and alike for any worker count."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from proxbit.data import RECIPES, FolderSet, Loader, Recipe, open_data
from proxbit.data.image_folder import Memory, read_picture
from proxbit.util.compat import allow_torchvision

Image: Any = pytest.importorskip("PIL.Image")
allow_torchvision()
pytest.importorskip("timm")


def picture(seed: int, size: tuple[int, int] = (20, 16), mode: str = "RGB") -> Any:
    shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], len(mode))
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    return Image.fromarray(pixels)


def write(root: Path, part: str, name: str, files: list[str]) -> None:
    folder = root / part / name
    folder.mkdir(parents=True, exist_ok=True)
    for i, file in enumerate(files):
        picture(len(name) + i).save(folder / file)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, "train", "dog", ["a.png", "b.PNG", "c.bmp", "d.png"])
    write(tmp_path, "train", "cat", ["x.png", "y.png", "z.jpg", "w.jpeg"])
    write(tmp_path, "train", "emu", ["1.png", "2.png", "3.png", "4.png"])
    write(tmp_path, "val", "dog", ["u.png", "v.png", "t.png"])
    write(tmp_path, "val", "cat", ["q.png", "r.png"])
    return tmp_path


def test_classes_are_sorted_folders_and_files_sorted_within(root: Path) -> None:
    (root / "train" / "dog" / "notes.txt").write_text("no image")
    (root / "train" / "dog" / "._a.png").write_bytes(b"of a file system, not an image")
    (root / "train" / ".hidden").mkdir()
    data = open_data(f"folder:{root}")
    assert isinstance(data, FolderSet)
    assert data.name == root.name
    assert data.classes == ("cat", "dog", "emu")
    assert (data.channels, data.image_size) == (3, None)
    assert (data.count("train"), data.count("test")) == (12, 5)
    names = [Path(path).name for path in data.files("train").paths]
    assert names[:8] == ["w.jpeg", "x.png", "y.png", "z.jpg", "a.png", "b.PNG", "c.bmp", "d.png"]
    assert data.labels("train").tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert data.labels("test").tolist() == [0, 0, 1, 1, 1]


def test_a_test_folder_serves_where_there_is_no_val(root: Path) -> None:
    (root / "val").rename(root / "test")
    assert open_data(f"folder:{root}").count("test") == 5


def test_folders_below_a_class_count_too(root: Path) -> None:
    write(root, "train", "emu/images", ["5.png"])
    data = open_data(f"folder:{root}")
    assert data.classes == ("cat", "dog", "emu") and data.count("train") == 13


def test_a_val_split_moves_files(root: Path) -> None:
    data = open_data(f"folder:{root}")
    split = data.with_val_split(0.25, seed=3)
    parts = [set(split.files(part).paths.tolist()) for part in ("train", "validation")]
    assert parts[0] | parts[1] == set(data.files("train").paths.tolist())
    assert not parts[0] & parts[1]
    assert split.labels("validation").tolist() == [0, 1, 2]
    for part in ("train", "validation"):
        for path, label in zip(split.files(part).paths, split.labels(part), strict=True):
            assert Path(path).parent.name == split.classes[label]
    assert len(next(Loader(split, part="validation", image_size=8).epoch(0))[1]) == 3
    with pytest.raises(ValueError, match="has a validation part already"):
        split.with_val_split(0.5)


def middle(image: Any, size: int) -> np.ndarray:
    """The shorter side to 8/7 of the size, then the middle: by PIL alone."""
    short = int(size * 8 / 7)
    width, height = image.size
    scale = short / min(width, height)
    wide, tall = max(short, int(width * scale)), max(short, int(height * scale))
    left, top = round((wide - size) / 2), round((tall - size) / 2)
    resized = image.resize((wide, tall), Image.Resampling.BICUBIC)
    return np.asarray(resized.crop((left, top, left + size, top + size)))


@pytest.mark.parametrize("part", ["test", "train"])
def test_tested_images_are_the_resized_middle(root: Path, part: str) -> None:
    data = replace(open_data(f"folder:{root}"), mean=(0.0,) * 3, std=(1 / 255,) * 3)
    rows = labels_as_rows(data, part)
    loader = Loader(rows, part, 4, recipe=RECIPES["none"], image_size=14)
    seen = 0
    for x, y in loader.epoch(0):
        for image, row in zip(x, y.tolist(), strict=True):
            expected = middle(data.picture(part, row), 14)
            assert np.array_equal(image.permute(1, 2, 0).round().numpy(), expected)
            seen += 1
    assert seen == data.count(part)


def labels_as_rows(data: FolderSet, part: str) -> FolderSet:
    """The same files, each labelled by its row."""
    files = replace(data.files(part), labels=torch.arange(data.count(part)))
    return replace(data, **{part: files})


def test_the_default_size_of_folders_is_that_of_imagenet(root: Path) -> None:
    loader = Loader(open_data(f"folder:{root}"), part="test", batch_size=2)
    assert loader.size == 224
    assert next(loader.epoch(0))[0].shape == (1, 3, 224, 224)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("name", ["crop", "timm"])
def test_workers_resumes_and_seeds_of_folders(root: Path, name: str) -> None:
    data = open_data(f"folder:{root}")
    loader = Loader(data, batch_size=4, seed=5, recipe=RECIPES[name], image_size=12)
    whole = list(loader.epoch(1))
    again = {
        "workers": list(replace(loader, workers=2).epoch(1)),
        "resumed": [*whole[:1], *loader.epoch(1, start=1)],
    }
    for batches in again.values():
        for (x, y), (z, w) in zip(whole, batches, strict=True):
            assert x.shape == (4, 3, 12, 12)
            assert torch.equal(x, z) and torch.equal(y, w)
    other = next(replace(loader, seed=6).epoch(1))
    assert not torch.equal(whole[0][0], other[0])


def test_ranks_of_folders_together_see_the_batch(root: Path) -> None:
    data = open_data(f"folder:{root}")
    loader = Loader(data, batch_size=6, recipe=RECIPES["crop"], image_size=10)
    ranks = [replace(loader, rank=rank, world=3).epoch(0) for rank in range(3)]
    for (x, y), *shares in zip(loader.epoch(0), *ranks, strict=True):
        assert torch.equal(x, torch.cat([share for share, _ in shares]))
        assert torch.equal(y, torch.cat([share for _, share in shares]))


def test_a_folder_without_flip_or_crop_is_not_random(root: Path) -> None:
    data = labels_as_rows(open_data(f"folder:{root}"), "train")
    loader = Loader(data, batch_size=12, recipe=RECIPES["none"], image_size=9)
    flips = replace(loader, recipe=Recipe("flip", flip=True))
    (one, rows), (two, others) = (next(loader.epoch(epoch)) for epoch in (0, 1))
    assert torch.equal(one[rows.argsort()], two[others.argsort()])
    mirrored = next(flips.epoch(0))[0]
    kinds = [
        (torch.equal(a, b), torch.equal(a, b.flip(-1))) for a, b in zip(mirrored, one, strict=True)
    ]
    assert all(plain or mirror for plain, mirror in kinds)
    assert {plain for plain, _ in kinds} == {True, False}


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr"])
def test_other_modes_are_read_as_rgb(tmp_path: Path, mode: str) -> None:
    suffix = "png" if mode in ("1", "L", "LA", "P", "RGBA") else "tif"
    grey = picture(1, mode="L").convert("RGB")
    grey.convert(mode).save(tmp_path / f"image.{suffix}")
    found = read_picture(tmp_path / f"image.{suffix}")
    assert found.mode == "RGB"
    assert np.array_equal(found, grey.convert(mode).convert("RGB"))


def test_a_palette_with_transparency_is_read_without_a_warning(tmp_path: Path) -> None:
    flat = picture(2).quantize(8)
    flat.save(tmp_path / "image.png", transparency=bytes([0, 128] * 4))
    assert read_picture(tmp_path / "image.png").mode == "RGB"


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_that_cannot_be_read_is_named_in_one_sentence(root: Path, workers: int) -> None:
    bad = root / "val" / "dog" / "t.png"
    loader = Loader(open_data(f"folder:{root}"), "test", 8, image_size=8, workers=workers)
    whole = bad.read_bytes()
    for damage in (b"", b"not an image", whole[:200], whole[:60] + b"\0" * 60 + whole[120:]):
        bad.write_bytes(damage)
        with pytest.raises(
            ValueError, match=f"^cannot read the image {bad} .*: replace or remove"
        ) as e:
            list(loader.epoch(0))
        assert "\n" not in str(e.value) and "Traceback" not in str(e.value)
    deep = np.random.default_rng(0).integers(0, 2**16, (9, 9), dtype=np.uint16)
    Image.fromarray(deep).save(bad)
    with pytest.raises(ValueError, match=f"{bad} is an image of mode I;16: convert it to 8-bit"):
        list(loader.epoch(0))


def refused(root: Path, sentence: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=re.escape(sentence)):
        open_data(f"folder:{root}")


def test_folders_that_do_not_fit_are_refused(root: Path, tmp_path: Path) -> None:
    refused(root / "none", f"{root / 'none'} needs the folders train and val (or test)")
    (root / "val" / "fox").mkdir()
    refused(root, f"{root / 'val'} has the class 'fox', which {root / 'train'} lacks")
    (root / "val" / "fox").rename(root / "val" / "emu")
    refused(root, f"{root / 'val' / 'emu'} has no image (.jpg .jpeg .png")
    (root / "val" / "emu").rename(root / "train" / "gnu")
    refused(root, f"{root / 'train' / 'gnu'} has no image (.jpg")
    (root / "train" / "gnu").rmdir()
    (root / "train").rename(root / "other")
    refused(root, f"{root} needs the folders train and val")
    (root / "train").mkdir()
    refused(root, f"{root / 'train'} has no class folders: put images into")


def test_a_val_folder_without_classes_is_refused(root: Path) -> None:
    (root / "val").rename(root / "old")
    (root / "val").mkdir()
    refused(root, f"{root / 'val'} has no class folders: put images into")


@pytest.mark.parametrize("name", ["none", "crop"])
@pytest.mark.parametrize("most", [0, 2**20])
def test_pictures_come_from_memory_once_they_were_read(root: Path, name: str, most: int) -> None:
    data = replace(open_data(f"folder:{root}"), memory=Memory(most))
    loaders = [
        Loader(data, part=part, batch_size=2, image_size=14, recipe=RECIPES[name])
        for part in ("train", "test")
    ]
    before = [x for loader in loaders for x, _ in loader.epoch(0)]
    again = [x for loader in loaders for x, _ in loader.epoch(0)]
    assert all(torch.equal(one, other) for one, other in zip(before, again, strict=True))
    for path in data.files("test").paths:
        Path(path).unlink()
    if most:
        assert torch.equal(next(loaders[1].epoch(0))[0], before[-len(loaders[1])])
        assert 0 < data.memory.used <= most
    else:
        with pytest.raises(ValueError, match="cannot read the image"):
            next(loaders[1].epoch(0))
