"""proxbit-runtime: networks in ONNX Runtime with nothing of torch."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("PIL")

import proxbit_runtime
from proxbit_runtime import networks
from proxbit_runtime.__main__ import main
from proxbit_runtime.images import InputForm

from proxbit.kernels.library import library_file

ROOT = Path(__file__).resolve().parents[1]
NETS = ROOT / "tests" / "runtime_nets"
TASKS = ("bw", "bwa", "bwaa")
# What the runtime may import beside the standard library.
BORROWED = ("numpy", "numpy.libs", "onnxruntime", "flatbuffers", "google", "packaging", "PIL")


@pytest.fixture(autouse=True)
def library_of_proxbit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same library, which an editable install has elsewhere."""
    monkeypatch.setattr(networks, "library", library_file)


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (30, 41, 3)).astype("u1")
    Image.fromarray(pixels).save(tmp_path / "cat.png")
    return tmp_path / "cat.png"


@pytest.mark.parametrize("task", TASKS)
def test_the_stored_networks_give_the_stored_outputs(task: str) -> None:
    held = np.load(NETS / f"{task}.npz")
    found = proxbit_runtime.load(NETS / f"{task}.onnx", threads=1)(held["x"])
    np.testing.assert_allclose(found, held["y"], rtol=1e-5, atol=1e-5)


