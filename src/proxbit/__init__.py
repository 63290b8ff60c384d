"""proxbit: one-bit neural networks by forward and backward proximal quantizers (ProxConnect++).

>>> import torch, proxbit as pb
>>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
>>> report = pb.binarize(model, "bnn++", task="BW")
>>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
>>> handle = pb.attach(model, optimizer, steps=100)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from proxbit import nn
from proxbit._version import __version__
from proxbit.binarization.attachment import attach
from proxbit.binarization.conversion import binarize, restore
from proxbit.binarization.diagnosis import diagnose
from proxbit.binarization.hardening import gap, harden, hardened, recalibrate, sharpen
from proxbit.binarization.layer_choice import SWAPS
from proxbit.core import maps, methods, pairs, prox
from proxbit.core.methods import METHODS, PAPER, Method, Rule, method
from proxbit.core.pairs import (
    Pair,
    bi_real,
    binary_connect,
    bnn,
    bnn_plus,
    bnn_plus_plus,
    ede,
    ede_plus,
    from_derivative,
    from_transform,
    full_precision,
    monotone_bnn_plus_plus,
    poly_plus,
    prox_connect,
    r_bnn,
    scaled,
    shifted,
    straight_through,
)
from proxbit.core.scales import SCALES, Scale
from proxbit.core.schedules import AtLeast, Constant, Linear, Logarithmic
from proxbit.core.tasks import Task
from proxbit.engine import KernelWarning, load, pack, save, summary
from proxbit.nn import overflow_penalty
from proxbit.nn.autograd import quantize
from proxbit.nn.model_weights import binary_weights, latent_parameters, set_strength
from proxbit.nn.probing import probe
from proxbit.util.notices import SettingsWarning

if TYPE_CHECKING:
    from proxbit import theory
    from proxbit.export.onnx import export_onnx

# Imported when they are first asked for: together they would take half as long as all the rest.
_LATE = {"theory": "proxbit.theory", "export_onnx": "proxbit.export.onnx"}

__all__ = [
    "METHODS", "PAPER", "SCALES", "SWAPS", "AtLeast", "Constant", "KernelWarning", "Linear",
    "Logarithmic", "Method", "Pair", "Rule", "Scale", "SettingsWarning", "Task", "__version__",
    "attach", "bi_real", "binarize", "binary_connect", "binary_weights", "bnn", "bnn_plus",
    "bnn_plus_plus", "diagnose", "ede", "ede_plus", "export_onnx", "from_derivative",
    "from_transform", "full_precision", "gap", "harden", "hardened", "latent_parameters", "load",
    "maps", "method", "methods", "monotone_bnn_plus_plus", "nn", "overflow_penalty", "pack",
    "pairs", "poly_plus", "probe", "prox", "prox_connect", "quantize", "r_bnn", "recalibrate",
    "restore", "save", "scaled", "set_strength", "sharpen", "shifted", "straight_through",
    "summary", "theory",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'proxbit' has no attribute {name!r}")
    module = import_module(_LATE[name])
    return getattr(module, name, module)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})
