"""All models of the sweep."""

from __future__ import annotations

import logging

import from_timm
import from_torchvision
import from_transformers
import from_transformers_senses
from entry import Entry

from proxbit.util.compat import allow_torchvision

ENTRIES: dict[str, Entry] = {
    f"{entry.library}/{entry.name}": entry
    for part in (from_timm, from_torchvision, from_transformers, from_transformers_senses)
    for entry in part.ENTRIES
}


def prepare() -> None:
    """Let the libraries import beside a CPU build of torch, and bear tiny vocabularies."""
    allow_torchvision()
    logging.getLogger("transformers").setLevel(logging.ERROR)
