"""The layers of docs/architecture.md: rules that forbid, whatever the page says."""

import ast
import runpy
import sys
from collections import Counter
from pathlib import Path

import pytest

import proxbit

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(proxbit.__file__).parent
# From the lowest up; a package imports only from rows before its own.
LAYERS = (
    {"util"},
    {"core", "data", "models"},
    {"kernels", "packfile"},
    {"nn"},
    {"engine"},
    {"binarization"},
    {"theory", "export", "train", "testing"},
    {"deploy"},
    {"experiments"},
    {"cli"},
)
# Besides torch, numpy and the standard library; data opens PIL, torchvision and timm by name.
EXTRAS = {
    "cli": {"typer", "rich"},
    "experiments": {"rich", "ray"},
    "export": {"onnx"},
    "models": {"safetensors", "timm"},
    "packfile": {"safetensors"},
    "theory": {"matplotlib"},
    "train": {"matplotlib", "rich", "safetensors"},
    "util": {"matplotlib"},
}


def files() -> dict[str, Path]:
    """Every module by its name without the leading package."""
    found = {path.relative_to(PACKAGE).with_suffix(""): path for path in PACKAGE.rglob("*.py")}
    return {".".join(name.parts).removesuffix(".__init__"): path for name, path in found.items()}


def imports(source: str) -> list[str]:
    """The dotted names of the modules, or of names inside them, that a source imports."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def layer(package: str) -> int:
    return next(i for i, packages in enumerate(LAYERS) if package in packages)


def breaches(package: str, source: str) -> list[str]:
    """What a source of this package imports although its layer may not."""
    ours = [name.split(".") for name in imports(source) if name.split(".")[0] == "proxbit"]
    used = {name[1] if len(name) > 1 else "" for name in ours} - {package, "_version"}
    return sorted(name for name in used if name not in PACKAGES or layer(name) >= layer(package))


PACKAGES = set().union(*LAYERS)
MODULES = {name: path for name, path in files().items() if name.split(".")[0] in PACKAGES}


def test_every_package_has_a_layer():
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert folders == PACKAGES
    assert {path.stem for path in PACKAGE.glob("*.py")} == {"__init__", "__main__", "_version"}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_only_from_layers_below(name):
    assert breaches(name.split(".")[0], MODULES[name].read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("core", "from proxbit.nn import BinaryLinear"),
        ("core", "def f():\n    import proxbit.train.config"),
        ("train", "from proxbit.theory.figures import draw"),
        ("engine", "from proxbit import train"),
        ("nn", "import proxbit"),
        ("util", "from proxbit.unheard_of import x"),
    ],
)
def test_a_wrong_import_is_seen(package, source):
    assert breaches(package, source)


def test_the_page_draws_these_layers():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn = page.split("<!-- layers:begin -->")[1].split("<!-- layers:end -->")[0]
    assert [set(line.split()) for line in reversed(drawn.strip().splitlines())] == list(LAYERS)


def test_no_two_modules_have_the_same_name():
    names = Counter(name.rpartition(".")[2] for name in files())
    assert [name for name, count in names.items() if count > 1] == []


def test_no_two_public_classes_have_the_same_name():
    names = Counter(
        node.name
        for path in files().values()
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("name", MODULES)
def test_other_packages_are_imported_only_where_they_may(name):
    allowed = {"torch", "numpy", "proxbit"} | EXTRAS.get(name.split(".")[0], set())
    used = {each.split(".")[0] for each in imports(MODULES[name].read_text(encoding="utf-8"))}
    assert used - allowed - set(sys.stdlib_module_names) == set()


SOURCE = '''"""A module.

Two lines."""

X = 1  # one
# two

def f():
    "Doc."
    return (
        2
    )
'''


def test_comments_docstrings_and_blank_lines_are_no_code(capsys):
    count = runpy.run_path(str(ROOT / "tools" / "count_lines.py"))
    assert count["code_lines"](SOURCE) == 5  # X, def, and the three lines of return
    count["main"](PACKAGE)
    total = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("total"))
    physical = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files().values())
    assert total.split()[1:4:2] == [str(len(files())), str(physical)]
