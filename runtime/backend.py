"""The build of ``proxbit-runtime``: scikit-build-core, on sources shared with the repository.

In the repository, ``shared`` is rebuilt from the folder above; a source distribution contains it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from scikit_build_core import build as backend

HERE = Path(__file__).resolve().parent
SHARED = HERE / "shared"
SOURCES = ("CMakeLists.txt", "LICENSE", "csrc", "src/proxbit/_version.py")


def _fetch() -> None:
    root = HERE.parent
    if not (root / "csrc").is_dir():
        return
    shutil.rmtree(SHARED, ignore_errors=True)
    SHARED.mkdir()
    for name in SOURCES:
        source, target = root / name, SHARED / Path(name).name
        shutil.copytree(source, target) if source.is_dir() else shutil.copy2(source, target)


def _after_fetching(name: str) -> Any:
    hook = getattr(backend, name)

    def call(*arguments: Any, **options: Any) -> Any:
        _fetch()
        return hook(*arguments, **options)

    return call


get_requires_for_build_wheel = _after_fetching("get_requires_for_build_wheel")
get_requires_for_build_sdist = _after_fetching("get_requires_for_build_sdist")
prepare_metadata_for_build_wheel = _after_fetching("prepare_metadata_for_build_wheel")
build_wheel = _after_fetching("build_wheel")
build_sdist = _after_fetching("build_sdist")
