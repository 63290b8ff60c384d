"""What the entries of transformers share: configurations, and batches of words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from entry import Entry
from torch import Tensor, nn

WORDS = 64
BERT: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 32,
}  # fmt: skip
BART: dict[str, Any] = {
    "vocab_size": WORDS, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
}  # fmt: skip


def configured(
    name: str,
    config: str,
    job: str,
    example: Callable[[], Any],
    parametrize: str = "",
    **options: Any,
) -> Entry:
    """A model from a configuration; one inside it is given as a function that makes it."""

    def build() -> nn.Module:
        import transformers

        inner = {key: value() if callable(value) else value for key, value in options.items()}
        made = getattr(transformers, config)(**inner)
        return getattr(transformers, name)(made)  # type: ignore[no-any-return]

    given = (("parametrize", parametrize),) if parametrize else ()
    return Entry("transformers", name, job, build, example, given)


def tokens() -> dict[str, Tensor]:
    """Two texts."""
    return {"input_ids": torch.randint(3, WORDS, (2, 12))}


def answers() -> dict[str, Tensor]:
    """What a decoder continues."""
    return {"decoder_input_ids": torch.randint(3, WORDS, (2, 7))}
