"""What "paper" means: the law that holds for every cell of the paper preset."""

from dataclasses import asdict, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proxbit.core.methods import METHODS, PAPER
from proxbit.core.schedules import Linear
from proxbit.experiments.reproduce.blocks import skeleton
from proxbit.experiments.reproduce.configs import Options, config_of, is_imagenet
from proxbit.experiments.reproduce.grid_planning import CellQuery, plan
from proxbit.experiments.reproduce.grids import GRIDS
from proxbit.experiments.reproduce.paper import PROTOCOLS
from proxbit.experiments.reproduce.presets import PRESETS
from proxbit.models import pretrained_classes
from proxbit.train.setup import resolve
from proxbit.util.compat import allow_torchvision

allow_torchvision()
pytest.importorskip("timm")

GIVEN = Options(data=(("*", "npz:x.npz"),), weights=(("*", "w.safetensors"),))
TIMM = replace(GIVEN, weights=(("cifar10", "w.safetensors"), ("resnet20-*", "w.safetensors")))
grids = st.sampled_from(list(GRIDS))

# What belongs to a method: its pair with its strengths, and where the pair measures.
OWN = {"method", "strength", "input_strength", "unit", "scale"}
# What a float network has no use for.
BINARY = {"task", "relu", "distill", "attention_norm", "pretrain", "teacher", "bits", "only"}


@given(grid=grids, options=st.sampled_from([GIVEN, TIMM]))
def test_in_the_paper_preset_the_methods_of_a_row_are_trained_alike(grid, options):
    """The paper: "We apply the same training hyperparameters ... across all models"."""
    places: dict[object, list[tuple[str, dict[str, object]]]] = {}
    for cell in plan(CellQuery(grid, "paper", seeds=(0,))):
        config = config_of(cell, options, "out")
        trained = asdict(resolve(config, skeleton(config.model)))
        key = tuple(pair for pair in cell.key if pair[0] != "method")
        places.setdefault(key, []).append((config.method, trained))
    for configs in places.values():
        binary = [trained for name, trained in configs if name != "fp"]
        assert len({str({k: v for k, v in c.items() if k not in OWN}) for c in binary}) <= 1
        for floats in (trained for name, trained in configs if name == "fp"):
            gentle = {"lr"} if floats["weights"] else set()
            shared = [k for k in floats if k not in OWN | BINARY | gentle]
            assert all(floats[k] == c[k] for c in binary for k in shared)


@given(grid=grids, options=st.sampled_from([GIVEN, TIMM]))
def test_in_the_paper_preset_no_signs_are_frozen_or_seen_early(grid, options):
    for cell in plan(CellQuery(grid, "paper", seeds=(0,))):
        config = config_of(cell, options, "out")
        assert (config.settings, config.frozen, config.sharp) == ("paper", 0.0, 0.0)
        gently = cell.axes["method"] == "FP" and cell.axes["pipeline"] == "FT"
        assert config.lr == (1e-4 if gently else None)


def test_pc_pq_and_rpc_have_the_same_linear_quantizer_in_the_papers_settings():
    first, *others = (PAPER[name] for name in ("pc", "pq", "rpc"))
    x, rho = torch.linspace(-2, 2, 41), torch.tensor(0.3)
    for method in others:
        assert method.schedule == first.schedule == Linear(0.01, 10)
        assert (method.input_schedule or method.schedule) == (
            first.input_schedule or first.schedule
        )
        for own, same in (
            (method.pair, first.pair),
            (method.input_pair or method.pair, first.input_pair or first.pair),
        ):
            assert torch.equal(own.forward(x, rho), same.forward(x, rho))
            assert torch.equal(own.backward(x, rho), same.backward(x, rho))


@pytest.mark.parametrize("settings", [METHODS, PAPER], ids=["default", "paper"])
def test_the_inputs_of_r_bnn_never_fall_below_strength_one(settings):
    """Its code: t = max(t, 1) and k = 1 for activations; Poly+ has the same B."""
    for name in ("r-bnn", "poly+"):
        schedule = settings[name].input_schedule
        assert min(schedule(i / 100) for i in range(101)) >= 1
    own = PAPER["r-bnn"].input_schedule
    assert [own(p) for p in (0, 0.5, 1)] == pytest.approx([1, 1, 10])


