"""From a configuration to what trains: data, network, teacher."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from proxbit.binarization.conversion import binarize
from proxbit.binarization.conversion_report import Report
from proxbit.binarization.relu import replacement
from proxbit.core.methods import METHODS, Method
from proxbit.core.tasks import Task
from proxbit.data import RECIPES, ImageSet, Loader, open_data
from proxbit.data.image_folder import MEAN, STD
from proxbit.engine.planning import planned_bytes
from proxbit.models import build, is_transformer, keeps_classes, load_weights
from proxbit.models.structure import stated_classifiers
from proxbit.nn.attention_norm import add_attention_norms, attentions
from proxbit.train.checkpoint import require_like
from proxbit.train.config import Config
from proxbit.train.distillation import Distiller, Terms
from proxbit.train.input_calibration import calibrate_inputs
from proxbit.train.norm_calibration import calibrate_norms
from proxbit.train.patch_drop import place_of_patches
from proxbit.train.precision import choose_precision
from proxbit.train.settings import (
    BATCH_SIZE,
    augmentation_for,
    batch_size_for,
    float_epochs_for,
    method_of,
    resolve_method,
    with_options,
)
from proxbit.util.notices import SettingsWarning
from proxbit.util.text import unknown_name_message

RELUS: dict[str, type[nn.Module] | str] = {
    "keep": "keep", "hardtanh": nn.Hardtanh, "prelu": nn.PReLU, "identity": nn.Identity,
}  # fmt: skip
FOLDER_CROP = 0.875  # images of a folder are tested on the middle of a larger one
LRS = {"adam": 3e-3, "adamw": 5e-4, "sgd": 0.1}
# Soft pairs at a strength of 1 have left a pretrained transformer; at 0.3 it is nearly itself.
SOFT, TUNED_STRENGTH = METHODS["bnn++"].schedule, "0.3:3:log"
TUNED_LRS = LRS | {"adamw": 1e-3}  # of binary networks from float weights
INPUT_LRS = LRS | {"adam": 1e-2}  # with binary inputs


@dataclass(frozen=True, eq=False)
class PreparedRun:
    """A run that is ready to begin.

    Attributes:
        config: The configuration with nothing left open.
        method: Its method as the catalogue or the user's file has it, before options replace parts.
        data: The images.
        model: The network, binarized unless the method is float.
        teacher: The float network to learn from; None without distillation.
        terms: What is learned from it, if there is one.
        start: The float network as it was loaded; None from random weights.
        notes: Sentences about the weights that were loaded and the layers that became binary.
        sizes: Bytes of the float network and of the packed one.
        fresh: Names of the tensors of a new classifier, if it has one.
    """

    config: Config
    method: Method
    data: Any
    model: nn.Module
    teacher: nn.Module | None
    terms: Terms
    start: nn.Module | None
    notes: tuple[str, ...]
    sizes: tuple[int, int]
    fresh: tuple[str, ...] = ()

    def loader(self, part: str, augment: bool, device: torch.device, rank: int = 0,
               world: int = 1) -> Loader:  # fmt: skip
        """Batches of one part of the images."""
        config = self.config
        recipe = RECIPES[config.augment or "none"] if augment else RECIPES["none"]
        return Loader(
            self.data, part=part, batch_size=config.batch_size or BATCH_SIZE, seed=config.seed,
            recipe=recipe, image_size=config.image_size, rank=rank, world=world,
            workers=config.workers, device=device,
        )  # fmt: skip

    @property
    def part(self) -> str:
        """The images that choose the best checkpoint."""
        return "validation" if self.config.val_split else "test"


def prepare(config: Config, float_network: dict[str, Tensor] | None = None) -> PreparedRun:
    """Open the data, build the network, load its weights and make it binary.

    Every random choice follows from the seed; torch's own generator is left as it was.

    Args:
        config: The run.
        float_network: Tensors in the place of those of the weights: what a float stage ended with.
    """
    method = method_of(config)
    data = open_data(config.data, root=config.data_root, download=config.download)
    if config.normalize != "data":
        mean, std = _expected(config.normalize, data.channels)
        data = replace(data, mean=mean, std=std)
    if config.val_split:
        data = data.with_val_split(config.val_split, seed=config.seed)
    if (config.batch_size or 0) > (count := data.count("train")):
        raise ValueError(
            f"a batch of {config.batch_size} is more than the {count} training images of "
            f"{data.name}: choose --batch-size {count} or less"
        )
    # Before the network is built: a resumed run must build the same one.
    config = replace(config, image_size=config.image_size or data.image_size or 224)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model, note, fresh = _network(config, data, config.weights)
        if config.new_head is None:
            config = replace(config, new_head=bool(fresh))
        config = resolve(config, model, method, count)
        if float_network is not None:
            require_like(float_network, model.state_dict(), "the network of the float stage")
            model.load_state_dict(float_network)
        if config.patch_drop:
            place_of_patches(model)  # refuses a network that has none
        terms = _terms(config, model)  # a wrong word is a mistake even without a teacher
        teacher = _teacher(config, data, model) if method.binary else None
        start = None if config.weights is None else copy.deepcopy(model)
        notes = (note,) if note else ()
        prepared = PreparedRun(
            config, method, data, model, teacher, terms, start, notes, (0, 0), fresh
        )
        if not method.binary:
            size_float = sum(t.nbytes for t in model.state_dict().values())
            return replace(prepared, sizes=(size_float, size_float))
        prepared = _binary(prepared)
        if teacher is not None:  # what it cannot compare is said now, not when training begins
            Distiller(prepared.model, teacher, terms).close()
        return prepared


def _expected(normalize: str, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The mean and deviation that others' weights were trained with."""
    if normalize == "half":
        return (0.5,) * channels, (0.5,) * channels
    if channels != 3:
        raise ValueError(f"ImageNet's mean has 3 channels, and these images have {channels}")
    return MEAN, STD


