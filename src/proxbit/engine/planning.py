"""The size of the file that a model will have, while it still trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from proxbit.engine.copying import meta_copy, packed_copy
from proxbit.engine.saving import contents
from proxbit.nn.model_weights import binary_weights
from proxbit.packfile.sizes import file_bytes


def planned_bytes(
    model: nn.Module, labels: Sequence[str] | None = None, input: dict[str, Any] | None = None
) -> int:
    """Bytes of the file that ``save`` will write of this binarized model, to the last one.

    Packs a copy that has shapes and no values, so it costs no memory; labels and input are as for
    ``save``.
    """
    hollow = meta_copy(model)
    for weight in binary_weights(hollow):
        weight.quantizer.hard = weight.quantizer.method.binary
    held = contents(packed_copy(hollow))
    return file_bytes(replace(held, about=held.about.told(labels, input)))
