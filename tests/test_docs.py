"""Pages that cannot lie: every snippet runs, every generated table is current."""

import io
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import proxbit as pb
from proxbit.util.compat import allow_torchvision
from small_net import NET

ROOT = Path(__file__).resolve().parents[1]


def new_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 4, 3, stride=2), nn.Flatten(), nn.Linear(36, 3),
    )  # fmt: skip


def snippets(page: str) -> list[pytest.ParameterSet]:
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks, f"{page} has no snippets"
    return [pytest.param(block, id=f"{page}:{i}") for i, block in enumerate(blocks)]


PAGES = ("README.md", "docs/howto.md", "docs/data.md", "docs/training.md")


@pytest.mark.parametrize("code", [block for page in PAGES for block in snippets(page)])
@pytest.mark.filterwarnings("ignore::proxbit.SettingsWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_snippet_runs(code, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # snippets write files
    if "import transformers" in code:
        allow_torchvision()
        pytest.importorskip("transformers")
    torch.manual_seed(0)
    batches = [(torch.randn(4, 1, 8, 8), torch.randint(0, 3, (4,))) for _ in range(3)]
    example = torch.randn(2, 1, 8, 8)
    names = {
        "torch": torch, "pb": pb, "io": io, "model": new_model(), "new_model": new_model,
        "loader": batches, "epochs": 2, "example": example,
    }  # fmt: skip
    exec(code, names)


def test_the_snippet_about_selection_runs(tmp_path, monkeypatch, capsys):
    """With a small network and small images in the files that it names."""
    (tmp_path / "net.py").write_text(NET.replace("def net(", "def build("))
    random, labels = np.random.default_rng(0), np.arange(300) % 3
    images = random.integers(0, 256, (300, 8, 8, 3), dtype="u1")
    np.savez(tmp_path / "images.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    monkeypatch.chdir(tmp_path)
    (block,) = snippets("docs/select.md")
    exec(block.values[0], {})
    assert "proxbit train --method b" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_snippets_about_models_run_in_order():
    allow_torchvision()
    pytest.importorskip("timm")
    names: dict[str, object] = {}
    for block in snippets("docs/models.md"):
        exec(block.values[0], names)


def test_the_first_snippet_of_the_readme_ends_with_a_hard_network(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    torch.manual_seed(0)
    batches = [(torch.randn(4, 1, 8, 8), torch.randint(0, 3, (4,))) for _ in range(3)]
    names = {"model": new_model(), "loader": batches, "epochs": 2}
    exec(code, names)
    for weight in pb.binary_weights(names["hard"]):
        for channel in weight.latent:
            assert channel.abs().unique().numel() == 1
    assert "hardening changes 2 weights (BNN++)" in capsys.readouterr().out


def test_generated_tables_are_current():
    script = ROOT / "tools" / "write_docs.py"
    result = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("tool", ["draw_overview.py", "summarize_results.py"])
def test_pictures_and_tables_of_results_are_current(tool):
    script = ROOT / "tools" / tool
    result = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_links_between_pages_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_method_has_a_formula_in_the_table():
    table = runpy.run_path(str(ROOT / "tools" / "write_docs.py"))["methods_table"]()
    for method in pb.METHODS.values():
        assert f"| {method.name} |" in table


def test_the_readme_names_both_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text and "make test" in text


def test_the_docs_claim_about_raw_transformer_weights_holds():
    """docs/methods.md: at std 0.02 BNN++ with mu = 30 has 3 % of its weights within 5 % of +-1."""
    torch.manual_seed(0)
    f = pb.maps.sign_swish(0.02 * torch.randn(200_000), 30.0)
    share = ((f.abs() - 1).abs() <= 0.05).float().mean()
    assert 0.025 < share < 0.035