# Appendix D of the paper, by the name of each file.
AUGREG = "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"
FILES = {
    ("ViT-B", "CIFAR-10"): f"{AUGREG}--imagenet2012-steps_20k-lr_0.01-res_224.npz",
    ("ViT-B", "CIFAR-100"): f"{AUGREG}--imagenet2012-steps_20k-lr_0.01-res_224.npz",
    ("ViT-B", "ImageNet-1K"): f"{AUGREG}.npz",
    ("DeiT-T", "CIFAR-10"): "deit_tiny_patch16_224-a1311bcf.pth",
    ("DeiT-S", "CIFAR-10"): "deit_small_patch16_224-cd65a155.pth",
    ("DeiT-B", "CIFAR-100"): "deit_base_patch16_224-b5f2ef4d.pth",
}


@pytest.mark.parametrize(("model", "dataset"), FILES)
def test_fine_tuning_starts_from_the_files_that_the_paper_names(model, dataset):
    import timm

    for cell in plan(CellQuery("vit-weights", "paper")):
        if (cell.axes["model"], cell.axes["dataset"]) != (model, dataset):
            continue
        config = config_of(cell, TIMM, "")
        known = timm.models.get_pretrained_cfg(config.model.removeprefix("timm/"))
        assert config.weights == "pretrained" and FILES[model, dataset] in known.url
        assert config.normalize == ("half" if known.mean[0] == 0.5 else "imagenet")


@pytest.mark.parametrize("paper", [name for name in PRESETS["paper"].models if name != "ResNet20"])
def test_every_model_of_timm_in_the_paper_preset_has_weights(paper):
    assert pretrained_classes(PRESETS["paper"].models[paper]) in (1000, 21843)


@pytest.mark.parametrize("grid", GRIDS)
def test_who_teaches_in_the_paper_preset(grid):
    """Weights that know the classes of ImageNet; on other rows, whom the user gives."""
    knowing = {"Swin-T", "NesT-T"}
    taught = replace(TIMM, teacher=(("*", "t.safetensors"),))
    for cell in plan(CellQuery(grid, "paper", seeds=(0,))):
        axes = cell.axes
        model = skeleton(config_of(cell, TIMM, "").model)
        alone, by_other = (
            resolve(config_of(cell, options, ""), model) for options in (TIMM, taught)
        )
        binary, open_ = axes["method"] != "FP", not {"block", "protocols"} & axes.keys()
        last = axes.get("protocols") == PROTOCOLS[-1]
        assert alone.distill == (
            last or (binary and open_ and axes["model"] in knowing and is_imagenet(cell))
        )
        assert by_other.distill == (last or (binary and open_))
        assert by_other.teacher == ("t.safetensors" if binary else None)


@pytest.mark.parametrize(
    ("grid", "row", "pipeline", "seeds"),
    [
        ("cnn", "cifar10", "E2E", 5), ("cnn", "cifar10", "FT", 1), ("cnn", "imagenet", "E2E", 5),
        ("vit-weights", "deit-b-imagenet", "E2E", 5), ("vit-weights", "vit-b-imagenet", "FT", 1),
        ("vit-tasks", "deit-t-imagenet", "E2E", 5), ("vit-tasks", "deit-t-cifar10", "FT", 1),
        ("additional", "deit-s-cifar100", "FT", 5), ("additional", "deit-t-imagenet", "E2E", 5),
        ("additional", "resnet20-cifar10", "FT", 1), ("ablation", "vit-b-cifar10", "FT", 1),
    ],
)  # fmt: skip
def test_seeds_are_as_many_as_the_captions_say(grid, row, pipeline, seeds):
    cells = plan(CellQuery(grid, "paper", (row,), (pipeline,)))
    assert {cell.seed for cell in cells} == set(range(seeds))
    assert {cell.seed for cell in plan(CellQuery(grid, "paper", (row,), seeds=(3,)))} == {3}
    assert {cell.seed for cell in plan(CellQuery(grid, "smoke"))} == {0}
