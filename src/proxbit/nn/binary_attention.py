"""Binary multi-head attention.

PyTorch's module computes with its weights directly, so it would silently bypass a binary projection
inside it: ours computes the projections itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from proxbit.nn.binary_layers import BinaryWeight
from proxbit.nn.product import BinaryProduct, Form

# PyTorch's fused inference paths read weights directly; these attributes switch them off.
_FUSED_PATHS: dict[type[nn.Module], tuple[str, object]] = {
    nn.TransformerEncoderLayer: ("activation_relu_or_gelu", 0),
    nn.TransformerEncoder: ("use_nested_tensor", False),
}


def switch_off_fused_paths(
    model: nn.Module,
    holds_bits: Callable[[nn.Module], bool],
    put: Callable[[nn.Module, str, object], None] = setattr,
) -> None:
    """Let PyTorch's transformer layers call what is inside them, wherever that is binary."""
    for module in model.modules():
        for kind, (name, value) in _FUSED_PATHS.items():
            if isinstance(module, kind) and holds_bits(module):
                put(module, name, value)


class BinaryMultiheadAttention(nn.MultiheadAttention):
    """Attention whose query, key and value projections are binary, each with its own scale.

    The output projection is a layer of its own. Softmax and the two products of
    activations stay float.
    """

    binary: nn.ModuleList

    def make_binary(self, form: Form) -> None:
        """Get the parts of the three projections."""
        weights = [self._rows(parameter, rows) for _, parameter, rows in self._projections()]
        self.binary = nn.ModuleList(BinaryProduct(form, w, w.shape[1], 0) for w in weights)

    def make_float(self) -> None:
        """Give the parts back."""
        self._modules.pop("binary", None)

    def binary_weights(self, prefix: str) -> Iterator[BinaryWeight]:
        """The three projections, whether they are one Parameter or three."""
        for (label, parameter, rows), product in zip(self._projections(), self.binary, strict=True):
            assert isinstance(product, BinaryProduct)
            yield BinaryWeight(prefix + label, parameter, product.weight_quantizer, rows)

    def _projections(self) -> list[tuple[str, nn.Parameter, slice | None]]:
        e = self.embed_dim
        if self.in_proj_weight is None:
            names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
            return [(name, getattr(self, name), None) for name in names]
        return [
            (f"in_proj_weight[{part}]", self.in_proj_weight, slice(i * e, (i + 1) * e))
            for i, part in enumerate("qkv")
        ]

    @staticmethod
    def _rows(weight: Tensor, rows: slice | None) -> Tensor:
        return weight if rows is None else weight[rows]

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As ``nn.MultiheadAttention``; like there, ``is_causal`` is only a hint beside a mask."""
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
        batched = query.dim() == 3
        inputs = [self._to_batch_first(x, batched) for x in (query, key, value)]
        q, k, v = self._project(inputs)
        mask = self._mask(attn_mask, key_padding_mask, q, k, batched)
        dropout = self.dropout if self.training else 0.0
        if need_weights:
            weights = functional.dropout(self._weights(q, k, mask), dropout)
            out = weights @ v
            shown = weights.mean(1) if average_attn_weights else weights
        else:
            shown = None
            out = functional.scaled_dot_product_attention(q, k, v, mask, dropout)
        out = self.out_proj(out.transpose(1, 2).flatten(2))
        if not batched:
            return out.squeeze(0), None if shown is None else shown.squeeze(0)
        return out if self.batch_first else out.transpose(0, 1), shown

    def _to_batch_first(self, x: Tensor, batched: bool) -> Tensor:
        if not batched:
            return x.unsqueeze(0)
        return x if self.batch_first else x.transpose(0, 1)

    def _project(self, inputs: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Binary projections of query, key and value, extended and split into heads."""
        e = self.embed_dim
        q, k, v = self._products(inputs)
        if self.bias_k is not None and self.bias_v is not None:
            k = torch.cat([k, self.bias_k.expand(k.shape[0], 1, e)], 1)
            v = torch.cat([v, self.bias_v.expand(v.shape[0], 1, e)], 1)
        if self.add_zero_attn:
            k, v = (functional.pad(x, (0, 0, 0, 1)) for x in (k, v))
        q, k, v = (x.unflatten(2, (self.num_heads, -1)).transpose(1, 2) for x in (q, k, v))
        return q, k, v

    def _products(self, inputs: list[Tensor]) -> list[Tensor]:
        """The three binary products."""
        weights = [self._rows(parameter, rows) for _, parameter, rows in self._projections()]
        bias = self.in_proj_bias
        biases = (None, None, None) if bias is None else bias.chunk(3)
        parts = zip(self.binary, inputs, weights, biases, strict=True)
        return [product(x, w, b, functional.linear) for product, x, w, b in parts]

    def _weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        scores = q @ k.transpose(2, 3) / math.sqrt(self.head_dim)
        return (scores if mask is None else scores + mask).softmax(-1)

    def _mask(
        self, attn: Tensor | None, padding: Tensor | None, q: Tensor, k: Tensor, batched: bool
    ) -> Tensor | None:
        """Both masks as one float tensor that broadcasts to (batch, heads, queries, keys)."""
        total: Tensor | None = None
        if attn is not None:
            total = _additive(attn, q.dtype)
            if total.dim() == 3:
                total = total.unflatten(0, (q.shape[0], self.num_heads))
        if padding is not None:
            padding = padding if batched else padding.unsqueeze(0)
            pad = _additive(padding, q.dtype)[:, None, None, :]
            total = pad if total is None else total + pad
        if total is not None and total.shape[-1] < k.shape[2]:
            total = functional.pad(total, (0, k.shape[2] - total.shape[-1]))
        return total


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -math.inf)
