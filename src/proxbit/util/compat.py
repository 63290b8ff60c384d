"""The one door to the packages of the ``vision`` extra, and workarounds of their packaging."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

import torch

_KEPT: list[torch.library.Library] = []


def allow_torchvision() -> None:
    """Make ``import torchvision`` (and so timm) work beside a CPU build of torch.

    PyPI's Linux wheels of torchvision are CUDA builds: beside a CPU torch their C++ extension does
    not load, and the import fails on ``operator torchvision::nms does not exist``. Declaring the
    two operator schemas is enough for data sets, transforms and every timm model; only the
    detection operators stay without an implementation. Does nothing where torchvision is absent
    or imports by itself.
    """
    if _KEPT or importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]  # a half-imported package would poison the next import
        _declare_operators()


def _declare_operators() -> None:
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _KEPT.append(library)  # the declarations live as long as this object


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
