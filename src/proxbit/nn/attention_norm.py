"""One more LayerNorm at the end of each attention branch: x + LN(attention(LN x)).

The norm is a child of the attention, named ``norm_out``, and a forward hook applies it. The
attention keeps its class, its Parameters and its keys, so ``binarize``, ``restore``, copies and
float checkpoints work as before; PyTorch's fused layers step aside for hooks.
"""

from __future__ import annotations

from typing import Any

from torch import nn

NAME = "norm_out"
# As in timm's transformers: a branch with small outputs is shrunk by what is added to its variance.
EPS = 1e-6


def attentions(model: nn.Module) -> dict[str, nn.Module]:
    """The attentions of a model by name: timm's (``qkv``, ``proj``, ``num_heads``) and PyTorch's.

    >>> list(attentions(nn.TransformerEncoderLayer(8, 2)))
    ['self_attn']
    """
    return {name: module for name, module in model.named_modules() if _is_attention(module)}


def _is_attention(module: nn.Module) -> bool:
    if isinstance(module, nn.MultiheadAttention):
        return True
    layers = [getattr(module, name, None) for name in ("qkv", "proj")]
    heads = getattr(module, "num_heads", None)
    return isinstance(heads, int) and all(isinstance(layer, nn.Linear) for layer in layers)


def blocks(model: nn.Module) -> dict[nn.Module, nn.Module]:
    """The module around each attention, with it; containers and the model itself do not count."""
    containers = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
    found: dict[nn.Module, nn.Module] = {}
    for name, attention in attentions(model).items():
        parts = name.split(".")
        around = [".".join(parts[:i]) for i in range(len(parts) - 1, 0, -1)]
        modules = [model.get_submodule(parent) for parent in around]
        block = next((module for module in modules if not isinstance(module, containers)), None)
        if block is not None:
            found.setdefault(block, attention)
    return found


def output_width(attention: Any) -> int:
    """How many channels an attention gives."""
    last = attention.out_proj if isinstance(attention, nn.MultiheadAttention) else attention.proj
    return int(last.out_features)


def add_attention_norms(model: nn.Module) -> list[str]:
    """Put a LayerNorm on the output of each attention, in place; returns the names of the norms.

    Do it before the optimizer, ``torch.compile`` and DDP are made; ``binarize`` may come before or
    after. The norms are float, trainable, and start as gain 1 and bias 0: for a pretrained model
    follow with :func:`proxbit.train.norm_calibration.calibrate_norms`.

    >>> model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 2)
    >>> add_attention_norms(model)
    ['layers.0.self_attn.norm_out', 'layers.1.self_attn.norm_out']
    """
    found = attentions(model)
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no attention of a known kind (qkv, proj and num_heads as "
            "in timm, or nn.MultiheadAttention): train it without this norm"
        )
    if attention_norms(model):
        raise ValueError(
            f"{type(model).__name__} has its attention norms already: add them once, "
            "and set them with calibrate_norms"
        )
    for attention in found.values():
        _add_norm(attention)
    return [f"{name}.{NAME}".lstrip(".") for name in found]


def _add_norm(attention: Any) -> None:
    like = next(attention.parameters())
    norm = nn.LayerNorm(output_width(attention), eps=EPS, device=like.device, dtype=like.dtype)
    attention.register_module(NAME, norm.train(attention.training))
    # A handle that is pickled with the model keeps hooks of another process off this one's number.
    attention.norm_out_hook = attention.register_forward_hook(_normalize)


def _normalize(attention: Any, _: Any, output: Any) -> Any:
    if isinstance(output, tuple):  # PyTorch's attention also returns its weights
        return attention.norm_out(output[0]), *output[1:]
    return attention.norm_out(output)


def attention_norms(model: nn.Module) -> list[nn.LayerNorm]:
    """The norms that :func:`add_attention_norms` added."""
    found = [attention._modules.get(NAME) for attention in attentions(model).values()]
    return [norm for norm in found if isinstance(norm, nn.LayerNorm)]
