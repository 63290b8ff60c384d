"""Mixed precision: where it pays, and what it asks of a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

AUTO, FLOAT32, BF16 = "auto", "no", "bf16"
NATIVE = ("avx512_bf16", "amx_bf16")  # what a CPU needs to multiply bfloat16 by itself


def choose_precision(asked: str, cpu: bool = False) -> str:
    """The precision that was asked for; for ``auto`` bf16 where the device multiplies it natively.

    >>> choose_precision("no")
    'no'
    """
    if asked != AUTO:
        return asked
    found = None if cpu else torch.accelerator.current_accelerator(check_available=True)
    return BF16 if _has_native_bf16("cpu" if found is None else found.type) else FLOAT32


def _has_native_bf16(device: str) -> bool:
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # Older versions of torch cannot say.
    capabilities: Callable[[], dict[str, Any]] = getattr(torch.cpu, "get_capabilities", dict)
    return device == "cpu" and any(capabilities().get(name) for name in NATIVE)


def use_plain_attention(model: nn.Module) -> None:
    """Let timm's attentions compute softmax(Q K^T) V with two products, in place.

    The backward pass of torch's fused attention takes two to five times as long in bfloat16 on a
    CPU; the two products keep a matrix of tokens by tokens instead.
    """
    for module in model.modules():
        if isinstance(getattr(module, "fused_attn", None), bool):
            module.fused_attn = False  # type: ignore[assignment]
