"""Sound packed files whose headers ask for much, and pictures: refused, or at a bounded cost."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from common import Clock, Outcome, measured
from PIL import Image

import proxbit as pb
from proxbit.cli.root import app
from proxbit.models import build
from proxbit.packfile.contents import Contents
from proxbit.packfile.file import read, write

SECONDS, MEGABYTES = 60, 700  # of processor time, and beside a child that does nothing
REFUSED = 2
NAMES = (
    "resnet8", "resnet56", "tiny_vit", "mini_swin", "mini_nest", "mini_bottleneck", "net.py:net",
    "timm/vit_tiny_patch16_224", "timm/vit_giant_patch14_224", "timm/convnext_xlarge",
    "timm/swin_large_patch4_window7_224", "timm/regnetx_002", "timm/eva02_tiny_patch14_224", "",
)  # fmt: skip
SIZES = (0, 1, 7, 28, 32, 64, 224, 512, 513, 1024, 1025, 4096, 10**6, 2**40, -1, 0.5, 1e300, True)
OPTIONS = ("classes", "channels", "image_size", "patch_size", "width", "drop_path", "embed_dim",
           "depth", "num_heads", "mlp_ratio", "img_size", "exec")  # fmt: skip
SIDES = (1, 2, 8, 32, 300, 1024, 1025, 4096, 65_000)


def attack(random: Random, clock: Clock) -> Outcome:
    """Each header is loaded, or run on a picture, in a child whose time and memory are measured."""
    torch.set_num_threads(1)  # before the first fork
    build("timm/regnetx_002", classes=2)  # timm is imported once, not in every child
    outcome, idle = Outcome(), measured(lambda: 0, SECONDS)[2]
    with tempfile.TemporaryDirectory() as folder:
        good = _good(Path(folder))
        while not clock.over():
            hostile = random.choice((_architecture, _side, _input))(random, good)
            words, command = _written(random, hostile, Path(folder))
            status, seconds, most = measured(command, SECONDS)
            known = {0: "accepted", REFUSED: "refused"}
            outcome.counts.update(["files", known.get(status, "failed")])
            for unit, value in (("MB at most", most - idle), ("s at most", round(seconds))):
                outcome.counts[unit] = max(outcome.counts[unit], value)
            if status not in known or most - idle > MEGABYTES:
                outcome.failures.append(f"{words}: {status}, {seconds:.0f} s, {most - idle} MB")
    return outcome


def _good(folder: Path) -> Contents:
    model = build("resnet8", classes=3, channels=3, image_size=32, width=16)
    pb.binarize(model, "bnn++", "BW")
    pb.save(pb.pack(pb.harden(model)), folder / "good", input={"shape": [3, 32, 32]})
    return read(folder / "good")


def _architecture(random: Random, good: Contents) -> Contents:
    """Another network, or the same with some other values."""
    known = dict(good.about.architecture or {})
    if random.random() < 0.5:
        known = {"name": random.choice(NAMES)}
    for _ in range(random.randint(1, 3)):
        known[random.choice(OPTIONS)] = random.choice(SIZES)
    return replace(good, about=replace(good.about, architecture=known))


def _side(random: Random, good: Contents) -> Contents:
    """The same network for other images."""
    known = dict(good.about.architecture or {}) | {"image_size": random.choice(SIZES)}
    return replace(good, about=replace(good.about, architecture=known))


def _input(random: Random, good: Contents) -> Contents:
    """The same network with another input."""
    shape = [random.choice((1, 3, 3, 4000)), random.choice(SIDES), random.choice(SIDES)]
    crop = random.choice((1.0, 0.875, 0.1, 1e-9))
    return replace(good, about=replace(good.about, input={"shape": shape, "crop": crop}))


def _written(random: Random, hostile: Contents, folder: Path) -> tuple[str, Any]:
    """A file, what it asks for in words, and what is done with it."""
    path, picture = folder / "hostile", folder / "p.png"
    write(hostile, path)
    words = f"{hostile.about.architecture} {hostile.about.input}"
    if random.random() < 0.5:
        return words, lambda: _load(path)
    size = random.choice(SIDES), random.choice(SIDES)
    if size[0] * size[1] > 30_000_000:
        size = (32, 65_000)
    Image.new(random.choice(("1", "L", "RGB", "P")), size).save(picture)
    return f"{words} {size}", lambda: app(["run", str(path), str(picture)])


def _load(path: Path) -> int:
    try:
        pb.load(path)
    except ValueError as error:
        return REFUSED if "\n" not in str(error) else 3
    return 0
