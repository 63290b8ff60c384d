"""The JSON header of a packed file: a description of each binary weight, and everything else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from torch import Tensor

from proxbit.core.weight_layout import Layout
from proxbit.packfile.container import is_sizes, strict_json
from proxbit.packfile.contents import PARTS, About, Contents, PackedWeight, label
from proxbit.util.schema import WORDS, record_from
from proxbit.util.text import require_known, saying

VERSION = 1
NO_CRC = "00000000"
FLOAT_RESTS = ("float32", "float16")
_KIND = {"task": str, "register_bits": int, "slope": float, "pad_value": float, "parts": list}
_TOP = {
    "version": int, "crc32": str, "float_rest": str, "groups": list, "floats": list,
    "tables": dict, "about": dict,
}  # fmt: skip
_NONE: dict[str, type] = {}


@dataclass(frozen=True)
class WeightEntry:
    """A binary weight as the header describes it: which tensors it has, and its plain values."""

    label: str
    parts: tuple[str, ...]
    values: Mapping[str, Any]

    @property
    def stored(self) -> dict[str, str]:
        """The name in the file of each part."""
        return {part: f"{self.label}.{part}" for part in self.parts}

    def weight(self, tensors: Mapping[str, Tensor]) -> PackedWeight:
        """The weight itself, with its tensors out of those of the file."""
        parts = {part: tensors[name] for part, name in self.stored.items()}
        return PackedWeight(**{"scale": None, **self.values, **parts})


@dataclass(frozen=True)
class Header:
    """The checked header of a file."""

    crc32: str
    float_rest: str
    weights: tuple[WeightEntry, ...]
    floats: tuple[str, ...]
    tables: frozenset[str]
    about: About
    tied: dict[str, str]


def header_text(contents: Contents, float_rest: str, tables: list[str]) -> str:
    """The header as compact JSON, with zeros in the place of its checksum.

    It is parsed before it is returned: what cannot be read is not written.
    """
    runs = groupby(contents.weights, _kind)
    groups = [{**kind, "weights": [_named(w) for w in run]} for kind, run in runs]
    default = asdict(About())
    about = {n: v for n, v in asdict(contents.about).items() if v != default[n]}
    values = {
        "version": VERSION, "crc32": NO_CRC, "float_rest": float_rest, "groups": groups,
        "floats": list(contents.floats), "tables": dict.fromkeys(tables, "int8"), "about": about,
    }  # fmt: skip
    if contents.tied:
        values["tied"] = contents.tied
    mistakes = TypeError, ValueError, RecursionError
    with saying("the header of a file must be plain JSON values", *mistakes):
        text = json.dumps(values, separators=(",", ":"), ensure_ascii=False)
        parse_header(text)
    return text


def _kind(w: PackedWeight) -> dict[str, Any]:
    """The values that a run of weights shares, written once for each run."""
    parts = [part for part in PARTS if getattr(w, part) is not None]
    return {"task": w.task, "register_bits": w.register_bits, "slope": float(w.slope),
            "pad_value": float(w.pad_value), "parts": parts}  # fmt: skip


def _named(w: PackedWeight) -> dict[str, Any]:
    rows = {} if w.rows is None else {"rows": list(w.rows)}
    layout = {} if w.layout is None else {"layout": asdict(w.layout)}
    return {"name": w.name, "shape": list(w.shape), **rows, **layout}


def parse_header(text: str) -> Header:
    """The header of a file of version 1, or a ValueError in one sentence."""
    values = strict_json(text, "its proxbit header")
    version = values.get("version") if isinstance(values, dict) else None
    if type(version) is not int or version != VERSION:
        raise ValueError(
            f"it has the format version {str(version)[:20]}, and this proxbit reads {VERSION}"
        )
    _require(values, _TOP, "its header", {"tied": dict})
    require_known("float_rest", values["float_rest"][:80], FLOAT_RESTS)
    _require_texts(values["floats"], "floats")
    tied = values.get("tied", {})
    _require_texts(list(tied.values()), "tied names")
    return Header(
        values["crc32"],
        values["float_rest"],
        tuple(entry for group in values["groups"] for entry in _entries(group)),
        tuple(values["floats"]),
        _tables(values["tables"], values["floats"]),
        record_from(About, asdict(About()) | values["about"], "the about of its header"),
        tied,
    )


def _entries(group: Any) -> list[WeightEntry]:
    """The weights of one run."""
    _require(group, {**_KIND, "weights": list}, "a group of its header")
    parts = group["parts"]
    if parts != [part for part in PARTS if part == "bits" or part in parts]:
        raise ValueError(f"a group of its header has the parts {str(parts)[:80]}, not {PARTS}")
    kind = {name: group[name] for name in _KIND if name != "parts"}
    return [_entry(weight, tuple(parts), kind) for weight in group["weights"]]


def _entry(given: Any, parts: tuple[str, ...], kind: dict[str, Any]) -> WeightEntry:
    optional = {"rows": list, "layout": dict}
    _require(given, {"name": str, "shape": list}, "a weight of its header", optional)
    shape, rows = given["shape"], given.get("rows")
    pair = rows is None or (is_sizes(rows) and len(rows) == 2)
    if not is_sizes(shape) or not pair:
        raise ValueError(f"the weight {given['name'][:80]!r} has an impossible shape or rows")
    name, covered = given["name"], None if rows is None else (rows[0], rows[1])
    own = {"name": name, "shape": tuple(shape), "rows": covered, "layout": None}
    if "layout" in given:
        own["layout"] = record_from(Layout, given["layout"], f"the layout of {name[:80]!r}")
    return WeightEntry(label(name, covered), parts, {**kind, **own})


def _tables(given: dict[str, Any], floats: list[str]) -> frozenset[str]:
    known = set(floats)
    for name, kind in given.items():
        if kind != "int8" or name not in known:
            raise ValueError(
                f"the table {name[:80]!r} is not an int8 one of the floats of its header"
            )
    return frozenset(given)


def _require(
    given: Any, wanted: Mapping[str, type], where: str, optional: Mapping[str, type] = _NONE
) -> None:
    """Refuse everything but an object with these names and types."""
    allowed = {**wanted, **optional}
    if not isinstance(given, dict) or not wanted.keys() <= given.keys() <= allowed.keys():
        names = list(given) if isinstance(given, dict) else type(given).__name__
        raise ValueError(f"{where} has {str(names)[:200]}, not {list(allowed)}")
    for name, value in given.items():
        kinds = (int, float) if allowed[name] is float else (allowed[name],)
        if type(value) not in kinds:
            word = WORDS[allowed[name]]
            raise ValueError(f"{where} has {str(value)[:80]!r} for {name}, not {word}")


def _require_texts(given: list[Any], what: str) -> None:
    if not all(isinstance(each, str) for each in given):
        raise ValueError(f"the {what} of its header are not all texts")
