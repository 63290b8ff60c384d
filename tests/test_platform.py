"""Where proxbit runs, and what it says elsewhere."""

import os
import subprocess
import sys

import pytest

# What only POSIX has: Windows lacks it.
WITHOUT_POSIX = """
import os, sys, safetensors.torch, torch._dynamo  # which need it themselves
sys.modules["fcntl"] = None
for name in ("getuid", "O_NOFOLLOW", "O_CLOEXEC"):
    delattr(os, name)
from proxbit.train import Config, fit, resume_run
config = Config(epochs=2, max_steps_per_epoch=1, batch_size=8, recalibrate=1)
records = fit(config, sys.argv[1])
next(records)
records.close()
print([record.epoch for record in resume_run(sys.argv[1])])
"""


def test_a_run_trains_and_resumes_where_there_are_no_posix_locks(tmp_path):
    command = [sys.executable, "-c", WITHOUT_POSIX, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("[2]\n", "", 0)


# Heavy, and of no use before somebody asks for them.
LATE = (
    "PIL", "accelerate", "matplotlib", "onnx", "pandas", "proxbit.cli", "proxbit.data",
    "proxbit.export", "proxbit.theory", "proxbit.train", "rich", "scipy", "timm", "torch._dynamo",
    "torch._inductor", "torch.onnx", "torchvision", "transformers", "typer",
)  # fmt: skip


def test_importing_proxbit_imports_nothing_heavy():
    names = "before = set(sys.modules); import proxbit; print(*sys.modules.keys() - before)"
    code = f"import sys, torch; {names}"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = said.stdout.split()
    assert [
        name
        for name in found
        if name.startswith(tuple(f"{late}." for late in LATE)) or name in LATE
    ] == []


def test_what_is_imported_late_is_there_when_asked_for():
    code = "import proxbit as pb; print(pb.theory.check(pb.bnn).admitted, pb.export_onnx.__name__)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["True", "export_onnx"]


@pytest.mark.parametrize(
    ("variable", "value", "status", "said"),
    [
        ("PROXBIT_KERNELS", "portable", 0, "kernels: portable"),
        ("PROXBIT_KERNELS", "torch", 0, "no kernels: PROXBIT_KERNELS is 'torch'"),
        ("PROXBIT_KERNELS", "quantum", 2, "unknown value of PROXBIT_KERNELS 'quantum'"),
        ("PROXBIT_LIBRARY", "/nowhere.so", 0, "no kernels: install proxbit again with a C++"),
    ],
)
def test_the_version_says_what_computes(variable, value, status, said):
    command = [sys.executable, "-m", "proxbit", "--version"]
    plain = {k: v for k, v in os.environ.items() if not k.startswith("PROXBIT_")}
    done = subprocess.run(
        command, env=plain | {variable: value}, capture_output=True, text=True, check=False
    )
    assert done.returncode == status
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