def test_an_image_becomes_the_very_input_that_proxbit_makes_of_it(picture: Path) -> None:
    from proxbit.deploy.image_inputs import InputForm as OurForm
    from proxbit.deploy.image_inputs import read_image

    for crop in (1.0, 0.8):
        form = {"shape": [3, 12, 10], "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4], "crop": crop}
        ours = read_image(str(picture), OurForm.of(form)).numpy()
        np.testing.assert_allclose(InputForm.of(form).read(str(picture)), ours, atol=1e-6)


def test_the_command_names_the_best_classes(picture: Path, capsys: Any) -> None:
    assert main([str(NETS / "bwa.onnx"), str(picture), "--top", "2"]) == 0
    name, *lines = capsys.readouterr().out.strip().splitlines()
    assert name == str(picture) and len(lines) == 2 and all(" %  " in line for line in lines)
    assert main([str(NETS / "bwa.onnx"), str(picture), "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    top = json.loads(line)["top"]
    assert sorted(guess["label"] for guess in top) == ["ant", "bee", "cat", "dog", "élan"]
    assert sum(guess["share"] for guess in top) == pytest.approx(1)


def test_the_command_times_a_network(capsys: Any) -> None:
    given = [str(NETS / "bw.onnx"), "--bench", "--seconds", "0", "--batch-size", "3", "--json"]
    assert main(given) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["batch_size"] == 3 and 0 < facts["best_ms"] <= facts["median_ms"]


def test_mistakes_are_one_sentence(tmp_path: Path, picture: Path, capsys: Any) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes((NETS / "bwa.onnx").read_bytes()[:900])
    for given, sentence in (
        ([str(tmp_path / "none.onnx"), str(picture)], "there is no file"),
        ([str(broken), str(picture)], "cannot load"),
        ([str(NETS / "bwa.onnx")], "give image files, or --bench"),
        ([str(NETS / "bwa.onnx"), str(broken)], "cannot read the image"),
    ):
        assert main(given) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert line.startswith("proxbit-runtime: ") and sentence in line


@pytest.mark.parametrize(
    "given",
    [["--threads", "100000"], ["--threads", "0"], ["--seconds", "nan"], ["--seconds", "-1"],
     ["--seconds", "soon"], ["--batch-size", "0"]],
)  # fmt: skip
def test_numbers_that_make_no_sense_are_told(given: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main([str(NETS / "bwa.onnx"), "--bench", *given])
    assert f"not '{given[1]}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "form",
    [
        {}, {"shape": [3, 4]}, {"shape": [3, 0, 4]}, {"shape": [3, 4, 4], "std": [0, 1, 1]},
        {"shape": [1, 4, 4], "mean": [1, 2]}, {"shape": [1, 4, 4], "crop": 0}, [], "x",
        {"shape": [1, 10**9, 4]}, {"shape": [1, 4, 4], "mean": [float("nan")]},
    ],
)  # fmt: skip
def test_an_input_that_makes_no_sense_is_refused(form: Any) -> None:
    with pytest.raises(ValueError, match="the file's input makes no sense"):
        InputForm.of(form)


def test_a_missing_library_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from proxbit_runtime import operators

    monkeypatch.setattr(operators, "__file__", str(tmp_path / "operators.py"))
    with pytest.raises(FileNotFoundError, match="installed without libproxbit"):
        operators.library()


def test_the_snippets_of_the_page_run_in_order(
    tmp_path: Path, picture: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(proxbit_runtime, "library", library_file)
    monkeypatch.chdir(tmp_path)
    shutil.copy(NETS / "bwa.onnx", tmp_path / "net.onnx")
    text = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    names = {"images": np.load(NETS / "bwa.npz")["x"]}
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(code, names)
    assert len(capsys.readouterr().out.splitlines()) == 3


SCRIPT = """
import importlib.util, sys
import numpy as np
assert importlib.util.find_spec("torch") is None and importlib.util.find_spec("proxbit") is None
import proxbit_runtime
for name in sys.argv[2:]:
    held = np.load(f"{sys.argv[1]}/{name}.npz")
    found = proxbit_runtime.load(f"{sys.argv[1]}/{name}.onnx")(held["x"])
    print(name, float(np.abs(found - held["y"]).max()))
"""


@pytest.mark.slow
def test_a_wheel_runs_networks_where_there_is_no_torch(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path / "wheels")
    assert wheel.name.endswith(".whl") and "-py3-none-" in wheel.name
    assert wheel.stat().st_size < 1_000_000
    python = empty_environment(tmp_path / "venv")
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps"]
    subprocess.run([*install, "--quiet", str(wheel)], check=True)
    done = subprocess.run(
        [python, "-c", SCRIPT, str(NETS), *TASKS], check=True, capture_output=True, text=True,
        env=clean(),
    )  # fmt: skip
    lines = dict(line.split() for line in done.stdout.splitlines())
    assert lines.keys() == set(TASKS) and max(map(float, lines.values())) < 1e-5
    command = [python, "-m", "proxbit_runtime", str(NETS / "bwa.onnx"), "--bench", "--seconds", "0"]
    subprocess.run(command, check=True, capture_output=True, env=clean())


@pytest.mark.slow
def test_the_operators_run_without_onnx_runtime_on_a_program_that_plays_its_side(
    tmp_path: Path,
) -> None:
    """The program that tools/arm.sh runs under emulation."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    program = tmp_path / "ort_host"
    source = ROOT / "tools" / "ort_host.cpp"
    subprocess.run([compiler, "-std=c++17", source, "-o", program, "-ldl"], check=True)
    done = subprocess.run([program, library_file()], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "96 layers tried, 0 wrong\n")


def clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def build_wheel(folder: Path) -> Path:
    """The wheel, with the library that is built already: compiling it again proves nothing here."""
    pytest.importorskip("scikit_build_core")
    if shutil.which("cmake") is None:
        pytest.skip("needs cmake")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    prebuilt = f"--config-settings=cmake.define.PROXBIT_PREBUILT={library_file()}"
    place = folder.parent / "repository"
    for name in ("runtime", "csrc"):
        ignored = shutil.ignore_patterns("shared", "build", "__pycache__")
        shutil.copytree(ROOT / name, place / name, ignore=ignored)
    (place / "src" / "proxbit").mkdir(parents=True)
    for name in ("CMakeLists.txt", "LICENSE", "src/proxbit/_version.py"):
        shutil.copy(ROOT / name, place / name)
    subprocess.run([*command, prebuilt, "-w", str(folder), str(place / "runtime")], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def empty_environment(folder: Path) -> Path:
    """A fresh virtual environment with numpy and onnxruntime, lent by this one, and no more."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    import onnxruntime

    lent = Path(onnxruntime.__file__).parents[1]
    for name in BORROWED:
        if (lent / name).is_dir():
            (site / name).symlink_to(lent / name)
    return folder / "bin" / f"python{sysconfig.get_config_var('EXE') or ''}"
