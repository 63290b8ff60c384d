"""Pages that the site makes of other files: README, tutorial, contributing, changelog, commands.

mkdocs calls the functions that begin with ``on_``; nothing is written into docs/.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))

import commands
import notebook

ROOT = Path(__file__).resolve().parents[2]
# Files of the repository's root, and the pages that they become.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
LINK = re.compile(r"(\[[^\]]*\])\(([^)#]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that have no file in docs/."""
    made = {page: from_root((ROOT / file).read_text("utf-8")) for file, page in PAGES.items()}
    made["tutorial.md"] = notebook.to_markdown(ROOT / "docs" / "tutorial.ipynb")
    made["reference/commands.md"] = commands.to_markdown()
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def from_root(text: str) -> str:
    """A file of the root as a page of docs/: its links lead from there, or lose their targets."""

    def moved(match: re.Match[str]) -> str:
        words, target = match[1], PAGES.get(match[2], match[2].removeprefix("docs/"))
        if target == match[2] and ":" not in target:  # a file that the site does not have
            return words.removeprefix("[").removesuffix("]")
        return f"{words}({target.replace('tutorial.ipynb', 'tutorial.md')})"

    return LINK.sub(moved, text)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Keep the words of a link that leads to a file outside of docs/: the site has no such page."""
    folder = posixpath.dirname(page.file.src_uri)

    def inside(match: re.Match[str]) -> str:
        outside = posixpath.normpath(posixpath.join(folder, match[2])).startswith("..")
        return match[1].removeprefix("[").removesuffix("]") if outside else match[0]

    return LINK.sub(inside, markdown)
