"""Steps on some of a transformer's patches, and runs that are not evaluated after each epoch."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from proxbit.models import build
from proxbit.train import Config, fit, open_run
from proxbit.train.distillation import Distiller
from proxbit.train.patch_drop import PatchDrop
from proxbit.train.showing import RunView, compare

pytestmark = pytest.mark.usefixtures("light_garbage")


class Stub(nn.Module):
    """What a vision transformer of timm shows: tokens pass ``patch_drop`` on their way."""

    def __init__(self, prefix: int) -> None:
        super().__init__()
        self.patch_drop, self.num_prefix_tokens = nn.Identity(), prefix

    def forward(self, tokens: Tensor) -> Tensor:
        kept: Tensor = self.patch_drop(tokens)
        return kept


def tokens_of(images: int, tokens: int) -> Tensor:
    """Tokens that say which image and which place they are of."""
    return torch.cartesian_prod(torch.arange(images), torch.arange(tokens)).view(images, tokens, 2)


@settings(max_examples=40)
@given(
    images=st.integers(1, 4),
    patches=st.integers(1, 20),
    prefix=st.integers(0, 2),
    share=st.floats(0, 0.99),
)
def test_kept_tokens_are_the_first_ones_and_different_patches_of_the_same_image(
    images: int, patches: int, prefix: int, share: float
) -> None:
    model, given_ = Stub(prefix), tokens_of(images, prefix + patches)
    drop = PatchDrop(share, model)
    with drop.dropping():
        kept = model(given_)
    assert kept.shape == (images, prefix + max(round(patches * (1 - share)), 1), 2)
    assert torch.equal(kept[:, :prefix], given_[:, :prefix])
    for image, places in zip(kept[..., 0], kept[:, prefix:, 1].tolist(), strict=True):
        assert len(image.unique()) == 1
        assert len(set(places)) == len(places) and all(place >= prefix for place in places)


def test_networks_see_the_same_patches_in_a_step_and_others_in_the_next() -> None:
    one, two, given_ = Stub(1), Stub(1), tokens_of(2, 50)
    drop, seen = PatchDrop(0.5, one, two), []
    for _ in range(2):
        with drop.dropping():
            seen.append(one(given_))
            assert torch.equal(two(given_), seen[-1])
    assert not torch.equal(*seen)


def test_nothing_is_dropped_outside_of_a_step_or_after_the_hooks_are_gone() -> None:
    model, given_ = Stub(1), tokens_of(2, 9)
    drop = PatchDrop(0.5, model)
    assert torch.equal(model(given_), given_)
    for handle in drop.handles:
        handle.remove()
    with drop.dropping():
        assert torch.equal(model(given_), given_)


def test_a_student_that_equals_its_teacher_stays_equal_on_some_patches() -> None:
    student, teacher = (build("tiny_vit", classes=3, channels=1, image_size=28) for _ in "ab")
    teacher.load_state_dict(student.state_dict())
    drop, x = PatchDrop(0.5, student, teacher), torch.randn(2, 1, 28, 28)
    distiller = Distiller(student.eval(), teacher.eval())
    with drop.dropping():
        _, scores = distiller(x, torch.tensor([0, 1]))
        assert torch.equal(scores, teacher(x))
    assert float(distiller.parts["hidden"] + distiller.parts["relations"]) < 1e-3
    assert not torch.equal(scores, teacher(x))


def test_a_network_without_patches_is_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="ResNet is none: leave --patch-drop at 0"):
        open_run(Config(patch_drop=0.5))


def test_steps_see_fewer_tokens_and_those_of_the_frozen_phase_all() -> None:
    config = Config(
        model="tiny_vit", patch_drop=0.75, epochs=1, max_steps_per_epoch=4, frozen=0.5,
        batch_size=8, cpu=True, eval_every=9,
    )  # fmt: skip
    trainer = open_run(config)
    counts: list[int] = []
    trainer.core.blocks[0].register_forward_hook(  # type: ignore[index, union-attr, operator]
        lambda module, args, output: counts.append(output.shape[1]) if module.training else None
    )
    list(trainer)
    assert counts == [13, 13, 50, 50]


def test_epochs_between_evaluations_have_no_accuracy_and_the_last_one_has(tmp_path) -> None:
    config = Config(epochs=5, max_steps_per_epoch=2, batch_size=8, eval_every=2, cpu=True)
    records = list(fit(config, tmp_path / "run"))
    assert [record.hard is not None for record in records] == [False, True, False, True, True]
    assert [record.soft is None for record in records] == [r.hard is None for r in records]
    assert all(record.gap is None for record in records if record.hard is None)
    hards = [record.hard for record in records if record.best and record.hard is not None]
    assert hards and all(a < b for a, b in pairwise(hards))
    view = RunView.of(str(tmp_path / "run"))
    assert view.best is not None and view.best.hard == hards[-1]
    assert view.result is not None and view.result["hard"] == hards[-1]
    assert f"{100 * hards[-1]:.2f}" in compare([view])
