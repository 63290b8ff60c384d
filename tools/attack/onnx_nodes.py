"""Nodes of ours in ONNX files, with wrong attributes, lengths, types and inputs: refused, or run.

ONNX Runtime runs in this process, so that AddressSanitizer ends it at the first bad read:
``tools/sanitize.sh`` runs this attack, too.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from common import Clock, Outcome

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from ort_nodes import ATTRIBUTES, BINARY, WEIGHT, is_read, model, session

SIZES = (0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65)
ODD = (-1, 0, 2**15, 2**31, 2**40, -(2**62), 2**62)
OPS = ("BinaryLinear", "BinaryConv", "WeightLinear", "WeightConv")
TYPES = {"bits": "u1", "flip": "u1", "low": "i4", "high": "i4"}
WORDS = ("none", "relu", "gelu", "hardtanh", "exact", "input8", "NCHW", "NHWC", "", "x" * 5000)
OURS = "proxbit: "


def attack(random: Random, clock: Clock) -> Outcome:
    """Random nodes, most of them nearly right."""
    outcome = Outcome()
    while not clock.over():
        op = random.choice(OPS)
        answer = _answer(random, op)
        outcome.counts.update(["nodes", answer])
        if answer not in ("refused", "run"):
            outcome.failures.append(f"{op}: {answer}")
    return outcome


def _answer(random: Random, op: str) -> str:
    attributes = _attributes(random, op)
    shape = attributes["shape"]
    x = _input(random, op, attributes)
    constants = _constants(random, op, shape, attributes.get("group", 1))
    bits_out = "low" in constants and random.random() < 0.9
    rank = next(iter(x.values())).ndim
    try:
        content = model(op, x, constants, bits_out, rank, **attributes)
    except (ValueError, TypeError, OverflowError):
        return "run"  # onnx itself cannot write it
    try:
        net = session(content)
        net.run(None, dict(x))
    except Exception as error:
        return "refused" if _known(str(error)) else f"{type(error).__name__}: {error}"[:300]
    mistyped = [k for k, v in attributes.items() if is_read(op, k) and type(v) is not ATTRIBUTES[k]]
    return f"took {mistyped[0]} of another type" if mistyped else "run"


def _known(words: str) -> bool:
    """Our own sentence, or ONNX Runtime's about types and ranks."""
    return (
        OURS in words or "INVALID_GRAPH" in words or "Type Error" in words or "INVALID_ARG" in words
    )


def _attributes(random: Random, op: str) -> dict[str, Any]:
    conv = op.endswith("Conv")
    axes = random.choice((1, 2)) if conv else 0
    groups = random.choice((1, 1, 1, 2, 3)) if conv else 1
    channels = random.choice(SIZES[1:])
    kernel = [random.choice((1, 2, 3)) for _ in range(axes)]
    found: dict[str, Any] = {"shape": [groups * random.choice(SIZES[1:]), channels, *kernel]}
    if conv:
        found |= {
            "group": groups,
            "strides": [random.choice((1, 2, 3)) for _ in range(axes)],
            "dilations": [random.choice((1, 2)) for _ in range(axes)],
            "pads": [random.choice((0, 1, 2)) for _ in range(2 * axes)],
            "input_layout": random.choice(("NCHW", "NHWC")),
            "output_layout": random.choice(("NCHW", "NHWC")),
        }
    if op.startswith("Binary") and random.random() < 0.3:
        found |= {"register_bits": random.choice((2, 8, 24, 25, 1)), "slope": 2.0}
    if random.random() < 0.5:
        _spoil(random, found)
    return found


def _spoil(random: Random, found: dict[str, Any]) -> None:
    """One attribute of another value, length or type."""
    name = random.choice([*found, "format", "activation", "precision", "pad_value"])
    now = found.get(name)
    if isinstance(now, list):
        now = list(now)
        choice = random.randrange(3)
        if choice == 0 and now:
            now[random.randrange(len(now))] = random.choice((*SIZES, *ODD))
        elif choice == 1:
            now = now[:-1]
        else:
            now.append(random.choice((*SIZES, *ODD)))
        found[name] = now or [1]
    else:
        found[name] = random.choice((*SIZES, *ODD, *WORDS, 0.5, [1, 2]))


def _input(random: Random, op: str, attributes: dict[str, Any]) -> dict[str, Any]:
    shape, groups = attributes["shape"], attributes.get("group", 1)
    groups = groups if isinstance(groups, int) and 0 < groups < 4 else 1
    channels = min(max(shape[1] if len(shape) > 1 else 1, 0), 200) * groups
    bits = op.startswith("Binary") and random.random() < 0.4
    width = (channels + 7) // 8 if bits else channels
    width += random.choice((0, 0, 0, 0, 1, -1))
    sizes = [random.choice((0, 1, 2, 5, 6)) for _ in range(max(len(shape) - 2, 0))]
    last = bits or attributes.get("input_layout") == "NHWC" or not sizes
    dims = [random.choice((0, 1, 2)), *((*sizes, width) if last else (width, *sizes))]
    values = np.random.default_rng(random.randrange(2**32)).standard_normal(
        [max(d, 0) for d in dims]
    )
    return {"x_bits": values.astype("u1")} if bits else {"x": values.astype("f4")}


def _constants(random: Random, op: str, shape: list[int], groups: Any) -> dict[str, Any]:
    count = 1
    for n in shape:
        count *= min(max(n, 0), 300)
    outputs, channels = min(max(shape[0], 0), 300), min(max(shape[-1], 0), 300)
    if len(shape) > 1:
        channels = min(max(shape[1], 0), 300) * (
            groups if isinstance(groups, int) and 0 < groups < 9 else 1
        )
    lengths = {"bits": (count + 7) // 8, "scale": random.choice((1, outputs)), "bias": outputs}
    lengths |= {"threshold": channels, "low": outputs, "high": outputs, "flip": (outputs + 7) // 8}
    needed = WEIGHT[1:] if op[0] == "W" else BINARY[2:]
    bounds = random.random() < 0.4
    found = {}
    for name in needed:
        if name in ("low", "high", "flip") and not bounds:
            continue
        if name in ("bias", "threshold") and random.random() < 0.5:
            continue
        length = lengths[name] + random.choice((0,) * 20 + (1, -1, 7))
        kind = TYPES.get(name, "f4")
        if random.random() < 0.02:
            kind = random.choice(("f4", "u1", "i4", "f8"))
        found[name] = np.zeros(max(length, 0), kind)
    return found
