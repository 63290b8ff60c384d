"""``pb.binarize`` for tests that vary everything: parts of the method and of the task by name."""

from typing import Any

from torch import nn

import proxbit as pb

_METHOD = (
    "settings", "schedule", "rule", "scale", "unit", "input_pair", "input_schedule", "sharp",
    "sharp_strength",
)  # fmt: skip
_TASK = ("pad_value", "bits", "k")


def binarize(model: nn.Module, method: Any = "bnn++", task: Any = "BW", **options: Any) -> Any:
    """Sort the options into ``pb.method``, ``pb.Task`` and ``pb.binarize``."""
    of_method = {name: options.pop(name) for name in _METHOD if name in options}
    of_task = {name: options.pop(name) for name in _TASK if name in options}
    task = pb.Task(task, **of_task) if of_task else task
    return pb.binarize(model, pb.method(method, **of_method), task, **options)
