"""The user's own files: what they offer, what they are called with, and what is refused."""

import copy
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from proxbit.models import build, user_object

HEAD = "import torch\nfrom torch import nn\nfrom pathlib import Path as Place\n"
NET = """
class Net(nn.Module):
    def __init__(self, classes, channels=3):
        super().__init__()
        self.drop, self.head = nn.Dropout().eval(), nn.Linear(channels, classes)
    def forward(self, x):
        return self.head(self.drop(x.mean((2, 3))))
"""
SIZES = {"classes": 4, "channels": 2, "image_size": 6}


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., str]:
    def write(text: str, name: str = "net.py") -> str:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(HEAD + text + "\n", encoding="utf-8")
        return str(tmp_path / name)

    return write


def refusal(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    with pytest.raises((ValueError, TypeError)) as caught:
        call(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


@given(
    takes=st.sets(st.sampled_from(list(SIZES))),
    gives=st.sets(st.sampled_from(list(SIZES)), min_size=1),
    every=st.booleans(),
)
def test_a_function_gets_exactly_those_sizes_that_it_takes(
    tmp_path_factory: pytest.TempPathFactory, takes: set[str], gives: set[str], every: bool
) -> None:
    parameters = [f"{name}=None" for name in sorted(takes)] + ["**more"] * every
    got = ", ".join(f"{name}={name}" for name in sorted(takes)) + ", **more" * every
    path = tmp_path_factory.mktemp("user") / "net.py"
    path.write_text(
        f"{HEAD}def make({', '.join(parameters)}):\n"
        f"    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(4))\n"
        f"    model.got = dict({got.removeprefix(', ')})\n"
        f"    return model\n"
    )
    given_sizes = {name: SIZES[name] for name in gives} | {"classes": 4}
    model = build(f"{path}:make", **given_sizes)
    told = {"channels": 3, **given_sizes}
    expected = {name: told.get(name) for name in (takes | set(told) if every else takes)}
    assert model.got == expected


def test_a_class_makes_a_model_and_options_reach_it(file: Callable[..., str]) -> None:
    path = file(NET + "def wide(classes, width=1): return Net(classes * width, 3)")
    assert build(f"{path}:Net", **SIZES).head.weight.shape == (4, 2)
    assert build(f"{path}:wide", classes=4, width=3).head.weight.shape == (12, 3)
    assert "did you mean 'width'" in refusal(build, f"{path}:wide", widht=3)
    assert "unknown option" in refusal(build, f"{path}:wide", pretrained=True)
    assert "unknown option" in refusal(build, f"{path}:wide", patch_size=4)
    assert "'hight, patch_size': known" in refusal(build, f"{path}:wide", hight=2, patch_size=4)


def test_the_trial_takes_no_random_numbers(file: Callable[..., str]) -> None:
    path, draws = file(NET.replace("x.mean", "torch.rand_like(x).mean")), []
    for size in (None, 6):
        torch.manual_seed(5)
        build(f"{path}:Net", classes=4, image_size=size)
        draws.append(torch.rand(()))
    assert draws[0] == draws[1]


def test_the_trial_keeps_the_modes_of_the_users_modules(file: Callable[..., str]) -> None:
    model = build(f"{file(NET)}:Net", **SIZES)
    assert model.training and model.head.training and not model.drop.training


REFUSED = {
    "make = 5": "is a int: name a function or class",
    "make = nn.Linear(3, 10)": "is a Linear: name a function or class",
    "def make(): return 'net'": "returned a str: it must return an nn.Module",
    "def make(): raise OSError('no disc\\nhere')": "make does not run: OSError: no disc",
    "def make(depth): return nn.Linear(3, 10)": "'depth'; give it a default or pass it as an opt",
    "def make(): return nn.Linear(8, 10)": "gives (1, 3, 8, 10) for one image: it must give (1, 10",
    "def make(): return nn.Linear(9, 10)": "does not take images of 8x8 with 3 channel(s)",
    "def make(): return nn.Sequential(nn.Flatten(), nn.RNN(192, 10))": "gives tuple for one image",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_makes_no_model_is_said_in_one_sentence(text: str, file: Callable[..., str]) -> None:
    assert REFUSED[text] in refusal(build, f"{file(text)}:make", image_size=8)


# objects


def test_an_object_is_the_one_of_its_name_and_kind(file: Callable[..., str]) -> None:
    path = file("five = 5\nflag = True\nword = 'five'")
    assert user_object(f"{path}:five") == 5
    assert user_object(f"{path}:word", str) == "five"
    message = refusal(user_object, f"{path}:five", str)
    assert message == f"{path} has a int, not a str, as 'five'; its strs: word"


def test_a_missing_name_is_answered_with_what_the_file_has_of_its_own(
    file: Callable[..., str],
) -> None:
    path = file(NET + "def make(): ...\n_hidden = 1\nrate = 0.1")
    for name in ("mak", "", "__nothing__"):
        message = refusal(user_object, f"{path}:{name}")
        assert message == f"{path} has no {name!r}; its objects: Net, make, rate"
    assert refusal(user_object, f"{path}:x", dict).endswith("its dicts: none")


@pytest.mark.parametrize("spec", ["net.py", "net.txt:make", ":make", "make", "", "net.py:"])
def test_a_spec_names_a_python_file_and_an_object(spec: str, file: Callable[..., str]) -> None:
    message = refusal(user_object, spec)
    assert "write FILE.py:NAME" in message or "there is no file 'net.py'" in message


def test_a_missing_file_and_a_folder_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    for name in ("nowhere.py", "folder.py"):
        spec = f"{tmp_path / name}:make"
        assert "there is no file" in refusal(user_object, spec) == refusal(build, spec)


@pytest.mark.parametrize(
    "text", ["1 / 0", "def broken(:", "import no_such_module", "raise SystemExit(0)", "exit(3)"]
)
def test_a_file_that_does_not_run_leaves_nothing_behind(
    text: str, file: Callable[..., str]
) -> None:
    modules, path = set(sys.modules), list(sys.path)
    assert "does not run" in refusal(user_object, f"{file(text)}:make")
    assert not [name for name in set(sys.modules) - modules if "proxbit_user" in name]
    assert sys.path == path


def test_a_file_may_import_the_one_beside_it(file: Callable[..., str]) -> None:
    file("def size(): return 7", "beside_the_net.py")
    path = file("from beside_the_net import size\nseven = size()")
    before = list(sys.path)
    assert user_object(f"{path}:seven") == 7
    assert sys.path == before
    sys.modules.pop("beside_the_net")


def test_a_file_beside_it_hides_nothing_that_is_installed(file: Callable[..., str]) -> None:
    file("raise RuntimeError('shadowed')", "this.py")
    path = file("import this as wisdom\nwhere = wisdom.__file__")
    assert "net.py" not in user_object(f"{path}:where")


def test_models_of_two_files_of_one_name_live_side_by_side(file: Callable[..., str]) -> None:
    first = build(f"{file(NET, 'a/net.py')}:Net", classes=4)
    second = build(f"{file(NET, 'b/net.py')}:Net", classes=5)
    for model in (first, second):
        again = copy.deepcopy(pickle.loads(pickle.dumps(model)))
        assert type(again) is type(model)
        assert torch.equal(again.head.weight, model.head.weight)


def test_the_users_model_trains_like_any_other(file: Callable[..., str]) -> None:
    model = build(f"{file(NET)}:Net", **SIZES)
    nn.functional.cross_entropy(model(torch.randn(3, 2, 6, 6)), torch.arange(3)).backward()
    assert model.head.weight.grad is not None and model.head.weight.grad.abs().sum() > 0
