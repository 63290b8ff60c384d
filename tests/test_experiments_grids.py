"""Grids as data: names, cells and the configurations that they become."""

from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxbit.experiments.reproduce.blocks import block_names
from proxbit.experiments.reproduce.configs import (
    Missing,
    Options,
    check_alike,
    config_of,
    differences,
    float_config,
    float_folder,
    needs_float,
    parse_given,
)
from proxbit.experiments.reproduce.grid_planning import (
    CellQuery,
    duration,
    overview,
    plan,
    seconds_of,
)
from proxbit.experiments.reproduce.grids import GRIDS, Cell, find_grid, find_rows
from proxbit.experiments.reproduce.paper import PROTOCOLS
from proxbit.experiments.reproduce.presets import PRESETS
from proxbit.models import build
from proxbit.models.structure import layers
from proxbit.train.setup import prepare, resolve
from proxbit.util.compat import allow_torchvision

allow_torchvision()
pytest.importorskip("timm")  # the stand-ins of transformers are made of it

GIVEN = Options(data=(("*", "npz:x.npz"),), weights=(("*", "w.safetensors"),))
grids = st.sampled_from(list(GRIDS))
presets = st.sampled_from(list(PRESETS))


def one(grid, preset="smoke", **axes):
    """The first cell of a grid with these axes."""
    return next(c for c in plan(CellQuery(grid, preset)) if axes.items() <= c.axes.items())


# Names and cells


@given(grid=grids, preset=presets)
def test_no_two_cells_share_a_name_or_a_key(grid, preset):
    cells = plan(CellQuery(grid, preset, seeds=(0, 1)))
    assert len({cell.name for cell in cells}) == len(set(cells)) == len(cells)
    assert all("/" not in cell.name and " " not in cell.name for cell in cells)


@given(grid=grids, preset=presets)
def test_seeds_multiply_cells_and_change_nothing_else(grid, preset):
    single, double = (plan(CellQuery(grid, preset, seeds=seeds)) for seeds in ((0,), (0, 7)))
    assert {cell for cell in double if cell.seed == 0} == set(single)
    assert {replace(cell, seed=0) for cell in double if cell.seed == 7} == set(single)


def test_the_paper_has_so_many_cells():
    counts = {name: len(plan(CellQuery(name, "paper", seeds=(0,)))) for name in GRIDS}
    assert counts == {
        "cnn": 80, "vit-weights": 96, "vit-tasks": 64, "additional": 48 + 8, "ptb": 12,
        "ablation": 10, "blocks": (1 + 14) + (1 + 11), "bivit": 2,
        "accumulators": 2 * 2 * (6 + 2),
    }  # fmt: skip


def test_wishes_choose_rows_by_glob_and_axes_by_name():
    cells = plan(CellQuery("cnn", "small", ("cifar*",), ("ft",), ("BWA",), ("bnn++", "FP")))
    assert [(c.axes["pipeline"], c.axes["task"], c.axes["method"]) for c in cells] == [
        ("FT", "BWA", "FP"), ("FT", "BWA", "BNN++")
    ]  # fmt: skip
    assert {cell.row for cell in cells} == {"cifar10"}


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (CellQuery("cnns"), "unknown grid 'cnns': did you mean 'cnn'"),
        (CellQuery("cnn", "medium"), "unknown preset 'medium'"),
        (
            CellQuery("cnn", rows=("cifar100",)),
            "unknown row of cnn 'cifar100': did you mean 'cifar10'",
        ),
        (
            CellQuery("ptb", "small", rows=("vit-b-cifar10",)),
            "row 'vit-b-cifar10' of ptb has no stand-in in the preset small",
        ),
        (CellQuery("cnn", methods=("bnn+++",)), "unknown method 'bnn+++'"),
        (CellQuery("ptb", tasks=("BWA",)), "unknown task 'bwa'"),
        (CellQuery("cnn", pipelines=("E2E",), tasks=("BWAA",)), "unknown task 'bwaa'"),
    ],
)
def test_what_does_not_exist_is_named_with_what_does(query, words):
    with pytest.raises(ValueError, match="^" + words.replace("+", r"\+")):
        plan(query)


def test_a_glob_finds_rows_in_their_order():
    assert [row.name for row in find_rows(find_grid("vit-weights"), "paper", ["*-cifar100"])] == [
        "vit-b-cifar100", "deit-t-cifar100", "deit-s-cifar100", "deit-b-cifar100"
    ]  # fmt: skip


# Configurations


@given(grid=grids, preset=presets)
def test_every_cell_has_a_configuration_of_its_own_but_a_float_network_has_no_task(grid, preset):
    cells = plan(CellQuery(grid, preset, seeds=(3,)))
    for row in {cell.row for cell in cells}:
        own = [cell for cell in cells if cell.row == row]
        runs = {cell.key if cell.axes["method"] != "FP" else cell.axes["pipeline"] for cell in own}
        assert len({config_of(cell, GIVEN, "out").to_json() for cell in own}) == len(runs)


