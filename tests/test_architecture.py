"""The table of imports in docs/architecture.md is the code's."""

import ast
import re
from pathlib import Path

import proxbit

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(proxbit.__file__).parent


def stated() -> dict[str, set[str]]:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.split("<!-- imports:begin -->")[1].split("<!-- imports:end -->")[0]
    rows = [line.split("|")[1:-1] for line in table.strip().splitlines()[2:]]
    return {row[0].strip().strip("`"): set(re.findall(r"`([^`]+)`", row[2])) for row in rows}


def modules() -> dict[str, Path]:
    files = {path: path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py")}
    named = {".".join(rel.parts).removesuffix(".__init__"): path for path, rel in files.items()}
    return {name: path for name, path in named.items() if name != "__init__"}


def imported(path: Path, known: set[str]) -> set[str]:
    """Our modules that a file imports, by name without the package."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "proxbit":
            module = (node.module or "").removeprefix("proxbit").lstrip(".")
            inside = {f"{module}.{alias.name}".lstrip(".") for alias in node.names} & known
            found |= inside or {module}
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            found |= {
                name.removeprefix("proxbit.") for name in names if name.startswith("proxbit.")
            }
    return found


def test_the_table_lists_exactly_the_modules_there_are():
    assert set(stated()) == set(modules())


def test_every_module_imports_what_the_table_says():
    known = set(modules())
    actual = {name: imported(path, known) for name, path in modules().items()}
    assert actual == stated()


def test_imports_only_go_up_the_table():
    order = list(stated())
    for name, uses in stated().items():
        for used in uses:
            assert order.index(used) < order.index(name), f"{name} imports {used} from below"


# Who may use what besides torch and numpy; data.extras opens PIL, torchvision and timm by name.
EXTRAS = {
    "cli": {"typer", "rich"},
    "cli_engine": {"typer", "rich"},
    "cli_errors": {"typer"},
    "cli_experiments": {"typer", "rich"},
    "cli_report": {"typer"},
    "cli_select": {"typer", "rich"},
    "cli_train": {"typer", "rich"},
    "demo": {"rich"},
    "engine.file": {"safetensors"},
    "experiments.board": {"rich"},
    "experiments.on_ray": {"ray"},
    "models.files": {"safetensors"},
    "models.from_timm": {"timm"},
    "models.resampling": {"timm"},
    "theory.pictures": {"matplotlib"},
    "theory.galleries": {"matplotlib"},
    "train.checkpoint": {"safetensors"},
    "train.display": {"rich"},
    "train.showing": {"matplotlib"},
    "train.team": {"accelerate"},
}


def test_nothing_but_torch_and_numpy_is_imported_by_the_library():
    allowed = {"torch", "numpy", "proxbit"}
    standard = __import__("sys").stdlib_module_names
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for used in names:
                top = used.split(".")[0]
                extra = top in EXTRAS.get(name, set())
                assert top in allowed or top in standard or extra, f"{name} imports {used}"
