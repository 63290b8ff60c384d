"""From a cell, its preset and what the user gives to the configuration of its run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from proxbit.experiments.reproduce.blocks import skeleton
from proxbit.experiments.reproduce.grids import ALL_BLOCKS, Cell, Row
from proxbit.experiments.reproduce.presets import PRESETS, Preset
from proxbit.models import pretrained_classes
from proxbit.train.checkpoint import ASIDE, PLACES, same_file
from proxbit.train.config import Config
from proxbit.train.precision import AUTO
from proxbit.train.settings import resolve_method
from proxbit.train.setup import resolve
from proxbit.util.text import without_folder

Given = tuple[tuple[str, str], ...]

GENTLY = 1e-4  # the rate at which a float network that knows its images is trained on


class Missing(ValueError):
    """A cell lacks something that the user must provide."""


@dataclass(frozen=True)
class Options:
    """Options of the user for all cells.

    Attributes:
        data: Pairs of a row, or a glob of rows, and its images, as ``proxbit train --data``.
        weights: Pairs of a row, or a glob of rows, and its float weights.
        teacher: Pairs of a row, or a glob of rows, and the float network to learn from.
        model: The model, instead of the preset's.
        epochs: The epochs, instead of the preset's.
        float_epochs: Epochs of the float network that is trained where no weights are given.
        max_steps_per_epoch: Largest number of steps per epoch.
        image_size: Side of the images that the model gets, instead of the preset's.
        settings: "default" or "paper" strengths and scales, instead of the preset's.
        data_root: Folder that holds CIFAR.
        measure: Whether to pack and time each network; None leaves it to the preset.
        cpu: Stay on the CPU where there is a GPU.
    """

    data: Given = ()
    weights: Given = ()
    teacher: Given = ()
    model: str | None = None
    epochs: int | None = None
    float_epochs: int | None = None
    max_steps_per_epoch: int | None = None
    image_size: int | None = None
    settings: str | None = None
    data_root: str = "data"
    measure: bool | None = None
    cpu: bool = False


# The protocols of the ablation, as switches of a run that start at "off".
_SWITCHES: dict[str, dict[str, Any]] = {
    "scale": {"scale": None}, "norm": {"attention_norm": True}, "pretrain": {"pretrain": None},
    "kd": {"distill": True},
}  # fmt: skip
_PLAIN: dict[str, Any] = {"attention_norm": False, "pretrain": 0, "distill": False}


def config_of(cell: Cell, options: Options, folder: str | Path) -> Config:
    """The configuration of a cell's run; raises Missing where the user must give something.

    ``folder`` is that of the results: a float network that is trained here lies in it.
    """
    axes, preset = cell.axes, PRESETS[cell.preset]
    values = _common(cell, options)
    task = "BW" if cell.is_float else axes["task"]  # one float network for all tasks
    values |= {"method": axes["method"].lower(), "task": task, "seed": cell.seed}
    values["epochs"] = options.epochs or preset.epochs[axes["pipeline"]]
    tuned, floats = axes["pipeline"] == "FT", cell.is_float
    if tuned:
        values["weights"] = _weights(cell, options, folder)
    if values.get("pretrain") and (floats or not tuned):
        values["pretrain"] = 0  # binary weights from float ones have something to recover from
    if tuned and floats:
        values["lr"] = GENTLY
    if not floats:
        values |= _lessons(cell, options, values)
    return resolve_method(Config(**(values | _switches(axes, preset))))


def _lessons(cell: Cell, options: Options, values: dict[str, Any]) -> dict[str, Any]:
    """The teacher: the network that was given, otherwise timm's own weights where they fit.

    These know the classes of ImageNet-1K and no others; the run checks the rest when it begins.
    """
    teacher = _for_row(options.teacher, cell.row)
    if teacher is not None:
        return {"teacher": teacher}
    if values.get("weights") != "pretrained" or cell.axes["model"].startswith("ResNet"):
        return {}
    return {"distill": is_imagenet(cell) and pretrained_classes(values["model"]) == 1000}


def _common(cell: Cell, options: Options) -> dict[str, Any]:
    """The options that the runs of a row share with the float network they start from."""
    axes, preset = cell.axes, PRESETS[cell.preset]
    values = dict(preset.common)
    if is_imagenet(cell):
        values |= preset.imagenet
    if not axes["model"].startswith("ResNet"):
        values |= preset.transformers
    data = _for_row(options.data, cell.row) or preset.data
    if data is None:
        raise Missing(
            f"row {cell.row} needs {axes['dataset']}: give it as --data {_example(axes['dataset'])}"
        )
    values |= {"data": data, "data_root": options.data_root, "cpu": options.cpu}
    values |= {"model": options.model or preset.model(axes["model"], axes["dataset"])}
    # As the weights expect their images: Google's transformers unlike all others.
    others = "half" if values["model"].startswith("timm/vit_") else "imagenet"
    values["normalize"] = "data" if data.startswith("fashion") else others
    names = ("max_steps_per_epoch", "image_size", "settings")
    asked = {name: getattr(options, name) for name in names}
    return values | {name: value for name, value in asked.items() if value is not None}


def is_imagenet(cell: Cell) -> bool:
    """Whether a cell is one on ImageNet."""
    return cell.axes["dataset"].startswith("ImageNet")


def _example(dataset: str) -> str:
    name = dataset.lower().replace("-", "")
    return "folder:DIR" if name.startswith("imagenet") else f"npz:FILE, folder:DIR or {name}"


def _for_row(given: Given, row: str) -> str | None:
    """The value given for a row: the last matching glob counts."""
    return next((value for name, value in reversed(given) if fnmatchcase(row, name)), None)


def _weights(cell: Cell, options: Options, folder: str | Path) -> str:
    given = _for_row(options.weights, cell.row)
    if given is not None:
        return given
    if needs_float(cell, options):
        return str(float_folder(cell, folder))
    own = PRESETS[cell.preset].model(cell.axes["model"], cell.axes["dataset"])
    name = options.model or own
    if name.startswith("timm/"):
        return "pretrained"
    raise Missing(
        f"row {cell.row} is fine-tuned from float weights of {name}: give them as --weights FILE, "
        "or have them trained first with --float-epochs N"
    )


def needs_float(cell: Cell, options: Options) -> bool:
    """Whether a float network must be trained before the cell can be fine-tuned."""
    epochs = options.float_epochs or PRESETS[cell.preset].float_epochs
    tuned = cell.axes["pipeline"] == "FT" and _for_row(options.weights, cell.row) is None
    return tuned and epochs > 0


def float_folder(cell: Cell, folder: str | Path) -> Path:
    """Where the float network of a cell's model and images is trained."""
    name = ",".join(("float", cell.preset, cell.axes["model"], cell.axes["dataset"]))
    return Path(folder) / "runs" / name


