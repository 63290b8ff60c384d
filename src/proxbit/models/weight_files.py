"""Tensors from other people's weight files. Nothing that is read here can run code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors.torch import load_file
from torch import Tensor

from proxbit.util.text import few, saying

Tensors: TypeAlias = Mapping[str, Tensor]

FOLDER_FILE = "model.safetensors"
_WRAPPINGS = ("model", "state_dict")


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, of a folder that holds one, or of a torch file.

    Names are plain: without what DataParallel and torch.compile put before them.
    """
    file = _file(Path(path).expanduser())
    found = _safetensors(file) if file.suffix == ".safetensors" else _torch(file)
    tensors = _unwrapped(found, file)
    named = {plain(name): tensor for name, tensor in tensors.items()}
    if len(named) < len(tensors):
        twice = next(name for name in tensors if plain(name) != name and plain(name) in tensors)
        raise ValueError(f"'{file}' holds both {twice!r} and {plain(twice)!r}: keep one of them")
    return named


def plain(name: str) -> str:
    """A name without the prefixes of wrappers.

    >>> plain("module._orig_mod.conv1.weight")
    'conv1.weight'
    """
    return name.replace("_orig_mod.", "").removeprefix("module.")


def _file(path: Path) -> Path:
    if path.is_dir():
        inside = path / FOLDER_FILE
        if not inside.is_file():
            raise ValueError(f"the folder '{path}' holds no {FOLDER_FILE}: name the file itself")
        return inside
    if not path.is_file():
        raise ValueError(f"there is no weight file '{path}'")
    return path


def _safetensors(file: Path) -> Any:
    with saying(f"'{file}' is not a whole safetensors file"):
        return load_file(file)


def _torch(file: Path) -> Any:
    cure = "save the state_dict by itself, best as safetensors (nothing in it was run)"
    with saying(f"'{file}' is not a torch file of tensors alone, {cure}"):
        return torch.load(file, map_location="cpu", weights_only=True)


def _unwrapped(found: Any, file: Path) -> dict[str, Tensor]:
    """The tensors by name, out of a training checkpoint if need be."""
    for key in _WRAPPINGS:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping):
        raise ValueError(f"'{file}' holds a {type(found).__name__}: it must hold named tensors")
    others = [str(name) for name, value in found.items() if not isinstance(value, Tensor)]
    if others or not found:
        what = f"{few(others)} beside tensors" if others else "nothing"
        raise ValueError(f"'{file}' holds {what}: save the state_dict by itself")
    return {str(name): tensor for name, tensor in found.items()}
