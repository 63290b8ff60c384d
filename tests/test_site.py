"""The documentation site: complete before it is built; ``make docs`` builds and checks it."""

import re
import sys
from functools import reduce
from pathlib import Path

import notebook
import public
import pytest
import yaml

import proxbit

ROOT = Path(__file__).resolve().parents[1]
TUTORIAL = ROOT / "docs" / "tutorial.ipynb"
# Pages that tools/site/hooks.py makes, so that docs/ has no file for them.
MADE = {"index.md", "contributing.md", "changelog.md", "tutorial.md", "reference/commands.md"}


@pytest.mark.parametrize("name", public.public_names())
def test_every_public_name_is_in_the_reference(name):
    paths = public.public_names()[name]
    assert paths & public.documented(), f"add '::: {name}' to a page of docs/reference"


def found(path: str) -> object:
    """The object behind a dotted path that begins with a module."""
    head, rest = path, []
    while head not in sys.modules:
        head, _, name = head.rpartition(".")
        rest = [name, *rest]
    return reduce(lambda value, name: getattr(value, name, None), rest, sys.modules[head])


@pytest.mark.parametrize("path", sorted(public.documented()))
def test_every_name_in_the_reference_exists(path):
    assert found(path) is not None


def test_a_name_that_no_page_has_is_noticed(monkeypatch):
    monkeypatch.setattr(proxbit, "brand_new", lambda: None, raising=False)
    monkeypatch.setattr(proxbit, "__all__", [*proxbit.__all__, "brand_new"])
    assert not public.public_names()["proxbit.brand_new"] & public.documented()


def pages_in(entry) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    children = entry.values() if isinstance(entry, dict) else entry
    return [page for child in children for page in pages_in(child)]


def test_the_navigation_leads_to_every_page_once():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    docs = ROOT / "docs"
    written = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    assert sorted(pages_in(nav)) == sorted(written | MADE), "name each page once in mkdocs.yml"


def without_figures(text: str) -> str:
    """Words only: figures, and the spaces that align them, differ from run to run."""
    return re.sub(r"\s+", " ", re.sub(r"[\d.,]+", "0", text))


@pytest.mark.slow
def test_the_tutorial_runs_and_prints_what_it_shows():
    book = notebook.read(TUTORIAL)
    shown = [notebook.stored(cell) for cell in book["cells"] if cell["cell_type"] == "code"]
    for printed, stored in zip(notebook.run(book), shown, strict=True):
        assert without_figures(printed) == without_figures(stored)


def test_a_cell_prints_its_last_expression_as_jupyter_does():
    assert notebook.printed("x = 2\nprint('a')\nx + 1", {}) == "a\n3\n"
    assert notebook.printed("x = 2", {}) == ""


def glossary() -> list[str]:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    return re.findall(r"^\| \*\*(.+?)\*\* \|", text, re.MULTILINE)


def test_every_word_of_the_glossary_is_used_and_explained_once():
    words = glossary()
    files = [path for folder in ("src", "tests") for path in (ROOT / folder).rglob("*.py")]
    code = " ".join(path.read_text(encoding="utf-8").lower() for path in files)
    assert words and len(words) == len(set(words))
    stems = {word: word.split(" ")[0].lower() for word in words}
    assert [word for word, stem in stems.items() if stem not in code] == []
