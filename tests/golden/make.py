"""Writes the golden files: run once per version of a format, never again for that version.

    python tests/golden/make.py packed       # tests/golden/*.safetensors
    python tests/golden/make.py checkpoint   # tests/golden/run/

``tests/test_golden.py`` loads them for ever. A new version of a format gets new files beside these.
"""

import json
import os
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import proxbit as pb
from proxbit.train import Config, fit, resume_run

HERE = Path(__file__).parent
NET = "net.py"


class Tied(nn.Module):
    """Two layers with one weight, and an embedding that the output shares."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 16)
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 12, bias=False)
        self.b.weight, self.head.weight = self.a.weight, self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.b(self.norm(self.a(self.embedding(x)))))


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(24, 16), nn.LayerNorm(16), nn.Linear(16, 5))


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, stride=2, padding=1),
        nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(72, 4),
    )  # fmt: skip


# Name: network, task, shape of the input (a count of tokens for the tied one), options of save.
PACKED = {
    "linear_bw": (linear, "BW", (3, 24), {}),
    "linear_bwa": (linear, "BWA", (3, 24), {}),
    "conv_bw": (conv, "BW", (2, 3, 6, 6), {}),
    "conv_bwa": (conv, "BWA", (2, 3, 6, 6), {}),
    "conv_bwaa": (conv, "BWAA", (2, 3, 6, 6), {}),
    "linear_float16": (linear, "BWA", (3, 24), {"float_rest": "float16"}),
    "tied_int8": (Tied, "BW", (4,), {"float_rest": "float16", "tables": "int8"}),
}


def example(shape: tuple[int, ...]) -> Tensor:
    """The same values on every machine: no generator is asked."""
    if len(shape) == 1:
        return torch.arange(shape[0]) * 3 % 12
    count = int(np.prod(shape))
    return (torch.arange(count).float() * 0.7).sin().reshape(shape)


def make_packed() -> None:
    for name, (build, task, shape, options) in PACKED.items():
        torch.manual_seed(len(name))
        model = build()
        for norm in model.modules():
            if isinstance(norm, nn.BatchNorm2d):
                norm.running_mean.normal_()
                norm.running_var.uniform_(0.5, 2.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            only = ["a", "b"] if build is Tied else "*"
            pb.binarize(model, "bnn++", task, only=only)
            hard = pb.harden(model).eval()
            net = pb.pack(hard)
            pb.save(net, HERE / f"{name}.safetensors", **options)
            net = pb.load(HERE / f"{name}.safetensors", build())
        with torch.no_grad():
            expected = net(example(shape))
            if not options:  # nothing was rounded: the hard network itself is the judge
                torch.testing.assert_close(expected, hard(example(shape)))
        save_file({"output": expected.contiguous()}, HERE / f"{name}.expected.safetensors")


NETWORK = '''"""The network of the golden checkpoint."""

from torch import nn


def net(classes, channels):
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3),
        nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes),
    )
'''


def images(path: Path) -> None:
    """Sixteen pictures without a generator."""
    pixels = (np.arange(16 * 8 * 8) * 37 % 251).astype("u1").reshape(16, 8, 8, 1)
    labels = np.arange(16) % 2
    np.savez_compressed(path, x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)


def make_checkpoint() -> None:
    """Two of three epochs, and what the third one ends with, apart from it."""
    run = HERE / "run"
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir()
    (run / NET).write_text(NETWORK)
    images(run / "images.npz")
    # Relative names: the test copies the folder somewhere and goes there.
    config = Config(
        model=f"{NET}:net", data="npz:images.npz", epochs=3, batch_size=8, task="BW",
        method="bnn++", frozen=0.3, recalibrate=1, ema=0.5, cpu=True,
    )  # fmt: skip
    os.chdir(run)
    for record in fit(config, Path("out")):
        if record.epoch == 2:
            break
    shutil.copytree("out", "whole")
    list(resume_run("whole"))
    ending = json.loads((Path("whole") / "result.json").read_text())
    kept = {k: ending[k] for k in ("soft", "hard", "hardened", "steps")}
    (run / "expected.json").write_text(json.dumps(kept, indent=1) + "\n")
    shutil.copy("whole/last.safetensors", run / "expected.safetensors")
    shutil.rmtree("whole")
    Path("out/.lock").unlink()


if __name__ == "__main__":
    {"packed": make_packed, "checkpoint": make_checkpoint}[sys.argv[1]]()
