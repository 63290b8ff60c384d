"""Fashion-MNIST in the package (8,000 + 2,000 images), and batches of images held in memory.

The images are by Zalando (MIT, see FASHION_MNIST_LICENSE); ``tools/make_fashion.py`` made the file.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn import functional as F

CLASSES = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Labelled images in two parts: uint8 images ``(n, channels, height, width)``, int64 labels.

    ``mean`` and ``std`` hold one number per channel, of the train part scaled to [0, 1].
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def train_batches(
        self, size: int, generator: Generator, augment: bool = True
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch of the train part: shuffled, normalized, and cropped and flipped at random."""
        scale = {"mean": self.mean, "std": self.std}
        return batches(self.x_train, self.y_train, size, generator, augment=augment, **scale)

    def test_batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The test part once: normalized, in its own order."""
        return batches(self.x_test, self.y_test, size, mean=self.mean, std=self.std)


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
    return ImageSet(
        name="fashion_mnist",
        x_train=arrays["x_train"].unsqueeze(1),
        y_train=arrays["y_train"].long(),
        x_test=arrays["x_test"].unsqueeze(1),
        y_test=arrays["y_test"].long(),
        classes=CLASSES,
        mean=(0.2864,),
        std=(0.3537,),
    )


def normalize(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    r"""Float images :math:`(x / 255 - m_c) / s_c` from uint8 ones, channel by channel.

    >>> normalize(torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2), (0.5,), (0.25,))
    tensor([[[[-2.,  2.]]]])
    """
    m, s = (torch.tensor(v, device=images.device).view(-1, 1, 1) for v in (mean, std))
    return (images / 255 - m) / s


def crop_and_flip(images: Tensor, generator: Generator, pad: int = 2) -> Tensor:
    """Move every image by up to ``pad`` pixels each way and mirror every second one, at random.

    Works on the raw uint8 images, so what moves in from outside is black.
    """
    n, _, height, width = images.shape
    # Drawn where the generator lives: a seed gives the same crops on every device.
    draw = torch.randint(2 * pad + 1, (2, n, 1), generator=generator).to(images.device)
    mirror = torch.rand(n, 1, generator=generator).to(images.device) < 0.5
    x = torch.arange(width, device=images.device)
    rows = draw[0] + torch.arange(height, device=images.device)
    columns = draw[1] + torch.where(mirror, x.flip(0), x)
    padded = F.pad(images, (pad, pad, pad, pad)).movedim(1, -1)
    image = torch.arange(n, device=images.device).view(-1, 1, 1)
    return padded[image, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)


def batches(
    images: Tensor,
    labels: Tensor,
    size: int,
    generator: Generator | None = None,
    *,
    augment: bool = False,
    mean: tuple[float, ...] = (0.0,),
    std: tuple[float, ...] = (1.0,),
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield normalized float batches of ``size`` images with their labels; the last may be smaller.

    Without a generator the images come in their own order; with one they are shuffled, and with
    ``augment`` also cropped and flipped. The generator alone decides: same seed, same batches.

    >>> x, y = torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.arange(3)
    >>> [part.tolist() for _, part in batches(x, y, 2)]
    [[0, 1], [2]]
    """
    if augment and generator is None:
        raise ValueError("cannot augment without a generator: pass one, or augment=False")
    n = len(images)
    order = torch.arange(n) if generator is None else torch.randperm(n, generator=generator)
    for chosen in torch.split(order.to(images.device), size):
        x = images[chosen]
        if augment and generator is not None:
            x = crop_and_flip(x, generator)
        yield normalize(x, mean, std), labels[chosen]
