"""What every test shares: the same random numbers each time, and how Hypothesis searches."""

import gc
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

from every_backend import EXECUTED

_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
# The same examples in every run; `pytest --hypothesis-profile explore` looks for new ones.
settings.register_profile("same", max_examples=12, derandomize=True, database=None, **_COMMON)
settings.register_profile("explore", max_examples=500, **_COMMON)
settings.load_profile("same")

# Our tensors are tiny: threads would only wait for each other, here and in the tests' processes.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

# A shell's job in the background ignores Ctrl-C, and so would the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of pytest-xdist tells the first one on which backends its tests ran."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["backends"] = sorted(EXECUTED)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    EXECUTED.update(getattr(node, "workeroutput", {}).get("backends", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Which backends were built, and on which the tests of kernels really ran."""
    from proxbit.kernels.library import backends

    built, _, chosen = backends()
    ran = ", ".join(f"{name} {'ran' if name in EXECUTED else 'did not run'}" for name in built)
    about = ran if EXECUTED else "no test chose a backend" if built else "not built"
    terminalreporter.write_line(f"kernels: {about}; {chosen} is in use")


@pytest.fixture(autouse=True)
def same_random_numbers() -> Iterator[None]:
    """Each test starts from one seed and leaves the generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture
def use_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Choose kernels in the midst of a process, which nobody else can: the choice is made once."""
    from proxbit.kernels.library import choice, opened

    def use(value: str) -> None:
        monkeypatch.setenv("PROXBIT_KERNELS", value)
        forget()

    def forget() -> None:
        choice.cache_clear()
        opened.cache_clear()

    yield use
    monkeypatch.undo()
    forget()
    opened()


@pytest.fixture(scope="module")
def light_garbage() -> Iterator[None]:
    """Each training run collects garbage once: let it not look at all that was imported."""
    gc.freeze()
    yield
    gc.unfreeze()
