"""Count the source: files, lines, the longest functions, imports between packages.

``python tools/count_lines.py [FOLDER]`` reads src/proxbit unless a folder is named. A line of code
holds more than a comment, a docstring or nothing; physical lines are all of them.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "proxbit"
SPACE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(source: str) -> int:
    """Lines with code: blank lines, comments and docstrings are left out."""
    documented = (ast.Module, ast.ClassDef, *FUNCTIONS)
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, documented)]
    words = [node.body[0] for node in nodes if ast.get_docstring(node) is not None]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = [(t.start[0], t.end[0]) for t in tokens if t.type not in SPACE and t.string]
    docs = [(each.lineno, each.end_lineno or 0) for each in words]
    lines, left_out = ({n for a, b in spans for n in range(a, b + 1)} for spans in (code, docs))
    return len(lines - left_out)


def main(folder: Path) -> None:
    """Print a table of the packages, the imports between them, and the longest functions."""
    counts: dict[str, Counter[str]] = {}
    edges, functions = set(), []
    for path in sorted(folder.rglob("*.py")):
        source, parts = path.read_text(encoding="utf-8"), path.relative_to(folder).parts
        package = parts[0] if len(parts) > 1 else "."
        lines = {"files": 1, "lines": len(source.splitlines()), "of code": code_lines(source)}
        counts.setdefault(package, Counter()).update(lines)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, FUNCTIONS):
                length = (node.end_lineno or 0) - node.lineno + 1
                functions.append((length, f"{path.stem}.{node.name}"))
            elif isinstance(node, ast.ImportFrom):
                root, _, inside = (node.module or "").partition(".")
                edges.add((package, inside.partition(".")[0] if root == folder.name else ""))
    packages = counts.keys() - {"."}
    inner = {(a, b) for a, b in edges if a != b and {a, b} <= packages}
    for name, count in [*sorted(counts.items()), ("total", sum(counts.values(), Counter()))]:
        print(f"{name:14}" + "".join(f"{count[what]:8} {what}" for what in lines))
    print(f"{len(packages)} packages, {len(inner)} edges between them; the longest functions:")
    print("\n".join(f"{length:5} {name}" for length, name in sorted(functions)[:-11:-1]))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if sys.argv[1:] else SOURCE)
