"""Write tests/runtime_nets: small networks as ONNX, with an input and what pb.pack makes of it.

Usage: python tools/make_runtime_nets.py

They stay as they are, so that a later library is tried on files of today; make others beside them
where the format grows.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

import proxbit as pb

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "runtime_nets"
INPUT = {"shape": [3, 12, 12], "mean": [0.5, 0.4, 0.3], "std": [0.25, 0.25, 0.25]}


def network() -> nn.Module:
    """Convolutions that hand on bits, a residual with channels last, linear layers."""
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.Hardtanh(),
        nn.Conv2d(12, 20, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(20), nn.Hardtanh(),
        nn.Conv2d(20, 16, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 40), nn.Hardtanh(), nn.Linear(40, 5),
    )  # fmt: skip


def main() -> None:
    """One network for each task."""
    torch.manual_seed(0)
    FOLDER.mkdir(exist_ok=True)
    for task in ("BW", "BWA", "BWAA"):
        x = torch.randn(4, 3, 12, 12)
        model = network()
        pb.binarize(model, "bnn", task, only="*")
        model(x)
        net = pb.pack(pb.harden(model).eval())
        place = FOLDER / f"{task.lower()}.onnx"
        labels = ["ant", "bee", "cat", "dog", "élan"]
        pb.export_onnx(net, place, x, operators="proxbit", labels=labels, input=INPUT)
        with torch.no_grad():
            np.savez(place.with_suffix(".npz"), x=x.numpy(), y=net(x).numpy())


if __name__ == "__main__":
    main()
