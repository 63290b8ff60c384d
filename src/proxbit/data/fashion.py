"""Fashion-MNIST in the package: 8,000 + 2,000 images.

The images are by Zalando (MIT, see FASHION_MNIST_LICENSE); ``tools/make_fashion.py`` made the file.
"""

from importlib.resources import files

import numpy as np
import torch

from proxbit.data.image_set import ImageSet

CLASSES = (
    "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
    "ankle boot",
)  # fmt: skip


def fashion_mnist() -> ImageSet:
    """Fashion-MNIST's first 800 train and 200 test images of each of its ten classes.

    Nothing is downloaded: the images are part of the package.

    >>> images = fashion_mnist()
    >>> images.x_train.shape, images.x_test.shape
    (torch.Size([8000, 1, 28, 28]), torch.Size([2000, 1, 28, 28]))
    >>> images.classes[images.y_train[0]]
    'ankle boot'
    """
    with (
        files(__package__).joinpath("fashion_mnist.npz").open("rb") as file,
        np.load(file, allow_pickle=False) as archive,
    ):
        arrays = {name: torch.from_numpy(archive[name]) for name in archive.files}
    x_train, x_test = (arrays[name].unsqueeze(1) for name in ("x_train", "x_test"))
    y_train, y_test = (arrays[name].long() for name in ("y_train", "y_test"))
    return ImageSet(
        "fashion_mnist", x_train, y_train, x_test, y_test, CLASSES, mean=(0.2864,), std=(0.3537,)
    )
