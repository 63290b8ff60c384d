"""Objects from the user's own files: FILE.py:NAME."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from proxbit.util.text import first_line


def user_object(spec: str, *kinds: type) -> Any:
    """Load the object NAME from FILE.py:NAME; with ``kinds``, it must be of one of them.

    The file is executed, because the user named it; files beside it may be imported by it.
    """
    file, _, name = spec.rpartition(":")
    if not file.endswith(".py"):
        raise ValueError(f"{spec!r} does not name an object in a file: write FILE.py:NAME")
    if name and not name.isidentifier():  # before the file runs
        raise ValueError(f"{name!r} of {spec!r} is not the name of an object: write FILE.py:NAME")
    module = _run(file)
    found = vars(module).get(name)
    kinds = kinds or (object,)
    if found is None or not isinstance(found, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        a = f"has a {type(found).__name__}, not a {wanted}, as"
        what = "has no" if found is None else a
        plural = " and ".join(f"{kind.__name__.lower()}s" for kind in kinds)
        there = ", ".join(_public(module, kinds)) or "none"
        raise ValueError(f"{file} {what} {name!r}; its {plural}: {there}")
    return found


def _run(file: str) -> ModuleType:
    path = Path(file).expanduser()
    if not path.is_file():
        raise ValueError(f"there is no file {file!r}")
    # The whole path is in the name: two files called net.py must not replace each other.
    label = f"proxbit_user_{path.stem}_{zlib.crc32(str(path.resolve()).encode()):08x}"
    spec = importlib.util.spec_from_file_location(label, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[label] = module  # dataclasses and pickle look their module up
    try:
        with _neighbours(path.resolve().parent):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[label]
        raise ValueError(f"{file} does not run: {first_line(error)}") from error
    return module


@contextmanager
def _neighbours(folder: Path) -> Iterator[None]:
    """Let the file import those beside it, after everything that is installed."""
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _public(module: ModuleType, kinds: tuple[type, ...]) -> list[str]:
    """The objects that a file offers: no modules, and no functions or classes that it imported."""
    named = {n: v for n, v in vars(module).items() if isinstance(v, kinds) and n[0] != "_"}
    return [name for name, value in named.items() if not _is_imported(value, module)]


def _is_imported(value: Any, module: ModuleType) -> bool:
    code = inspect.isclass(value) or inspect.isroutine(value)
    return inspect.ismodule(value) or (code and value.__module__ != module.__name__)