def _network(
    config: Config, data: Any, weights: str | None
) -> tuple[nn.Module, str, tuple[str, ...]]:
    """A float network with its weights, a sentence about them, and what its new classifier has."""
    drop_path = {"drop_path": config.drop_path} if config.drop_path else {}
    pretrained = weights == "pretrained"
    model = build(
        config.model, classes=len(data.classes), channels=data.channels,
        image_size=config.image_size, patch_size=config.patch_size, pretrained=pretrained,
        **drop_path,
    )  # fmt: skip
    model.to(memory_format=_layout(model))  # type: ignore[call-overload]
    if weights is None:
        return model, "", ()
    if pretrained:
        fresh = () if keeps_classes(model) else stated_classifiers(model)
        return model, "", tuple(f"{name}.weight" for name in fresh)
    loaded = load_weights(model, weights, new_head=config.new_head)
    return model, str(loaded), loaded.fresh


def resolve(
    config: Config, model: nn.Module, method: Method | None = None, images: int | None = None
) -> Config:
    """Fill in the open options from the model and the method, which is looked up if not given.

    What depends on the number of training images stays open where it is not known.
    """
    method = method or method_of(config)
    if config.pipeline == "fine-tune" and config.weights is None:
        raise ValueError("fine-tuning starts from float weights: give --weights, or end-to-end")
    if config.teacher_model is not None and config.teacher is None:
        raise ValueError(f"give the weights of {config.teacher_model} as --teacher")
    if config.pipeline == "end-to-end" and config.weights is not None:
        raise ValueError("an end-to-end run starts from random weights: leave out --weights")
    attends, alike = is_transformer(model), config.settings == "paper"
    usual = config.strength is None and config.settings == "default" and method.schedule == SOFT
    if usual and attends and config.weights is not None:
        config = replace(config, strength=TUNED_STRENGTH)
    config = resolve_method(config, method)
    if (config.frozen or 0) + (config.sharp or 0) >= 1:
        raise ValueError(
            f"the sharp ({config.sharp}) and frozen ({config.frozen}) shares leave no soft steps: "
            "keep their sum below 1"
        )
    # In the paper's settings all methods are trained alike, float or not, whatever the task.
    binary, tuned = method.binary, config.weights is not None
    optimizer = config.optimizer or ("adamw" if attends else "adam")
    stage = binary and not alike and _has_new_classes(config, model)
    if config.float_epochs is None and (images is not None or not stage):
        config = replace(config, float_epochs=float_epochs_for(images or 0) if stage else 0)
    if config.float_epochs and not (tuned and binary):
        need = "weights to start from: give --weights" if binary else "a method that is not float"
        raise ValueError(f"a float stage before the run needs {need}, or --float-epochs 0")
    values: dict[str, Any] = {
        "batch_size": None if images is None else batch_size_for(images, attends and tuned),
        "pipeline": "fine-tune" if tuned else "end-to-end",
        "augment": _augmentation(config, attends),
        "optimizer": optimizer,
        "lr": _lrs(config, tuned and binary and not alike, binary and not alike)[optimizer],
        "weight_decay": {"adam": 0.0, "adamw": 0.05, "sgd": 1e-4}[optimizer],
        # The rule of binarize, written down: a run keeps it where another version has another.
        "relu": "keep" if config.task == "BW" else replacement(method).__name__.lower(),
        "distill": binary and (config.teacher is not None or (attends and _teaches(config, model))),
        "attention_norm": binary and bool(attentions(model)),
        "pretrain": int(binary and attends and tuned),
    }
    config = replace(config, precision=choose_precision(config.precision, config.cpu))
    return replace(config, **{k: v for k, v in values.items() if getattr(config, k) is None})


