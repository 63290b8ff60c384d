"""A small network as a file of the user's, named as FILE.py:net, and images for it to learn."""

from pathlib import Path

import numpy as np

NET = """
from torch import nn

def net(classes, channels):
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes),
    )
"""
# The same network, half a second for each training step until a file "hurry" is beside it.
SLOW = (
    NET
    + """
import time
from pathlib import Path

class Slow(nn.Module):
    def forward(self, x):
        if self.training and not Path(__file__).with_name("hurry").exists():
            time.sleep(0.5)
        return x

def slow(classes, channels):
    return nn.Sequential(Slow(), net(classes, channels))
"""
)


def write_images(path: Path, count: int) -> None:
    """So many images of 8 x 8 in three classes, told apart by their brightness."""
    labels = np.arange(count) % 3
    noise = np.random.default_rng(0).integers(0, 120, (count, 8, 8, 3))
    images = (noise + 60 * labels[:, None, None, None]).astype("u1")
    np.savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels)
