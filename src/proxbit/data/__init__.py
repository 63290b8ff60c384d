"""Labelled images: open them by name, and draw batches that depend on a seed alone.

Imports torch, numpy and proxbit's ``util`` alone; PIL, torchvision and timm only
where image folders or timm's recipe ask for them.
"""

from proxbit.data.image_folder import FolderSet
from proxbit.data.image_set import ImageSet
from proxbit.data.loader import Loader
from proxbit.data.opening import Data, fashion_mnist, open_data
from proxbit.data.pixels import normalize
from proxbit.data.recipes import RECIPES, Recipe

__all__ = [
    "RECIPES", "Data", "FolderSet", "ImageSet", "Loader", "Recipe", "fashion_mnist", "normalize",
    "open_data",
]  # fmt: skip