def _lrs(config: Config, tuned: bool, binary: bool) -> dict[str, float]:
    """The highest learning rates by optimizer."""
    lrs = TUNED_LRS if tuned else LRS
    return lrs | {"adam": INPUT_LRS["adam"]} if binary and config.task != "BW" else lrs


def _augmentation(config: Config, attends: bool) -> str:
    """The augmentation by rule; in the paper's settings DeiT's for transformers of any length."""
    if config.settings == "paper" or not attends:
        return "timm" if attends else "crop"
    return augmentation_for(config.epochs)


def _has_new_classes(config: Config, model: nn.Module) -> bool:
    """Whether a run starts from weights that do not know its classes."""
    if config.weights == "pretrained":
        return not keeps_classes(model)
    return config.weights is not None and bool(config.new_head)


def _teaches(config: Config, model: nn.Module) -> bool:
    """Whether the float network that becomes binary knows the classes."""
    known = config.weights is not None and not _has_new_classes(config, model)
    return known or bool(config.float_epochs)


def _teacher(config: Config, data: Any, model: nn.Module) -> nn.Module | None:
    if not config.distill:
        return None
    if config.teacher is not None:
        named = replace(config, model=config.teacher_model or config.model, new_head=False)
        teacher = _network(named, data, config.teacher)[0].eval()
        if config.teacher == "pretrained" and not keeps_classes(teacher):
            raise ValueError(
                f"timm's weights of {named.model} know other classes than these "
                f"{len(data.classes)}: give --teacher a file of a network that knows them"
            )
        return teacher
    if not _teaches(config, model):
        raise ValueError(
            "distillation learns from a float network of the same classes: give --teacher, or "
            "--weights that have them, or --no-distill"
        )
    return copy.deepcopy(model).eval()


def _binary(prepared: PreparedRun) -> PreparedRun:
    """Add the norms, make the layers binary."""
    config, model = prepared.config, prepared.model
    if config.attention_norm:
        add_attention_norms(model)
        if config.weights is not None:
            calibrate_norms(model, _some_images(prepared))
    calibrates = config.task != "BW" and config.weights is not None and is_transformer(model)
    before = copy.deepcopy(model) if calibrates else None
    method = with_options(prepared.method, config)
    task = Task(config.task, bits=config.bits)  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SettingsWarning)  # what they say is in the report's notes
        report = binarize(
            model, method, task,
            only=_globs(config.only), skip=_globs(config.skip), relu=RELUS[config.relu or "keep"],
        )  # fmt: skip
    if before is not None:
        calibrate_inputs(model, before, _some_images(prepared))
    model.to(memory_format=_layout(model))  # type: ignore[call-overload]
    line = f"{sum(each.binary for each in report.layers)} of {len(report.layers)} layers are binary"
    notes = (*prepared.notes, line, *report.notes)
    return replace(
        prepared, notes=notes, sizes=(report.bytes_float, _packed_bytes(prepared, report))
    )


def _some_images(prepared: PreparedRun) -> list[Tensor]:
    """A few batches of training images as they are."""
    batches = prepared.loader("train", augment=False, device=torch.device("cpu")).epoch(0)
    return [x for x, _ in islice(batches, 4)]


def _packed_bytes(prepared: PreparedRun, report: Report) -> int:
    """Bytes of the file that ``proxbit pack`` will make of this run, if it is a binary one."""
    if not report.binary:
        return report.bytes_packed
    return planned_bytes(prepared.model, prepared.data.classes, input_of(prepared))


def input_of(prepared: PreparedRun) -> dict[str, Any]:
    """The input that the network of a run expects, for the header of its file."""
    data, side = prepared.data, prepared.config.image_size
    crop = {} if isinstance(data, ImageSet) else {"crop": FOLDER_CROP}
    form = {"shape": [data.channels, side, side], "mean": list(data.mean), "std": list(data.std)}
    return form | crop


def _layout(model: nn.Module) -> torch.memory_format:
    """The memory format of images: with channels last, convolutions are a sixth faster on a CPU."""
    return torch.preserve_format if is_transformer(model) else torch.channels_last


def _globs(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _terms(config: Config, model: nn.Module) -> Terms:
    """The terms of the distillation that were asked for, or those that suit model and teacher.

    Unless it is another model, the teacher is the same network before it became binary.
    """
    per_sample, temperature = config.per_sample, config.temperature
    if config.terms is None:
        alike = config.teacher_model in (None, config.model)
        suited = Terms.for_model(model) if alike else Terms(relations=0.0, hidden=0.0)
        return replace(suited, per_sample=per_sample, temperature=temperature)
    names = _globs(config.terms) or []
    known = {"logits": 1.0, "labels": 0.5, "relations": 1.0, "hidden": 1.0}
    odd = [name for name in names if name not in known]
    if odd:
        raise ValueError(unknown_name_message("term of distillation", odd[0], known))
    weights = {name: known[name] if name in names else 0.0 for name in known}
    return Terms(**weights, per_sample=per_sample, temperature=temperature)
