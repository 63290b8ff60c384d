"""Models by name: ours, timm's and the user's own; what is refused, and in which words."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import proxbit as pb
from proxbit.models import (
    bireal_resnet,
    build,
    cifar_resnet,
    is_transformer,
    keeps_classes,
    pretrained_classes,
    tiny_vit,
)
from proxbit.models.building import OURS, RESNETS
from proxbit.models.from_timm import _window
from proxbit.models.vit import MINIS, patch_for
from proxbit.util.compat import allow_torchvision

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning:timm.*"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor"),
]
SMALL: dict[str, Any] = {"embed_dim": 12, "depth": 2, "num_heads": 3}
SWIN: dict[str, Any] = {"embed_dim": 12, "depths": (1, 1, 1, 1), "num_heads": (1, 1, 2, 2)}


@pytest.fixture(scope="module")
def timm() -> Any:
    allow_torchvision()
    return pytest.importorskip("timm", reason="needs timm")


def refusal(name: str, **arguments: Any) -> str:
    with pytest.raises((ValueError, TypeError)) as caught:
        build(name, **arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", RESNETS)
def test_a_resnet_by_name_is_the_one_of_its_depth(name: str) -> None:
    model = build(name, classes=7, channels=1)
    kind, _, depth = name.rpartition("resnet")
    same = (bireal_resnet if kind else cifar_resnet)(int(depth), classes=7, in_channels=1)
    shapes = {key: value.shape for key, value in model.state_dict().items()}
    assert shapes == {key: value.shape for key, value in same.state_dict().items()}


def test_the_width_of_a_resnet_is_an_option_and_nothing_else_is() -> None:
    assert build("resnet8", width=5).conv1.out_channels == 5
    assert "did you mean 'width'" in refusal("resnet8", widht=5)
    assert "unknown option of resnet8 'patch_size'" in refusal("resnet8", patch_size=4)


@given(odd=st.lists(st.sampled_from(["patch_size", "drop_path", "depth"]), min_size=1, unique=True))
def test_all_options_that_a_resnet_does_not_have_are_named(odd: list[str]) -> None:
    message = refusal("resnet8", width=5, **dict.fromkeys(odd, 4))
    named = message.split("'")[1].split(", ")
    assert sorted(named) == sorted(odd)


@pytest.mark.parametrize("name", OURS)
def test_no_weights_come_with_our_models(name: str) -> None:
    message = refusal(name, image_size=28, pretrained=True)
    assert name in message and "--weights" in message


@given(
    what=st.sampled_from(["classes", "channels", "image_size", "patch_size"]),
    value=st.one_of(st.integers(max_value=0), st.floats(), st.text(max_size=3)),
)
def test_every_size_is_a_whole_number_of_at_least_one(what: str, value: Any) -> None:
    message = refusal("resnet8", **{what: value})
    assert what in message and repr(value) in message


@given(st.data())
def test_a_misspelt_name_is_answered_with_the_right_one(timm: Any, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["timm/nest_small", "tiny_vit", "timm/coat_lite_mini"]))
    at = data.draw(st.integers(5, len(name) - 1))
    assert f"did you mean {name!r}" in refusal(name[:at] + name[at + 1 :])


def test_an_unknown_name_tells_all_ways_to_name_a_model(timm: Any) -> None:
    message = refusal("resnet2")
    assert "did you mean 'resnet" in message
    assert all(part in message for part in (*OURS, "timm/resnet", "timm/NAME", "FILE.py:FUNCTION"))
    assert "did you mean 'timm/swin_tiny_patch4_window7_224'" in refusal(
        "swin_tiny_patch4_window7_224"
    )


def test_without_timm_ours_still_work_and_timm_s_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    assert "did you mean 'resnet20'" in refusal("resnet200")
    for name in ("timm/vit_tiny_patch16_224", "tiny_vit"):
        assert "pip install proxbit[vision]" in refusal(name, image_size=28)


# timm


def test_image_size_patch_size_and_options_reach_a_vision_transformer(timm: Any) -> None:
    name = "timm/deit_tiny_patch16_224"
    model = build(name, classes=7, channels=1, image_size=24, patch_size=6, drop_path=0.2, **SMALL)
    assert model.pos_embed.shape == (1, 1 + 16, 12)
    assert model.patch_embed.proj.weight.shape == (12, 1, 6, 6)
    assert len(model.blocks) == 2 and model.blocks[0].attn.num_heads == 3
    assert model.blocks[-1].drop_path1.drop_prob == pytest.approx(0.2)
    assert model(torch.zeros(2, 1, 24, 24)).shape == (2, 7)


def test_a_model_of_timm_is_the_one_that_timm_makes(timm: Any) -> None:
    torch.manual_seed(3)
    ours = build("timm/test_vit", classes=7, image_size=32, patch_size=8)
    torch.manual_seed(3)
    theirs = timm.create_model("test_vit", num_classes=7, img_size=32, patch_size=8)
    assert type(ours) is type(theirs)
    assert all(
        torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)
    )


def test_nest_takes_image_and_patch_size(timm: Any) -> None:
    model = build("timm/nest_tiny", classes=7, image_size=16, patch_size=2)
    assert model.patch_embed.grid_size == (8, 8)


@pytest.mark.parametrize("size", [17, 32])
def test_a_convolutional_network_takes_any_image_size_but_no_patches(timm: Any, size: int) -> None:
    model = build("timm/test_resnet", classes=7, channels=1, image_size=size)
    assert model(torch.zeros(2, 1, size, size)).shape == (2, 7)
    assert "has no patches" in refusal("timm/test_resnet", patch_size=4)


@given(own=st.integers(2, 16), grid=st.integers(1, 100))
def test_the_window_of_swin_divides_the_grid_wherever_one_of_its_size_does(
    own: int, grid: int
) -> None:
    window = _window(f"swin_tiny_patch4_window{own}_224", grid)
    fitting = [n for n in range(1, own + 1) if grid % n == 0 and 2 * n >= own]
    assert (own if window is None and grid % own == 0 else window) == max(fitting, default=None)


def test_swin_gets_a_window_that_fits_unless_one_is_given(timm: Any) -> None:
    name = "timm/swin_tiny_patch4_window7_224"
    model = build(name, image_size=32, **SWIN)
    assert model.layers[0].blocks[0].attn.window_size == (4, 4)
    model = build(name, image_size=32, window_size=2, **SWIN)
    assert model.layers[0].blocks[0].attn.window_size == (2, 2)


@pytest.mark.parametrize("swallows", [False, True])
def test_an_unknown_option_is_answered_with_timm_s_name_for_it(timm: Any, swallows: bool) -> None:
    """Swin's class takes any keyword and drops it; that of a ViT raises."""
    name = "timm/swin_tiny_patch4_window7_224" if swallows else "timm/vit_tiny_patch16_224"
    message = refusal(name, image_size=32, patch_size=4, drop_pth=0.1)
    assert f"unknown option of {name} 'drop_pth': did you mean 'drop_path'" in message


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "timm/nest_tiny": ({"depths": (1, 1, 1)}, "sets 'depths' by itself"),
    "timm/test_vit": ({"num_classes": 3}, "'num_classes' is called 'classes' here"),
    "timm/test_vit2": ({"drop_path_rate": 0.1}, "'drop_path_rate' is called 'drop_path' here"),
    "timm/dla46_c": ({"drop_path": 0.1}, "unknown option of timm/dla46_c 'drop_path'"),
    "timm/vit_tiny_patch16_224": (
        {"image_size": 28},
        "28 is not a multiple of the patch size 16 of timm/vit_tiny_patch16_224: "
        "choose patch_size: 2, 4, 7, 14",
    ),
    "timm/deit_tiny_patch16_224": ({"image_size": 31}, "choose another image_size"),
    "timm/nest_small": ({"image_size": 28}, "with classes=10, channels=3, image_size=28: Asser"),
    "timm/swin_tiny_patch4_window7_224": ({"image_size": 28}, "does not take images of 28x28"),
    "timm/vit_tiny_patch16_224.nowhere": ({}, "did you mean 'vit_tiny_patch16_224."),
    "timm/hf-hub:some/where": ({}, "unknown model"),
    "timm/": ({}, "unknown model"),
    "timm/vit_small_patch16_224": ({"embed_dim": "wide"}, "embed_dim='wide'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_timm_cannot_do_is_said_in_one_sentence(timm: Any, name: str) -> None:
    arguments, words = REFUSED[name]
    message = refusal(name, **arguments)
    assert words in message


def test_pretrained_without_a_network_says_what_to_do(
    timm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise OSError("no route to host\nmore")

    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", unreachable)
    message = refusal("timm/test_vit", pretrained=True)
    assert "weights of test_vit (OSError: no route to host)" in message
    assert "load_weights" in message and "--weights FILE" in message


def test_a_model_without_weights_is_told_apart_from_a_missing_network(timm: Any) -> None:
    message = refusal("timm/nest_tiny", pretrained=True)
    assert message.startswith("timm has no weights for nest_tiny: ")
    assert "timm/nest_tiny_jx.goog_in1k" in message and "network" not in message
    assert pretrained_classes("timm/nest_tiny") is None
    assert pretrained_classes("timm/nest_tiny_jx") == 1000


def test_weights_of_timm_know_a_models_classes_if_they_are_as_many(timm: Any) -> None:
    assert [keeps_classes(build("timm/test_vit", classes=n)) for n in (1000, 10)] == [True, False]
    assert not keeps_classes(build("resnet8"))


def test_a_wrong_option_is_told_apart_from_a_missing_network(timm: Any) -> None:
    assert "unknown option" in refusal("timm/test_vit", pretrained=True, dpeth=3)


def test_pretrained_weights_are_those_that_timm_finds(timm: Any, tmp_path: Path) -> None:
    there = build("timm/test_vit", classes=1000)
    torch.save(there.state_dict(), tmp_path / "found.pth")
    overlay = {"file": str(tmp_path / "found.pth")}
    here = build("timm/test_vit", classes=7, pretrained=True, pretrained_cfg_overlay=overlay)
    assert torch.equal(here.blocks[0].attn.qkv.weight, there.blocks[0].attn.qkv.weight)
    assert here.head.weight.shape[0] == 7


# the small transformer


@pytest.mark.parametrize(("size", "grid"), [(28, 7), (32, 8), (56, 7), (64, 8)])
def test_tiny_vit_cuts_the_image_into_49_or_64_patches(timm: Any, size: int, grid: int) -> None:
    model = build("tiny_vit", classes=7, channels=1, image_size=size)
    assert model.patch_embed.grid_size == (grid, grid)
    assert model(torch.zeros(2, 1, size, size)).shape == (2, 7)
    assert is_transformer(model)


def test_tiny_vit_has_the_stated_size_and_takes_options(timm: Any) -> None:
    blocks = tiny_vit(image_size=28).blocks
    assert len(blocks) == 4 and blocks[0].attn.num_heads == 3
    count = sum(p.numel() for p in tiny_vit(10, 1, 28).parameters())
    d, patches, positions, token, norm, head = 96, 17, 50, 1, 2, 10  # in rows of d numbers
    block = 12 * d * d + 13 * d  # weights; their biases (9) and two norms (4)
    assert count == 4 * block + (patches + positions + token + norm + head) * d + 10
    assert len(build("tiny_vit", image_size=28, patch_size=14, depth=1).blocks) == 1


@given(st.integers(1, 300))
def test_the_patch_gives_a_whole_grid_of_seven_or_eight(size: int) -> None:
    if size % 7 and size % 8:
        with pytest.raises(ValueError, match=f"{size} is not a multiple of 7 or 8: pass a patch"):
            patch_for(size)
    else:
        assert size / patch_for(size) in (7, 8)


def test_tiny_vit_asks_for_the_image_size() -> None:
    assert "pass image_size" in refusal("tiny_vit")


@pytest.mark.parametrize("name", MINIS)
def test_the_smallest_of_each_family_fits_small_images_and_refuses_options(
    timm: Any, name: str
) -> None:
    for size, channels in ((28, 1), (32, 3)):
        model = build(name, classes=7, channels=channels, image_size=size)
        assert sum(p.numel() for p in model.parameters()) < 150_000
    assert "unknown option" in refusal(name, image_size=28, depth=3)


@pytest.mark.parametrize("name", [name for name in MINIS if name != "mini_bottleneck"])
def test_the_smallest_transformers_ask_for_the_image_size(name: str) -> None:
    assert "'image_size'" in refusal(name)


# the trial


def test_the_trial_with_an_empty_image_leaves_no_trace() -> None:
    states, draws = [], []
    for size in (None, 8):
        torch.manual_seed(5)
        model = build("resnet8", channels=1, image_size=size)
        states.append({key: value.clone() for key, value in model.state_dict().items()})
        draws.append(torch.rand(()))
        assert all(module.training for module in model.modules())
        assert all(p.grad is None for p in model.parameters())
    assert draws[0] == draws[1]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


# attention


class Separate(nn.Module):
    """Projections of their own, as transformers names them."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        for name in names:
            setattr(self, name, nn.Linear(4, 4))


@pytest.mark.parametrize(
    ("make", "attends"),
    [
        (lambda: build("resnet8"), False),
        (lambda: build("timm/test_resnet"), False),
        (lambda: build("timm/test_efficientnet"), False),  # squeeze and excite is no attention
        (lambda: build("timm/test_vit"), True),
        (lambda: build("timm/swin_tiny_patch4_window7_224", **SWIN), True),
        (lambda: build("timm/nest_tiny", image_size=16, patch_size=2), True),
        (lambda: nn.Sequential(nn.TransformerEncoderLayer(8, 2)), True),
        (lambda: nn.Sequential(nn.MultiheadAttention(8, 2)), True),
        (lambda: nn.Sequential(Separate("query", "key", "value")), True),
        (lambda: nn.Sequential(Separate("q_proj", "k_proj", "v_proj")), True),
        (lambda: nn.Sequential(Separate("query", "key")), False),
    ],
)
def test_a_transformer_is_what_has_attention(timm: Any, make: Any, attends: bool) -> None:
    assert is_transformer(make()) is attends


def test_a_binary_transformer_is_still_one(timm: Any) -> None:
    model = build("timm/test_vit")
    pb.binarize(model, "bnn++")
    assert is_transformer(model)
    encoder = nn.Sequential(nn.TransformerEncoderLayer(8, 2), nn.Linear(8, 3))
    pb.binarize(encoder, "bnn++")
    assert is_transformer(encoder)
