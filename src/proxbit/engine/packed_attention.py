"""Packed multi-head attention: the three input projections and the output one in bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from proxbit.engine import ops
from proxbit.engine.packed import refuse_script
from proxbit.engine.packed_layers import PackedLinear
from proxbit.nn.binary_attention import BinaryMultiheadAttention
from proxbit.packfile.contents import PackedWeight

_NUMBERS = (
    "embed_dim", "kdim", "vdim", "_qkv_same_embed_dim", "num_heads", "dropout", "batch_first",
    "head_dim", "add_zero_attn", "training",
)  # fmt: skip
_SEPARATE = ("q_proj_weight", "k_proj_weight", "v_proj_weight")


class PackedMultiheadAttention(BinaryMultiheadAttention):
    """Attention as its binary twin computes it, on packed projections."""

    projections: nn.ModuleList

    def __init__(
        self, like: nn.MultiheadAttention, weights: Sequence[PackedWeight], precision: int
    ) -> None:
        """Take numbers and biases from ``like``, and the weights of query, key and value."""
        nn.Module.__init__(self)
        for name in _NUMBERS:
            setattr(self, name, getattr(like, name))
        for name in ("in_proj_bias", "bias_k", "bias_v"):
            self.register_parameter(name, getattr(like, name))
        self.out_proj = like.out_proj
        biases: Sequence[Tensor | None] = (None, None, None)
        if self.in_proj_bias is not None:
            biases = self.in_proj_bias.detach().chunk(3)
        self.projections = nn.ModuleList(
            PackedLinear(w, b, precision=precision) for w, b in zip(weights, biases, strict=True)
        )

    def forward(self, query: Tensor, *rest: Any, **options: Any) -> Any:
        """As ``nn.MultiheadAttention``, which is one node for torch.fx as well."""
        if ops.is_symbol(query):
            return ops.as_node(self, query, *rest, **options)
        return super().forward(query, *rest, **options)

    def __prepare_scriptable__(self) -> None:
        """Called by torch.jit.script."""
        refuse_script()

    def packed(self, name: str) -> Iterator[PackedWeight]:
        """The three weights as a file holds them; ``name`` is that of this module with a dot."""
        for layer, (full, rows) in zip(self.projections, projection_names(self, name), strict=True):
            assert isinstance(layer, PackedLinear)
            yield replace(layer.packed(full), rows=rows)

    def _products(self, inputs: list[Tensor]) -> list[Tensor]:
        return [layer(x) for layer, x in zip(self.projections, inputs, strict=True)]


def projection_names(
    attention: nn.MultiheadAttention, prefix: str
) -> list[tuple[str, tuple[int, int] | None]]:
    """Name and rows of the three input projections, as a file calls them."""
    e = attention.embed_dim
    if attention._qkv_same_embed_dim:
        return [(f"{prefix}in_proj_weight", (i * e, (i + 1) * e)) for i in range(3)]
    return [(prefix + name, None) for name in _SEPARATE]