@given(grid=grids, preset=presets)
def test_a_configuration_says_what_its_key_says(grid, preset):
    for cell in plan(CellQuery(grid, preset, seeds=(3,))):
        config, axes = config_of(cell, GIVEN, "out"), cell.axes
        task = "BW" if axes["method"] == "FP" else axes["task"]
        assert (config.method, config.task) == (axes["method"].lower(), task)
        assert config.seed == 3
        assert (config.weights is not None) == (axes["pipeline"] == "FT")
        assert config.only == (None if axes.get("block") in (None, "none") else axes["block"])


def test_the_paper_preset_has_the_papers_epochs_models_and_settings():
    tuned = config_of(one("cnn", "paper", pipeline="FT"), GIVEN, "")
    scratch = config_of(one("vit-weights", "paper", pipeline="E2E", model="DeiT-S"), GIVEN, "")
    assert (tuned.epochs, tuned.model, tuned.settings) == (100, "resnet20", "paper")
    assert (scratch.epochs, scratch.model) == (300, "timm/deit_small_patch16_224.fb_in1k")
    assert scratch.image_size == 224 and scratch.pretrain == 0


def test_registers_of_several_widths_are_tried_and_eight_bits_are_the_cell_of_another_grid():
    for preset in PRESETS:
        cells = plan(CellQuery("accumulators", preset, ("cifar10",), ("FT",), methods=("BC",)))
        assert [config_of(cell, GIVEN, "").bits for cell in cells] == [4, 5, 6, 7, 8, 16]
    eight = next(cell for cell in cells if cell.axes["bits"] == "8 bits")
    same = one("cnn", "paper", task="BWAA", method="BC", dataset="CIFAR-10")
    assert config_of(eight, GIVEN, "") == config_of(same, GIVEN, "")


def test_the_ablation_switches_protocols_on_one_by_one():
    off = {"scale": "none", "attention_norm": False, "pretrain": 0, "distill": False}
    on = {"scale": "channel", "attention_norm": True, "pretrain": 1, "distill": True}
    for count, protocols in enumerate(PROTOCOLS):
        config = config_of(one("ablation", protocols=protocols), Options(), "")
        expected = dict(list(on.items())[:count] + list(off.items())[count:])
        assert {name: getattr(config, name) for name in off} == expected


def test_a_float_network_that_knows_its_images_is_trained_on_gently():
    rates = {
        pipeline: config_of(one("cnn", "small", pipeline=pipeline, method="FP"), GIVEN, "").lr
        for pipeline in ("FT", "E2E")
    }
    assert rates == {"FT": 1e-4, "E2E": None}
    fresh = config_of(one("ptb", "paper", method="FP"), Options(data=(("*", "cifar10"),)), "")
    assert (fresh.weights, fresh.lr, fresh.pretrain) == ("pretrained", 1e-4, 0)


def test_options_shrink_and_replace():
    asked = replace(GIVEN, epochs=2, max_steps_per_epoch=5, model="resnet32", settings="paper")
    asked = replace(asked, image_size=48)
    config = config_of(one("cnn", "small", pipeline="FT"), asked, "")
    assert (config.epochs, config.max_steps_per_epoch, config.model) == (2, 5, "resnet32")
    assert config.settings == "paper" and config.weights == "w.safetensors"
    assert config.image_size == 48


def test_missing_data_and_weights_say_what_to_provide():
    cell = one("cnn", "small", pipeline="FT")
    with pytest.raises(Missing, match=r"row cifar10 needs CIFAR-10: give it as --data npz:FILE"):
        config_of(cell, Options(), "")
    with pytest.raises(Missing, match=r"needs ImageNet-1K: give it as --data folder:DIR"):
        config_of(one("cnn", "paper", dataset="ImageNet-1K"), Options(), "")
    cell = one("cnn", "paper", pipeline="FT")
    with pytest.raises(Missing, match=r"fine-tuned from float weights of resnet20: give them"):
        config_of(cell, Options(data=(("*", "cifar10"),)), "")
    assert config_of(one("ptb", "paper"), Options(data=(("*", "cifar10"),)), "").weights == (
        "pretrained"
    )


def test_smoke_needs_nothing_and_starts_from_one_float_network_for_all_seeds(tmp_path):
    cells = [c for c in plan(CellQuery("cnn", seeds=(0, 1))) if c.row == "cifar10"]
    tuned = [cell for cell in cells if cell.axes["pipeline"] == "FT"]
    assert all(needs_float(cell, Options()) for cell in tuned)
    assert not any(needs_float(cell, Options()) for cell in cells if cell not in tuned)
    assert not any(needs_float(cell, GIVEN) for cell in cells)
    assert {config_of(cell, Options(), tmp_path).weights for cell in tuned} == {
        str(float_folder(tuned[0], tmp_path))
    }
    assert len({float_config(cell, Options()) for cell in tuned}) == 1
    assert float_config(tuned[0], Options()).method == "fp"


