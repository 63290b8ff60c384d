"""Checks that the files of a run belong together: only the run that was stopped goes on."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from proxbit.train.checkpoint import load_checkpoint, save_checkpoint
from proxbit.train.config import Config
from proxbit.train.records import Progress, Record
from proxbit.util.text import few, last_part

ASIDE = ("data_root", "download", "workers", "cpu", "fsdp")  # where and how fast, not what
PLACES = ("data", "pretrain_data", "weights", "teacher")  # folders may move; a model is executed
ON_PURPOSE = "--accept-changes"


def nothing_yet(config: Config, **more: Any) -> dict[str, Any]:
    """The state of a run that has no checkpoint yet: it is written when the folder is made.

    So a checkpoint that is missing later was there, and a configuration is bound from the start.
    """
    return bound(config) | {"begun": False, "progress": asdict(Progress())} | more


def bound(config: Config) -> dict[str, Any]:
    """The part of a checkpoint that names the run it belongs to."""
    return {"config": asdict(config)}


def begun(state: dict[str, Any]) -> bool:
    """Whether a checkpoint holds a network."""
    return bool(state.get("begun", True))


def changes(now: Config, kept: Any) -> tuple[list[str], list[str]]:
    """Options that differ from those of a checkpoint, in words: those that matter, and the others.

    >>> changes(Config(seed=3, workers=2), asdict(Config()))
    (['seed 3, which was 0'], ['workers 2, which was 0'])
    """
    before = asdict(Config()) | (kept if isinstance(kept, dict) else {})
    matter, free = list[str](), list[str]()
    for name in (each.name for each in fields(Config)):
        new, old = getattr(now, name), before[name]
        if new != old:
            words = f"{name} {_word(new)}, which was {_word(old)}"
            (free if _is_free(name, new, old) else matter).append(words)
    return matter, free


def _word(value: Any) -> str:
    return "none" if value is None else str(value)


def _is_free(name: str, new: Any, old: Any) -> bool:
    return name in ASIDE or (name in PLACES and same_file(new, old))


def same_file(new: Any, old: Any) -> bool:
    """Whether two options name the same file, or the same data, wherever it lies."""
    return isinstance(new, str) and isinstance(old, str) and last_part(new) == last_part(old)


def require_same(now: Config, kept: Any, folder: Path, cure: str = "") -> list[str]:
    """Refuse a configuration that is not the checkpoint's; return what else differs, in words."""
    if not isinstance(kept, dict):
        raise ValueError(
            f"the checkpoint in {str(folder)!r} does not say which configuration it belongs to: "
            f"it is from an older proxbit{cure}"
        )
    matter, free = changes(now, kept)
    if matter:
        raise ValueError(
            f"config.json in {str(folder)!r} is not that of its checkpoint, it has {few(matter)}: "
            f"put that back{cure}"
        )
    return free


def rebind(path: Path, config: Config) -> None:
    """Bind a checkpoint, if there is one, to another configuration from now on."""
    if path.is_file():
        tensors, state = load_checkpoint(path)
        save_checkpoint(path, tensors, state | bound(config))


def record_fault(records: list[Record], step: int, epoch_steps: int, ahead: int) -> str | None:
    """Records that are missing, repeated or too many in a run that is at ``step``, in words.

    There may be ``ahead`` more of them than the epochs that the checkpoint knows of.
    """
    for place, record in enumerate(records, 1):
        if (record.epoch, record.step) != (place, place * epoch_steps):
            return f"has epoch {record.epoch} at step {record.step} where epoch {place} should be"
    done = step // epoch_steps
    if len(records) < done:
        return f"lacks epoch {len(records) + 1}"
    if len(records) > done + ahead:
        return f"has {len(records)} epochs, and the checkpoint is of epoch {done}"
    return None