def float_config(cell: Cell, options: Options) -> Config:
    """The run of the float network that a cell is fine-tuned from; it is the same for all seeds."""
    epochs = options.float_epochs or PRESETS[cell.preset].float_epochs
    values = _common(cell, options) | {"method": "fp", "epochs": epochs, "pretrain": 0}
    return Config(**values)


def _switches(axes: dict[str, str], preset: Preset) -> dict[str, Any]:
    """The options that a block, a set of protocols or the width of a register sets."""
    if "bits" in axes:
        return {"bits": int(axes["bits"].split()[0])}
    if "block" in axes:
        return _PLAIN | {"only": None if axes["block"] == ALL_BLOCKS else axes["block"]}
    if "protocols" not in axes:
        return {}
    on: dict[str, Any] = {"scale": "none"} | _PLAIN
    for name in axes["protocols"].split("+"):
        on |= _SWITCHES.get(name, {})
    if on["pretrain"] is None:
        on["pretrain"] = preset.transformers.get("pretrain", 1)
    return on


def parse_given(texts: Sequence[str], rows: Sequence[Row], what: str) -> Given:
    """Pairs from ROW=VALUE, or from one bare VALUE that must suit all rows.

    >>> parse_given(["npz:a.npz"], [Row("cifar10", "ResNet20", "CIFAR-10", ())], "data")
    (('*', 'npz:a.npz'),)
    """
    return tuple(_pair(text, rows, what) for text in texts)


def _pair(text: str, rows: Sequence[Row], what: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    names = [row.name for row in rows]
    if equals and any(fnmatchcase(each, name) for each in names):
        return name, value
    kinds = list(dict.fromkeys(row.dataset if what == "data" else row.model for row in rows))
    if len(kinds) > 1:
        raise ValueError(
            f"--{what} {text} is for one row, and these are of {', '.join(kinds)}: write "
            f"--{what} {names[0]}=... once per row, or choose --rows"
        )
    return "*", text


# What a user's own model, or the images, must be looked at for.
_LEFT_OPEN = (
    "image_size", "batch_size", "pipeline", "augment", "optimizer", "lr", "weight_decay", "relu",
    "distill", "attention_norm", "pretrain", "new_head", "float_epochs",
)  # fmt: skip


def as_published(config: Config) -> dict[str, Any]:
    """The options of a run with the names of files only, without their folders."""
    values = asdict(config)
    for name in ("model", "data_root", *PLACES):
        if isinstance(values[name], str):
            values[name] = without_folder(values[name])
    return values


def differences(wanted: Config, kept: dict[str, Any], *, line: bool = False) -> list[str]:
    """Options of a run, or of its result line, that differ from the wanted ones, in words.

    What is left open counts as what it would be now: another default is another option. Folders of
    data may move, and a precision left to the machine may be that of another one. A run that goes
    on executes its model: only in a line its folder does not count.
    """
    movable = (*PLACES, "model") if line else PLACES
    asked = asdict(_as_now(wanted))
    aside = (*ASIDE, "precision") if wanted.precision == AUTO else ASIDE
    names = [each.name for each in fields(Config) if each.name not in aside]
    pairs = ((name, asked[name], kept.get(name)) for name in names)
    return [
        f"{name} {old}, not {new}"
        for name, new, old in pairs
        if new != old
        and not (new is None and name in _LEFT_OPEN)
        and not (name in movable and same_file(new, old))
    ]


def _as_now(config: Config) -> Config:
    """Fill in today's defaults, as far as they are known without executing a user's file."""
    own = ".py" in config.model
    return resolve_method(config) if own else resolve(config, skeleton(config.model))


def check_alike(wanted: Config, kept: dict[str, Any], where: str, *, line: bool = False) -> None:
    """Refuse, in one sentence, a cell that was run with other options."""
    if odd := differences(wanted, kept, line=line):
        raise ValueError(f"{where} has {odd[0]}: give the same options, or choose another --out")
