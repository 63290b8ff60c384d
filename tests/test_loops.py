"""Loops that others wrote: how they save, resume and wrap, and that the schedule goes on."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

import proxbit as pb
from proxbit.binarization.resuming import KEY, bare, unwrapped
from proxbit.util.compat import allow_torchvision

STEPS = 12


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 3))


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(6, 5, generator=generator), torch.randint(3, (6,), generator=generator))
        for _ in range(STEPS)
    ]


class Run:
    """What a script builds anew each time it starts."""

    def __init__(self, method: str = "bnn++", seed: int = 0, task: Any = "BWA") -> None:
        self.model = network(seed)
        pb.binarize(self.model, method, task)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.02)
        self.handle = pb.attach(self.model, self.optimizer, steps=STEPS)

    def train(self, parts: list[tuple[Tensor, Tensor]]) -> None:
        for x, y in parts:
            self.optimizer.zero_grad()
            functional.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()

    def save(self) -> tuple[bytes, dict[str, Any]]:
        """The model's tensors alone, as safetensors keeps them, and the optimizer's checkpoint."""
        safetensors = pytest.importorskip("safetensors.torch")
        return (
            safetensors.save(dict(self.model.state_dict())),
            copy.deepcopy(self.optimizer.state_dict()),
        )

    def load(self, saved: tuple[bytes, dict[str, Any]], order: str = "model first") -> None:
        safetensors = pytest.importorskip("safetensors.torch")
        tensors, state = safetensors.load(saved[0]), saved[1]
        if order == "optimizer first":
            self.optimizer.load_state_dict(state)
        self.model.load_state_dict(tensors, strict=True)
        if order == "model first":
            self.optimizer.load_state_dict(state)


def assert_equal_runs(run: Run, other: Run) -> None:
    for name, value in run.model.state_dict().items():
        assert torch.equal(value, other.model.state_dict()[name]), name
    assert run.handle.state_dict() == other.handle.state_dict()


# Tensors of the model, and the optimizer's own checkpoint ----------------------------------------


@pytest.mark.parametrize("order", ["model first", "optimizer first"])
@pytest.mark.parametrize("method", list(pb.METHODS))
def test_tensors_and_the_optimizers_checkpoint_resume_exactly(method: str, order: str) -> None:
    whole, first, second = Run(method), Run(method), Run(method, seed=7)
    whole.train(batches())
    first.train(batches()[:8])
    second.load(first.save(), order)
    assert second.handle.step == 8
    second.train(batches()[8:])
    assert_equal_runs(whole, second)
    assert second.handle.step == STEPS


@pytest.mark.parametrize("method", ["bnn++", "pq"])
def test_so_they_do_if_attach_comes_after_loading(method: str) -> None:
    whole, first = Run(method), Run(method)
    whole.train(batches())
    first.train(batches()[:8])
    second = Run(method, seed=7)
    second.handle.remove()
    second.load(first.save())
    second.handle = pb.attach(second.model, second.optimizer, steps=STEPS)
    assert second.handle.step == 8
    second.train(batches()[8:])
    assert_equal_runs(whole, second)


def test_the_checkpoint_holds_plain_numbers_and_no_group_keeps_them() -> None:
    run = Run("pq")
    run.train(batches()[:2])
    state = run.optimizer.state_dict()
    held = state["param_groups"][0][KEY]
    assert json.loads(json.dumps(held)) == held == run.handle.state_dict()
    run.optimizer.load_state_dict(state)
    assert KEY in state["param_groups"][0]  # loading leaves a checkpoint as it was
    assert not any(KEY in group for group in run.optimizer.param_groups)
    run.handle.remove()
    assert KEY not in run.optimizer.state_dict()["param_groups"][0]


def test_a_checkpoint_of_hard_weights_stays_hard() -> None:
    first, second = Run(), Run(seed=7)
    first.train(batches()[:3])
    pb.harden(first.model)
    second.load(first.save())
    assert all(weight.quantizer.hard for weight in pb.binary_weights(second.model))
    assert not any(p.requires_grad for p in pb.latent_parameters(second.model))


def test_saving_and_loading_an_optimizer_in_place_changes_nothing() -> None:
    """accelerate does it to move an optimizer; then the model alone may be loaded."""
    run, other = Run("pq"), Run("pq", seed=7)
    run.train(batches()[:5])
    before = run.handle.state_dict()
    run.optimizer.load_state_dict(run.optimizer.state_dict())
    assert run.handle.state_dict() == before
    other.optimizer.load_state_dict(other.optimizer.state_dict())
    other.model.load_state_dict(run.model.state_dict())
    other.train(batches()[5:])
    assert other.handle.step == STEPS


# Contradictions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["model first", "optimizer first"])
def test_a_model_and_an_optimizer_of_different_steps_are_refused(order: str) -> None:
    early, late, run = Run(), Run(), Run(seed=7)
    early.train(batches()[:3])
    late.train(batches()[:8])
    model, optimizer = early.model.state_dict(), copy.deepcopy(late.optimizer.state_dict())
    words = r"the model was loaded at step 3 and its optimizer at step 8: load both from the same"

    def load() -> None:
        if order == "optimizer first":
            run.optimizer.load_state_dict(optimizer)
            run.model.load_state_dict(model)
            run.train(batches()[:1])
        run.model.load_state_dict(model)
        run.optimizer.load_state_dict(optimizer)

    with pytest.raises(ValueError, match=words):
        load()
    run.optimizer.load_state_dict(copy.deepcopy(early.optimizer.state_dict()))  # it shares
    run.model.load_state_dict(model)
    run.train(batches()[3:])
    early.train(batches()[3:])
    assert_equal_runs(early, run)


def test_attach_refuses_them_too() -> None:
    early, late, run = Run(), Run(), Run(seed=7)
    early.train(batches()[:3])
    late.train(batches()[:8])
    run.handle.remove()
    run.model.load_state_dict(early.model.state_dict())
    run.optimizer.load_state_dict(late.optimizer.state_dict())
    with pytest.raises(ValueError, match="at step 3 and its optimizer at step 8"):
        pb.attach(run.model, run.optimizer, steps=STEPS)


def test_the_optimizer_of_another_model_is_refused() -> None:
    run, other = Run(task="BW"), Run(task="BWA")
    with pytest.raises(ValueError, match=r"of another model: .*quantizer' is only in one"):
        run.optimizer.load_state_dict(other.optimizer.state_dict())


def test_an_optimizers_checkpoint_without_a_step_is_told_once() -> None:
    run, plain = Run(), torch.optim.Adam(network().parameters(), lr=0.02)
    run.optimizer.load_state_dict(plain.state_dict())
    with pytest.warns(pb.SettingsWarning, match="the schedule starts at step 0") as told:
        run.train(batches()[:2])
    assert len(told) == 1


def test_with_a_model_that_knows_its_step_it_is_not(recwarn: pytest.WarningsRecorder) -> None:
    run, old = Run(), Run(seed=7)
    old.train(batches()[:4])
    old.handle.remove()  # as checkpoints were written before the optimizer kept the step
    run.optimizer.load_state_dict(old.optimizer.state_dict())
    run.model.load_state_dict(old.model.state_dict())
    run.train(batches()[4:6])
    assert run.handle.step == 6
    assert not recwarn


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("2.binary", "2.binary"),
        ("module.2.binary", "2.binary"),
        ("module._orig_mod.2.binary", "2.binary"),
        ("blocks.0._orig_mod.fc", "blocks.0.fc"),
        ("blocks.module.fc", "blocks.module.fc"),
        ("module", "module"),
    ],
)
def test_names_are_those_without_wrappers(name: str, expected: str) -> None:
    assert bare(name) == expected


def test_a_compiled_or_averaged_model_resumes_a_plain_one() -> None:
    first = Run()
    first.train(batches()[:4])
    saved = copy.deepcopy(first.optimizer.state_dict())
    for wrap in (torch.compile, torch.optim.swa_utils.AveragedModel):
        model = network()
        pb.binarize(model, "bnn++", "BWA")
        wrapped: Any = wrap(model)
        optimizer = torch.optim.Adam(wrapped.parameters(), lr=0.02)
        handle = pb.attach(wrapped, optimizer, steps=STEPS)
        optimizer.load_state_dict(saved)
        assert handle.step == 4


# Wrapped optimizers ------------------------------------------------------------------------------


class Lightning:
    """Lightning's wrapper in short: no state of its own, and the class of the optimizer inside."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self.__class__ = type("LightningAdam", (Lightning, type(optimizer)), {})

    @property
    def optimizer(self) -> Optimizer:
        return self._optimizer

    def step(self, closure: Any = None) -> Any:
        return self._optimizer.step(closure)

    def __getattr__(self, item: str) -> Any:
        return getattr(self._optimizer, item)


