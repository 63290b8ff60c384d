"""One function from a name to a model: ours, timm's, or the user's own."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from proxbit.models.bireal import STAGES, bireal_resnet
from proxbit.models.from_timm import from_timm, import_timm, near_names
from proxbit.models.resnet import DEPTHS, cifar_resnet
from proxbit.models.vit import MINIS, tiny_vit
from proxbit.util.modes import eval_mode
from proxbit.util.text import saying, unknown_name_message
from proxbit.util.user_objects import user_object

RESNETS: dict[str, Callable[..., nn.Module]] = {
    **{f"resnet{depth}": partial(cifar_resnet, depth) for depth in DEPTHS},
    **{f"bireal_resnet{depth}": partial(bireal_resnet, depth) for depth in (*DEPTHS, *STAGES)},
}
OURS = (*RESNETS, "tiny_vit", *MINIS)


def build(
    name: str,
    *,
    classes: int = 10,
    channels: int = 3,
    image_size: int | None = None,
    patch_size: int | None = None,
    pretrained: bool = False,
    **options: Any,
) -> nn.Module:
    """Build the model ``name``: one of ours, ``timm/NAME``, or ``FILE.py:FUNCTION``.

    If ``image_size`` is given, one empty image is sent through the model, to prove that it takes
    that size and gives one score per class.

    Args:
        name: ``resnet8``, ``resnet20``, ``resnet32``, ``resnet44``, ``resnet56``; the same with a
            shortcut around every convolution, for one-bit inputs, ``bireal_resnet8`` to
            ``bireal_resnet56``, and for large images ``bireal_resnet18`` and ``bireal_resnet34``;
            ``tiny_vit``; the smallest of their families, ``mini_vit``, ``mini_bottleneck``,
            ``mini_swin`` and ``mini_nest``; any model of timm; or your own function or class,
            whose file is executed.
        classes: How many scores the model gives.
        channels: Channels of an image.
        image_size: Height and width of an image; needed by transformers of ours.
        patch_size: Height and width of a patch, for models that have patches.
        pretrained: Let timm fetch its weights.
        options: Passed on: ``width`` of a ResNet, timm's own arguments, or those of your function.

    >>> build("resnet8", classes=4, channels=1, width=8)(torch.zeros(2, 1, 16, 16)).shape
    torch.Size([2, 4])
    """
    sizes = {"classes": classes, "channels": channels}
    sizes |= {} if image_size is None else {"image_size": image_size}
    extra = options | ({} if patch_size is None else {"patch_size": patch_size})
    model = make(name, sizes, extra, pretrained)
    if image_size is not None:
        _try_one_image(model, name, classes, channels, image_size)
    return model


def make(
    name: str, sizes: dict[str, int], options: dict[str, Any], pretrained: bool = False
) -> nn.Module:
    """The model of :func:`build`, before an image has gone through it."""
    _check_sizes(sizes | {k: v for k, v in options.items() if k == "patch_size"})
    model = _maker(name)(name, sizes, options | ({"pretrained": True} if pretrained else {}))
    # Packed files keep it, so that they can be loaded without a skeleton. An attribute, because the
    # way from here to a file leads through the user's hands, and through copies.
    model._proxbit_architecture = {"name": name} | sizes | options  # type: ignore[assignment]
    return model


def _check_sizes(sizes: dict[str, Any]) -> None:
    for what, value in sizes.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{what} must be a whole number of at least 1, not {value!r}")


def _maker(name: str) -> Callable[[str, dict[str, int], dict[str, Any]], nn.Module]:
    """The function behind a name: strings become functions here."""
    if re.search(r"\.py(:|$)", name):
        return _from_user
    if name in OURS:
        return _from_ours
    if name.startswith("timm/") and import_timm().is_model(name.removeprefix("timm/")):
        return _from_timm
    forms = ["any model of timm as timm/NAME", "your own as FILE.py:FUNCTION"]
    raise ValueError(unknown_name_message("model", name, [*OURS, *_near(name), *forms]))


def _near(name: str) -> list[str]:
    try:
        return near_names(name)
    except ValueError:  # no timm here: ours are all there are
        if name.startswith("timm/"):
            raise
        return []


def _from_timm(name: str, sizes: dict[str, int], options: dict[str, Any]) -> nn.Module:
    return from_timm(name.removeprefix("timm/"), **{**sizes, **options})


def _from_ours(name: str, sizes: dict[str, int], options: dict[str, Any]) -> nn.Module:
    if options.get("pretrained"):
        raise ValueError(
            f"no weights come with {name}: leave pretrained out and give a file to load_weights "
            "(--weights FILE)"
        )
    if name == "tiny_vit":
        return tiny_vit(**sizes, **options)
    if name in MINIS:
        return MINIS[name](**_taken(name, MINIS[name], sizes, options))
    _refuse_unknown(name, options, ["width"])
    return RESNETS[name](sizes["classes"], sizes["channels"], **options)


def _refuse_unknown(name: str, options: dict[str, Any], known: list[str]) -> None:
    """One sentence for all the options that a model does not have."""
    odd = [option for option in options if option not in known]
    if odd:
        raise ValueError(unknown_name_message(f"option of {name}", ", ".join(odd), known))


def _from_user(spec: str, sizes: dict[str, int], options: dict[str, Any]) -> nn.Module:
    """Call the user's function with those of the sizes that it takes, and with all options."""
    make = user_object(spec)
    if isinstance(make, nn.Module) or not callable(make):
        a = type(make).__name__
        raise TypeError(f"{spec} is a {a}: name a function or class that makes a model")
    arguments = _taken(spec, make, sizes, options)
    with saying(f"{spec} does not run"):
        model = make(**arguments)
    if not isinstance(model, nn.Module):
        raise TypeError(f"{spec} returned a {type(model).__name__}: it must return an nn.Module")
    return model


def _taken(
    spec: str, make: Callable[..., Any], sizes: dict[str, int], options: dict[str, Any]
) -> dict[str, Any]:
    signature = inspect.signature(make)
    parameters = signature.parameters
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [name for name, p in parameters.items() if p.kind in by_name]
    any_keyword = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if not any_keyword:
        _refuse_unknown(spec, options, names)
        sizes = {what: value for what, value in sizes.items() if what in names}
    try:
        signature.bind(**sizes, **options)
    except TypeError as error:
        raise ValueError(f"{spec}: {error}; give it a default or pass it as an option") from error
    return {**sizes, **options}


def _try_one_image(
    model: nn.Module, name: str, classes: int, channels: int, image_size: int
) -> None:
    """Send one empty image through the model, and leave no trace."""
    shape = (1, channels, image_size, image_size)
    sizes = f"{image_size}x{image_size} with {channels} channel(s)"
    with saying(f"{name} does not take images of {sizes}, choose other sizes"):
        scores = _scores_of_nothing(model, shape)
    found = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
    if found != (1, classes):
        raise ValueError(f"{name} gives {found} for one image: it must give {(1, classes)} scores")


def _scores_of_nothing(model: nn.Module, shape: tuple[int, ...]) -> Any:
    device = next((p.device for p in model.parameters()), None)
    with eval_mode(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
        return model(torch.zeros(shape, device=device))
