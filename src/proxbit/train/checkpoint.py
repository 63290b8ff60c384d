"""Checkpoints: one safetensors file each, whole or not at all, checked and bound to their run.

Tensors and JSON only: nothing that is loaded can run code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from proxbit.nn.quantizers import whole
from proxbit.train.config import Config
from proxbit.train.records import Progress, Record
from proxbit.util.files import write_atomically
from proxbit.util.schema import parse_json
from proxbit.util.text import few, last_part, saying

FORMAT = "proxbit checkpoint 1"
_MOMENTS = ("exp_avg", "exp_avg_sq")  # of Adam and AdamW


def save_checkpoint(path: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Tensors and plain values in one file, with a digest of both."""
    plain = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    text = json.dumps(state, sort_keys=True)
    metadata = {"format": FORMAT, "state": text, "digest": _digest(plain, text)}
    write_atomically(path, save(plain, metadata))


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what :func:`save_checkpoint` wrote; one sentence for any file that is not that."""
    if not path.is_file():
        raise ValueError(f"there is no checkpoint {str(path)!r}")
    # Read into memory: tensors in a mapping of the file would end with it, and keep its space.
    content = path.read_bytes()
    with saying(f"{path} is damaged or not a checkpoint"):
        # In one order: processes that share tensors out must all begin with the same.
        tensors, metadata = dict(sorted(load(content).items())), _metadata(content)
    if metadata.get("format") != FORMAT:
        given = metadata.get("format", "no format")
        raise ValueError(f"{path} is not a checkpoint of this version ({given}, not {FORMAT})")
    text = metadata.get("state", "")
    if metadata.get("digest") != _digest(tensors, text):
        raise ValueError(f"{path} was changed or damaged: its content does not match its digest")
    state = parse_json(text, f"the state in {path}")
    if not isinstance(state, dict):
        raise ValueError(f"the state in {path} is {type(state).__name__}, not a JSON object")
    return tensors, state


def _metadata(content: bytes) -> dict[str, str]:
    """The metadata in the header of a file that safetensors accepts."""
    length = int.from_bytes(content[:8], "little")
    found: dict[str, str] = json.loads(content[8 : 8 + length]).get("__metadata__") or {}
    return found


def _digest(tensors: dict[str, Tensor], text: str) -> str:
    """A fingerprint of names, shapes, types, values and state."""
    hashed = hashlib.blake2b(text.encode(), digest_size=16)
    for name, t in sorted(tensors.items()):
        hashed.update(f"{name} {t.dtype} {tuple(t.shape)}".encode())
        hashed.update(t.reshape(-1).view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """The state of an optimizer by parameter name: it outlives the order of the parameters.

    Sharded states (FSDP2) are gathered, so every process must call this.
    """
    names = {id(p): name for name, p in model.named_parameters()}
    found = {}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, Tensor):
                found[f"{names[id(parameter)]}/{key}"] = whole(value)
    return found


def load_optimizer(model: nn.Module, optimizer: Optimizer, tensors: dict[str, Tensor]) -> None:
    """Take the state back, wherever the parameters live now; refused where it does not fit."""
    parameters, found = dict(model.named_parameters()), dict[str, dict[str, Tensor]]()
    for name, value in tensors.items():
        owner, _, key = name.rpartition("/")
        found.setdefault(owner, {})[key] = value
    odd = sorted(found.keys() - parameters.keys())
    if odd:
        raise ValueError(f"the optimizer has a state of {odd[0]!r}, which is unknown here")
    names = ("momentum_buffer",) if isinstance(optimizer, SGD) else ("step", *_MOMENTS)
    for owner, state in found.items():
        own = {name: torch.tensor(0.0) if name == "step" else parameters[owner] for name in names}
        require_like(state, own, f"the optimizer's state of {owner!r}")
    for owner, state in found.items():
        parameter = parameters[owner]
        for key, value in state.items():
            moved = value if value.dim() == 0 else beside(value, parameter)
            optimizer.state[parameter][key] = moved


def require_like(given: dict[str, Tensor], own: Mapping[str, Tensor], what: str) -> None:
    """Refuse tensors whose names, shapes or types are not those of our own."""
    odd = sorted(given.keys() ^ own.keys())
    if odd:
        raise ValueError(f"{what} {'has an unknown' if odd[0] in given else 'lacks'} {odd[0]!r}")
    for name, value in given.items():
        there, here = ((tuple(t.shape), t.dtype) for t in (value, own[name]))
        if there != here:
            raise ValueError(f"{what} has {there} for {name!r}, not {here}")


def beside(value: Tensor, parameter: Tensor) -> Tensor:
    """A tensor on the device of a parameter, and sharded as it is."""
    if not hasattr(parameter, "full_tensor") or value.shape != parameter.shape:
        return value.to(parameter.device)
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(parameter, DTensor)
    local = value.to(parameter.device)
    return distribute_tensor(local, parameter.device_mesh, parameter.placements)


def prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors under ``prefix/name``."""
    return {f"{prefix}/{name}": t for name, t in tensors.items()}


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with ``prefix/``, without it."""
    start = f"{prefix}/"
    return {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}


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
            aside = name in ASIDE or (name in PLACES and same_file(new, old))
            (free if aside else matter).append(words)
    return matter, free


def _word(value: Any) -> str:
    return "none" if value is None else str(value)


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
