"""Models of timm by name, with sizes and class counts that we choose."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from torch import nn

from proxbit.util.compat import allow_torchvision
from proxbit.util.text import few, first_line, unknown_name_message

# timm's word: ours
_SIZES = {"num_classes": "classes", "in_chans": "channels", "img_size": "image_size"}
_OURS = {**_SIZES, "drop_path_rate": "drop_path"}


def import_timm() -> ModuleType:
    """The package, or one sentence that says how to get it."""
    allow_torchvision()
    try:
        import timm
    except ImportError as error:
        raise ValueError("models of timm need timm: pip install proxbit[vision]") from error
    return timm


def near_names(given: str, most: int = 4) -> list[str]:
    """Names of timm's models that look like the given one, as ``timm/NAME``."""
    names = import_timm().list_models()
    near = difflib.get_close_matches(given.removeprefix("timm/").lower(), names, n=most)
    return [f"timm/{name}" for name in near]


def from_timm(
    name: str,
    *,
    classes: int,
    channels: int,
    image_size: int | None = None,
    patch_size: int | None = None,
    pretrained: bool = False,
    drop_path: float | None = None,
    **options: Any,
) -> nn.Module:
    """The model that timm calls ``name``; options are the arguments of timm's own class."""
    for theirs in _OURS.keys() & options.keys():
        raise ValueError(f"{theirs!r} is called {_OURS[theirs]!r} here: use that")
    wanted: dict[str, Any] = {"num_classes": classes, "in_chans": channels}
    wanted |= {"patch_size": patch_size, "drop_path_rate": drop_path}
    if _has_fixed_size(name) and image_size is not None:
        window = _window(name, image_size // (patch_size or 4))
        wanted |= {"img_size": image_size, "window_size": window}
    wanted = {key: value for key, value in (wanted | options).items() if value is not None}
    model = _create(name, pretrained, wanted)
    _check_nothing_was_swallowed(model, name, wanted)
    if image_size is not None:
        _check_patches(model, name, image_size)
    return model


def _has_fixed_size(name: str) -> bool:
    """Whether the model must be told its image size; the others take images of any size."""
    timm = import_timm()
    try:
        settings = timm.models.get_pretrained_cfg(name)
    except RuntimeError as error:  # the part after the dot names weights that do not exist
        known = timm.list_pretrained(f"{name.partition('.')[0]}.*")
        raise ValueError(unknown_name_message("model of timm", name, known)) from error
    return settings is not None and bool(settings.fixed_input_size)


def pretrained_classes(name: str) -> int | None:
    """How many classes the weights know that timm has for ``timm/NAME``; None where it has none.

    >>> pretrained_classes("timm/deit_tiny_patch16_224"), pretrained_classes("resnet20")
    (1000, None)
    """
    if not name.startswith("timm/"):
        return None
    settings = import_timm().models.get_pretrained_cfg(name.removeprefix("timm/"))
    return settings.num_classes if settings is not None and settings.has_weights else None


def keeps_classes(model: nn.Module) -> bool:
    """Whether timm's own weights of a model, once fetched, have its classes: as many as theirs."""
    settings: dict[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    return "num_classes" in settings and settings["num_classes"] == model.num_classes


def _window(name: str, grid: int) -> int | None:
    """A window for Swin that needs no padding, where its own does not divide the grid of patches.

    >>> _window("swin_tiny_patch4_window7_224", 8), _window("swin_tiny_patch4_window7_224", 56)
    (4, None)
    """
    found = re.match(r"swin(?:v2)?_.*window(?:\d+to)?(\d+)", name)
    if found is None or grid % int(found[1]) == 0:
        return None
    own = int(found[1])
    return max((n for n in range((own + 1) // 2, own) if grid % n == 0), default=None)


def _create(name: str, pretrained: bool, wanted: dict[str, Any]) -> nn.Module:
    timm = import_timm()
    try:
        model: nn.Module = timm.create_model(name, pretrained=pretrained, **wanted)
    except Exception as error:
        raise ValueError(_reason(name, pretrained, wanted, error)) from error
    return model


def _reason(name: str, pretrained: bool, wanted: dict[str, Any], error: Exception) -> str:
    """One sentence for whatever timm answered."""
    first = first_line(error)
    told = re.search(r"(?:(\w+)\.__init__\(\).*)?(unexpected|multiple).*argument '(\w+)'", first)
    if told is not None and told[2] == "multiple":
        option = _OURS.get(told[3], told[3])
        return f"timm/{name} sets {option!r} by itself: leave it out, or choose another model"
    if told is not None:
        return _unknown_option(name, told[3], _arguments(name, told[1]))
    if pretrained and pretrained_classes(f"timm/{name}") is None:
        known = import_timm().list_pretrained(f"{name.partition('_')[0]}*")
        others = f", such as {few([f'timm/{each}' for each in known])}" if known else ""
        return (
            f"timm has no weights for {name}: leave pretrained out, choose a model that has "
            f"some{others}, or give a file to load_weights (--weights FILE)"
        )
    if pretrained and not isinstance(error, TypeError | AssertionError):
        return (
            f"timm cannot fetch the weights of {name} ({first}); get the "
            "file where there is a network, leave pretrained out, and give the file to "
            "load_weights (--weights FILE)"
        )
    values = ", ".join(f"{_OURS.get(key, key)}={value!r}" for key, value in wanted.items())
    return f"timm/{name} cannot be built with {values}: {first}"


def _unknown_option(name: str, option: str, known: Sequence[str]) -> str:
    if option == "patch_size":
        return f"timm/{name} has no patches: leave patch_size out"
    return unknown_name_message(f"option of timm/{name}", _OURS.get(option, option), known)


def _arguments(name: str, kind: str | None) -> list[str]:
    """The options that the class knows, after it has refused one."""
    timm = import_timm()
    module = sys.modules[timm.models.model_entrypoint(name.partition(".")[0]).__module__]
    found = getattr(module, kind or "", None)
    return ["those of its class in timm"] if found is None else _options_of(found)


def _options_of(kind: type) -> list[str]:
    hidden = {*_SIZES, "device", "dtype", "kwargs"}
    names = inspect.signature(kind).parameters
    return [_OURS.get(name, name) for name in names if name not in hidden]


def _check_nothing_was_swallowed(model: nn.Module, name: str, wanted: dict[str, Any]) -> None:
    """Refuse options that have no effect: some classes of timm take any keyword and drop it."""
    kinds = [k for k in type(model).__mro__ if k.__module__.startswith("timm.")]
    last = inspect.signature(kinds[-1]).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in last.values()) or "cfg" in last:
        return  # a class with a cfg changes the cfg by its keywords
    known = {option for kind in kinds for option in inspect.signature(kind).parameters}
    for option in wanted.keys() - known - _SIZES.keys():
        raise ValueError(_unknown_option(name, option, _options_of(kinds[-1])))


def _check_patches(model: nn.Module, name: str, image_size: int) -> None:
    """Refuse an image that is not a whole number of patches: it would silently lose its edge."""
    patch = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    side = patch[0] if isinstance(patch, tuple) else patch
    if isinstance(side, int) and image_size % side:
        fitting = [str(n) for n in range(2, image_size // 2 + 1) if image_size % n == 0]
        advice = f"patch_size: {', '.join(fitting)}" if fitting else "another image_size"
        raise ValueError(
            f"an image size of {image_size} is not a multiple of the patch size {side} of "
            f"timm/{name}: choose {advice}"
        )
