"""Docstrings as Markdown: doctests become code, Sphinx roles become names in code."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

ROLE = re.compile(r":(?:attr|class|func|meth|mod):`~?([^`]*)`")


def as_markdown(text: str) -> str:
    """A docstring with fences around its doctests and without roles."""
    parts = ROLE.sub(r"`\1`", text).split("\n\n")
    return "\n\n".join(
        f"```pycon\n{part}\n```" if part.startswith(">>>") else part for part in parts
    )


class Docstrings(Extension):
    """mkdocstrings calls it for every object that it finds."""

    def on_object(self, *, obj: Object, **others: Any) -> None:
        """Change the docstring before it is parsed."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
