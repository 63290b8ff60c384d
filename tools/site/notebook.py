"""The tutorial without Jupyter: run its cells, keep what they print, show it as Markdown.

python tools/site/notebook.py docs/tutorial.ipynb    # run it and store its outputs
"""

from __future__ import annotations

import ast
import io
import json
import sys
from contextlib import chdir, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


def read(path: Path) -> dict[str, Any]:
    """The notebook as it is stored."""
    return json.loads(path.read_text(encoding="utf-8"))


def source(cell: dict[str, Any]) -> str:
    """The text of a cell, whose lines are stored one by one."""
    return "".join(cell["source"])


def run(notebook: dict[str, Any]) -> list[str]:
    """Run every cell of code in an empty folder; what each one prints."""
    names: dict[str, Any] = {"__name__": "__main__"}
    codes = [source(cell) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    with TemporaryDirectory() as folder, chdir(folder):
        return [printed(code, names) for code in codes]


def printed(code: str, names: dict[str, Any]) -> str:
    """What a cell prints, its last expression included, as in Jupyter."""
    tree, last = ast.parse(code), None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    with redirect_stdout(io.StringIO()) as out:
        exec(compile(tree, "<cell>", "exec"), names)
        value = None if last is None else eval(compile(last, "<cell>", "eval"), names)
        if value is not None:
            print(repr(value))
    return out.getvalue()


def store(notebook: dict[str, Any], outputs: list[str]) -> None:
    """Put the outputs into the cells, as Jupyter stores them."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for count, (cell, text) in enumerate(zip(cells, outputs, strict=True), start=1):
        lines = text.splitlines(keepends=True)
        stream = {"name": "stdout", "output_type": "stream", "text": lines}
        cell |= {"execution_count": count, "outputs": [stream] if text else []}


def stored(cell: dict[str, Any]) -> str:
    """The output in a cell."""
    return "".join(line for output in cell["outputs"] for line in output["text"])


def to_markdown(path: Path) -> str:
    """The notebook as a page: text, code, and what the code printed."""
    parts = []
    for cell in read(path)["cells"]:
        text = source(cell)
        if cell["cell_type"] == "code":
            parts.append(f"```python\n{text}\n```")
            parts += [f"```text\n{stored(cell)}```"] if cell["outputs"] else []
        else:
            parts.append(text)
    return "\n\n".join(parts) + "\n"


def main(path: Path) -> None:
    """Run a notebook and write its outputs into it."""
    notebook = read(path)
    store(notebook, run(notebook))
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
