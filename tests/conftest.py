"""What every test shares: the same random numbers each time, and how Hypothesis searches."""

import gc
import os
import signal
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

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


@pytest.fixture(autouse=True)
def same_random_numbers() -> Iterator[None]:
    """Each test starts from one seed and leaves the generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture
def use_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Choose kernels in the midst of a process, which nobody else can: the choice is made once."""
    from proxbit.kernels.library import choice

    def use(value: str) -> None:
        monkeypatch.setenv("PROXBIT_KERNELS", value)
        choice.cache_clear()

    yield use
    monkeypatch.undo()
    choice.cache_clear()


@pytest.fixture(scope="module")
def light_garbage() -> Iterator[None]:
    """Each training run collects garbage once: let it not look at all that was imported."""
    gc.freeze()
    yield
    gc.unfreeze()