class Fabric:
    """Fabric's: the same with a copy of the optimizer's attributes."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.__dict__ = dict(optimizer.__dict__)
        self.__class__ = type("FabricAdam", (Fabric, type(optimizer)), {})
        self._optimizer = optimizer

    def step(self, closure: Any = None) -> Any:
        return self._optimizer.step(closure)


class Slow(Optimizer):
    """An optimizer of its own that steps another one, as Lookahead does."""

    def __init__(self, inner: Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.optimizer = inner

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)


def test_wrappers_are_looked_through_and_optimizers_of_their_own_are_not() -> None:
    inner = torch.optim.Adam(network().parameters(), lr=0.02)
    wrappers: list[Any] = [inner, Lightning(inner), Fabric(inner), Lightning(Fabric(inner))]
    for wrapper in wrappers:
        assert unwrapped(wrapper) is inner
    slow = Slow(inner)
    assert unwrapped(slow) is slow
    assert unwrapped(Lightning(slow)) is slow
    with pytest.raises(TypeError, match=r"takes a torch\.optim\.Optimizer, not list"):
        unwrapped([])


@pytest.mark.parametrize("wrap", [Lightning, Fabric])
def test_a_wrapped_optimizer_trains_as_the_one_inside(wrap: Any) -> None:
    plain, run = Run(), Run()
    run.handle.remove()
    run.optimizer = wrap(run.optimizer)
    run.handle = pb.attach(run.model, run.optimizer, steps=STEPS)
    with pytest.raises(ValueError, match="attached already"):
        pb.attach(run.model, unwrapped(run.optimizer), steps=STEPS)
    for each in (plain, run):
        each.train(batches())
    assert_equal_runs(plain, run)


@pytest.mark.parametrize("when", ["before", "after"])
def test_accelerates_wrapper_trains_saves_and_resumes(when: str, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")

    def prepared(seed: int) -> tuple[Run, Any]:
        accelerator = accelerate.Accelerator(cpu=True)
        run = Run(seed=seed)
        if when == "after":
            run.handle.remove()
        run.model, run.optimizer = accelerator.prepare(run.model, run.optimizer)
        if when == "after":
            run.handle = pb.attach(run.model, run.optimizer, steps=STEPS)
        return run, accelerator

    whole = Run()
    whole.train(batches())
    first, accelerator = prepared(0)
    first.train(batches()[:8])
    accelerator.save_state(str(tmp_path))
    second, accelerator = prepared(7)
    accelerator.load_state(str(tmp_path))
    assert second.handle.step == 8
    second.train(batches()[8:])
    assert_equal_runs(whole, second)


# transformers' Trainer ---------------------------------------------------------------------------


def trainer(folder: Path, steps: int, attach: str) -> Any:
    """A tiny BERT in a real Trainer that saves as it does by default; ``attach`` says where."""
    allow_torchvision()
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=8,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config)
    pb.binarize(model, "bnn++")
    generator = torch.Generator().manual_seed(3)
    data = [
        {"input_ids": torch.randint(20, (6,), generator=generator), "labels": i % 2}
        for i in range(16)
    ]
    handles = []

    class Attach(transformers.TrainerCallback):
        def on_train_begin(self, args, state, control, model=None, optimizer=None, **_):
            handles.append(pb.attach(model, optimizer, steps=state.max_steps))

    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=steps, save_steps=4, per_device_train_batch_size=4,
        report_to=[], use_cpu=True, disable_tqdm=True, learning_rate=1e-2, seed=0,
    )  # fmt: skip
    optimizers, callbacks = (None, None), []
    if attach == "at once":
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        optimizers = (optimizer, None)
        handles.append(pb.attach(model, optimizer, steps=steps))
    else:
        callbacks.append(Attach())
    made = transformers.Trainer(
        model, arguments, train_dataset=data, optimizers=optimizers, callbacks=callbacks
    )
    made.handles = handles
    return made


@pytest.mark.parametrize("attach", ["at once", "in a callback"])
def test_the_trainer_of_transformers_resumes_the_schedule(attach: str, tmp_path: Path) -> None:
    whole = trainer(tmp_path, 12, attach)
    whole.train()
    resumed = trainer(tmp_path, 12, attach)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    assert whole.handles[0].step == resumed.handles[0].step == 12
    assert whole.handles[0].state_dict() == resumed.handles[0].state_dict()
    assert all(weight.quantizer.sharp for weight in pb.binary_weights(resumed.model))
    for name, value in whole.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[name], value, msg=name)


def test_attach_names_weights_that_were_frozen_after_binarize() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    pb.binarize(model, "bc", only="*")
    model[2].weight.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(pb.SettingsWarning, match=r"1 of 3 binary weights are frozen .*2\.weight"):
        pb.attach(model, optimizer, steps=3)
