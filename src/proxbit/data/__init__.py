"""Images for a first run: a part of Fashion-MNIST that comes with the package, and batches of it.

Knows torch and numpy, nothing of the rest of proxbit.
"""

from proxbit.data.fashion import ImageSet, batches, crop_and_flip, fashion_mnist, normalize

__all__ = ["ImageSet", "batches", "crop_and_flip", "fashion_mnist", "normalize"]
