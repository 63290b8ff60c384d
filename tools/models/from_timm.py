"""timm's families, each by a small member, narrowed where its constructor allows it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from entry import Entry
from torch import nn


def _entry(name: str, side: int = 32, parametrize: str = "", **options: Any) -> Entry:
    def build() -> nn.Module:
        import timm

        return timm.create_model(name, pretrained=False, num_classes=5, **options)  # type: ignore[no-any-return]

    given = (("parametrize", parametrize),) if parametrize else ()
    example = lambda: torch.randn(2, 3, side, side)  # noqa: E731
    return Entry("timm", name, "classify images", build, example, given)


def _made(module: str, name: str, side: int = 32, **options: Any) -> Entry:
    """For registered models that fix in advance what could be small: their class by itself."""

    def build() -> nn.Module:
        kind = getattr(import_module(f"timm.models.{module}"), name)
        return kind(num_classes=5, **options)  # type: ignore[no-any-return]

    return Entry("timm", name, "classify images", build, lambda: torch.randn(2, 3, side, side))


_MIXER: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_blocks": 2}
_VIT: dict[str, Any] = {
    "img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2,
}  # fmt: skip
_FOUR: dict[str, Any] = {"depths": (1, 1, 1, 1), "dims": (16, 24, 32, 40)}

ENTRIES = (
    _entry("resnet26", layers=(1, 1, 1, 1), channels=(8, 16, 16, 24)),
    _entry("skresnet18", layers=(1, 1, 1, 1), channels=(32, 32, 32, 32)),
    _entry("resnest14d"),
    _entry("res2net50_14w_8s", layers=(1, 1, 1, 1)),
    _entry("regnetx_002"),
    _entry("regnety_002"),
    _entry("test_efficientnet"),
    _entry("mobilenetv2_035"),
    _entry("mobilenetv3_small_050"),
    _entry("lcnet_035"),
    _entry("ghostnet_050"),
    _entry("convnext_atto", 64, **_FOUR),
    _entry("convnextv2_atto", 64, **_FOUR),
    _entry("inception_next_atto", 64, depths=(1, 1, 1, 1), dims=(16, 24, 32, 40)),
    _entry("densenet121", growth_rate=8, block_config=(2, 2, 2, 2)),
    _made("vgg", "VGG", cfg=[8, "M", 16, "M", 16, "M", 16, 16, "M"], mlp_ratio=0.02),
    _entry("repvgg_a0"),
    _entry("test_nfnet"),
    _entry("test_byobnet"),
    _entry("dla46_c"),
    _entry("starnet_s050"),
    _entry("vit_tiny_patch16_224", **_VIT),
    _entry("deit_tiny_distilled_patch16_224", **_VIT),
    _entry("deit3_small_patch16_224", **_VIT),
    _entry("beit_base_patch16_224", **_VIT),
    _entry("eva02_tiny_patch14_224", **_VIT),
    _entry("cait_xxs24_224", **_VIT),
    _entry("convit_tiny", **_VIT),
    _entry("xcit_nano_12_p16_224", 32, img_size=32, embed_dim=32, depth=2, num_heads=2),
    _made("mlp_mixer", "MlpMixer", **_MIXER),
    _entry(
        "swin_tiny_patch4_window7_224",
        img_size=32,
        window_size=4,
        embed_dim=16,
        depths=(1, 2),
        num_heads=(2, 4),
    ),
    _entry(
        "swinv2_tiny_window8_256",
        img_size=32,
        window_size=4,
        embed_dim=16,
        depths=(1, 2),
        num_heads=(2, 4),
    ),
    _entry("davit_tiny", depths=(1, 1, 1, 1), embed_dims=(16, 16, 32, 32), num_heads=(2, 2, 2, 2)),
    _entry(
        "maxvit_rmlp_pico_rw_256", 64, img_size=64, embed_dim=(32, 32, 32, 32), depths=(1, 1, 1, 1)
    ),
    _made(
        "nest",
        "Nest",
        img_size=32,
        patch_size=2,
        embed_dims=(16, 32, 64),
        num_heads=(1, 2, 4),
        depths=(1, 1, 2),
    ),
    _entry("levit_128s", 64, img_size=64),
    _entry("coat_tiny", 64, img_size=64),
    _entry("pvt_v2_b0", 64, depths=(1, 1, 1, 1)),
    _entry(
        "twins_svt_small",
        64,
        img_size=64,
        depths=(1, 1, 1, 1),
        embed_dims=(32, 32, 64, 64),
        num_heads=(2, 2, 2, 2),
    ),
    _made(
        "crossvit",
        "CrossVit",
        48,
        img_size=48,
        img_scale=(1.0, 2 / 3),
        patch_size=(12, 8),
        embed_dim=(16, 32),
        depth=((1, 2, 0),),
        num_heads=(2, 2),
        mlp_ratio=(2.0, 2.0, 1.0),
    ),
    _entry("poolformer_s12", 64, layers=(1, 1, 1, 1), embed_dims=(16, 24, 32, 40)),
    _entry("edgenext_xx_small", 64),
    _entry("mobilevit_xxs", 64),
    _made("focalnet", "FocalNet", depths=(1, 1, 1), embed_dim=16),
    _entry("pit_ti_224", 64, img_size=64),
    _entry("tiny_vit_5m_224", 64, depths=(1, 1, 1, 1)),
    _entry("mvitv2_tiny", 64, img_size=64),
    _entry("hiera_tiny_224", 64, img_size=64, stages=(1, 1, 1, 1), embed_dim=32),
    _entry("efficientformerv2_s0", 64, img_size=64),
    _entry("fastvit_t8", 64, layers=(1, 1, 1, 1)),
    _entry("efficientvit_b0", 64),
    _entry(
        "sequencer2d_s",
        64,
        "*.rnn_?",
        img_size=64,
        layers=(1, 1, 1, 1),
        embed_dims=(32, 32, 32, 32),
        hidden_sizes=(8, 8, 8, 8),
    ),
    _entry("test_mambaout"),
)
