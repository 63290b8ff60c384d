"""The public names of proxbit: what the packages with an ``__all__`` export.

Modules that ``proxbit`` itself exports count with the functions and classes that they define.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import proxbit

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
DIRECTIVE = re.compile(r"^::: (\S+)", re.MULTILINE)


def public_modules() -> dict[str, ModuleType]:
    """Every public module under the name that a user types."""
    below = [
        f"proxbit.{each.name}" for each in pkgutil.iter_modules(proxbit.__path__) if each.ispkg
    ]
    packages = {name: importlib.import_module(name) for name in ["proxbit", *below]}
    found = {name: module for name, module in packages.items() if hasattr(module, "__all__")}
    exported = {f"proxbit.{name}": getattr(proxbit, name) for name in proxbit.__all__}
    return found | {name: each for name, each in exported.items() if isinstance(each, ModuleType)}


def names_of(module: ModuleType) -> list[str]:
    """What a module exports, other modules left out."""
    names = getattr(module, "__all__", None) or [
        name for name, value in vars(module).items() if home(value) == f"{module.__name__}.{name}"
    ]
    kept = [name for name in names if not isinstance(getattr(module, name), ModuleType)]
    return [name for name in kept if name == "__version__" or not name.startswith("_")]


def home(value: Any) -> str:
    """Where a function or class is defined: its module and name."""
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"


def public_names() -> dict[str, set[str]]:
    """Every public name with the dotted paths under which a page may document it."""
    modules = public_modules()
    return {
        f"{path}.{name}": {f"{path}.{name}", f"proxbit.{name}", home(getattr(module, name))}
        for path, module in modules.items()
        for name in names_of(module)
    }


def documented() -> set[str]:
    """The dotted paths on the pages of the reference; a module stands for its names too."""
    texts = [page.read_text(encoding="utf-8") for page in sorted(REFERENCE.glob("*.md"))]
    paths, modules = set(DIRECTIVE.findall("\n".join(texts))), public_modules()
    inside = {f"{path}.{name}" for path in paths & set(modules) for name in names_of(modules[path])}
    return paths | inside
