"""A network from a file: its session, its classes, and the image that it expects."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from proxbit_runtime.images import InputForm
from proxbit_runtime.operators import library


@dataclass(frozen=True)
class Guess:
    """One class, and the share that softmax gives it."""

    index: int
    label: str
    share: float


@dataclass(frozen=True)
class Network:
    """A network that is ready to run.

    Attributes:
        session: ONNX Runtime's session.
        labels: Names of the classes; None where the file has none.
        input: What an image must look like; None where the file does not say it.
    """

    session: Any
    labels: tuple[str, ...] | None
    input: InputForm | None

    def __call__(self, x: Any) -> Any:
        """The first output for a batch of inputs, as float32 arrays."""
        (entry, *_) = self.session.get_inputs()
        return self.session.run(None, {entry.name: np.asarray(x, np.float32)})[0]

    def recognize(self, path: str, top: int = 5) -> list[Guess]:
        """The best classes of an image file, best first."""
        if self.input is None:
            raise ValueError("the file does not say what an image must look like: give arrays")
        scores = self(self.input.read(path))
        if scores.ndim != 2 or len(scores) != 1:
            raise ValueError(
                f"the network gives {scores.shape} for one image, not one score a class"
            )
        names = self.labels or tuple(f"class {i}" for i in range(scores.shape[1]))
        if len(names) != scores.shape[1]:
            raise ValueError(f"the file has {len(names)} labels for {scores.shape[1]} scores")
        powers = np.exp(scores[0].astype(np.float64) - scores[0].max())
        shares = powers / powers.sum()
        order = np.argsort(-shares, kind="stable")[:top]
        return [Guess(int(i), names[i], float(shares[i])) for i in order]


def load(path: str | Path, threads: int | None = None) -> Network:
    """The network of a file that ``pb.export_onnx`` wrote, with our operators or without.

    Args:
        path: The file.
        threads: Threads of ONNX Runtime's intra-op pool; its own choice by default.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file '{path}'")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # its warnings are about its own fallbacks
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        options.register_custom_ops_library(library())
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # a class of its own for each code of an error
        raise ValueError(f"cannot load '{path}': {' '.join(str(error).split())}") from error
    facts = session.get_modelmeta().custom_metadata_map
    labels, form = (_fact(path, facts, f"proxbit.{name}") for name in ("labels", "input"))
    return Network(session, _labels(path, labels), None if form is None else InputForm.of(form))


def _fact(path: str | Path, facts: dict[str, str], name: str) -> Any:
    """The JSON value in the metadata under a name; None where there is none."""
    try:
        return json.loads(facts[name]) if name in facts else None
    except ValueError as error:
        raise ValueError(f"cannot load '{path}': its {name} is not JSON") from error


def _labels(path: str | Path, given: Any) -> tuple[str, ...] | None:
    if given is None:
        return None
    if not isinstance(given, list) or not all(isinstance(label, str) for label in given):
        raise ValueError(f"cannot load '{path}': its labels are not a list of names")
    return tuple(given)
