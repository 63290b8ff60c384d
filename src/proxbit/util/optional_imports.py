"""The one door to the packages of the ``vision`` extra: PIL, torchvision and timm."""

from __future__ import annotations

import importlib
from typing import Any

from proxbit.util.compat import allow_torchvision


def extra(module: str) -> Any:
    """A module of PIL, torchvision or timm, imported now; where it is absent, what to install."""
    try:
        if module.split(".")[0] in ("timm", "torchvision"):
            allow_torchvision()
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or module).split(".")[0]
        raise ModuleNotFoundError(
            f"this data or recipe needs {package}: pip install 'proxbit[vision]'"
        ) from error