def test_what_is_given_for_a_row_reaches_that_row():
    rows = find_grid("cnn").rows
    given_ = parse_given(["cifar10=npz:a=b.npz", "imagenet=folder:i"], rows, "data")
    options = replace(GIVEN, data=given_)
    assert config_of(one("cnn", "small", dataset="CIFAR-10"), options, "").data == "npz:a=b.npz"
    assert config_of(one("cnn", "small", dataset="ImageNet-1K"), options, "").data == "folder:i"
    with pytest.raises(ValueError, match=r"is for one row, and these are of CIFAR-10, ImageNet"):
        parse_given(["npz:a.npz"], rows, "data")
    assert parse_given(["npz:a=b.npz"], rows[:1], "data") == (("*", "npz:a=b.npz"),)


def test_differences_are_found_and_ways_to_say_the_same_are_none():
    config = config_of(one("cnn", "small", pipeline="FT", method="BC"), GIVEN, "")
    resolved = asdict(resolve(config, build("resnet20"))) | {"image_size": 32}
    assert differences(config, resolved) == []
    assert differences(config, resolved | {"weights": "elsewhere/w.safetensors"}) == []
    for data in ("npz:/elsewhere/c.npz", "npz:c.npz", "npz:here/c.npz"):
        assert differences(replace(config, data="npz:c.npz"), resolved | {"data": data}) == []
    assert differences(config, resolved | {"data": "npz:other.npz"}) != []
    assert differences(config, resolved | {"epochs": 9}) == ["epochs 9, not 2"]
    assert differences(replace(config, lr=0.1), resolved) == ["lr 0.003, not 0.1"]
    assert differences(config, resolved | {"lr": 0.1}) == ["lr 0.1, not 0.003"]  # a default
    own, kept = replace(config, model="net.py:build"), resolved | {"model": "net.py:build"}
    assert differences(own, kept | {"lr": 0.1}) == []  # its kind is not known here
    with pytest.raises(ValueError, match="here has epochs 9, not 2: give the same options, or"):
        check_alike(config, resolved | {"epochs": 9}, "here")


# Models


@pytest.mark.parametrize("model", ["resnet8", "resnet20", PRESETS["smoke"].models["ViT-B"]])
def test_blocks_part_the_layers_of_a_model(model):
    names = layers(build(model, image_size=32))
    blocks = block_names(model)
    inside = [[b for b in blocks if name == b or name.startswith(f"{b}.")] for name in names]
    assert all(len(each) == 1 for each in inside)
    assert {each[0] for each in inside} == set(blocks)


@pytest.mark.parametrize("paper", list(PRESETS["smoke"].models))
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_stand_in_can_be_binarized_on_the_embedded_images(paper):
    grid = next(g for g in GRIDS.values() if any(row.model == paper for row in g.at("smoke")))
    cell = next(
        c
        for c in plan(CellQuery(grid.name))
        if c.axes["model"] == paper and c.axes["method"] == "BNN++"
    )
    config = replace(config_of(cell, Options(), ""), weights=None, distill=False, pretrain=0)
    job = prepare(config)
    assert any("layers are binary" in note for note in job.notes)


def test_every_row_has_a_model_in_each_of_its_presets():
    for grid in GRIDS.values():
        for row in grid.rows:
            assert all(row.model in PRESETS[preset].models for preset in row.presets)


# Times and lists


def test_estimates_grow_with_the_work():
    small, large = one("cnn", "small"), one("cnn", "paper")
    assert 0 < seconds_of(small, GIVEN) < seconds_of(large, GIVEN)
    assert seconds_of(small, replace(GIVEN, epochs=6)) > seconds_of(small, GIVEN)
    assert seconds_of(small, replace(GIVEN, max_steps_per_epoch=1)) < seconds_of(small, GIVEN)


@given(st.floats(0, 1e12))
def test_a_duration_is_short_and_right_to_a_tenth(seconds):
    number, unit = duration(seconds).split()
    size = {"s": 1, "min": 60, "h": 3600, "days": 86400, "years": 365.25 * 86400}[unit]
    assert abs(float(number) * size - seconds) <= max(0.5, 0.1 * seconds)


def test_the_overview_names_every_grid_row_and_preset():
    text = overview()
    for grid in GRIDS.values():
        assert f"{grid.name}: {grid.title}" in text
        assert all(row.name in text for row in grid.rows)
    assert all(f"{preset}: " in text for preset in PRESETS)


def test_a_cell_is_hashable_and_orders_its_axes():
    cell = Cell("cnn", "cifar10", (("model", "ResNet20"), ("method", "BNN++")), 0, "smoke")
    assert cell in {cell} and list(cell.axes) == ["model", "method"]
    assert cell.name == "cnn,smoke,ResNet20,BNN++,seed0"
