"""transformers' families for images and sound, as small."""

from __future__ import annotations

from typing import Any

import torch
from configurations import BART, BERT, answers, configured, tokens
from torch import Tensor

_VIT: dict[str, Any] = {
    "image_size": 32, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 48,
}  # fmt: skip
_WAVES: dict[str, Any] = {
    "conv_dim": (16, 16), "conv_stride": (5, 4), "conv_kernel": (10, 4),
    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 48,
}  # fmt: skip
_SEE = "classify images"


def _backbone() -> Any:
    import transformers

    return transformers.ResNetConfig(
        embedding_size=32, hidden_sizes=[32, 48], depths=[1, 1], out_features=["stage2"]
    )


def _images() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


def _images_and_text() -> dict[str, Tensor]:
    return tokens() | _images()


def _waves() -> dict[str, Tensor]:
    return {"input_values": torch.randn(2, 800)}


def _spectra() -> dict[str, Tensor]:
    return {"input_features": torch.randn(2, 16, 40)} | answers()


ENTRIES = (
    configured("ViTForImageClassification", "ViTConfig", _SEE, _images, **_VIT),
    configured("DeiTForImageClassification", "DeiTConfig", _SEE, _images, **_VIT),
    configured(
        "BeitForImageClassification", "BeitConfig", _SEE, _images, use_mask_token=False, **_VIT
    ),
    configured("Dinov2ForImageClassification", "Dinov2Config", _SEE, _images, **_VIT),
    configured(
        "SwinForImageClassification",
        "SwinConfig",
        _SEE,
        _images,
        image_size=32,
        patch_size=4,
        embed_dim=16,
        depths=[1, 2],
        num_heads=[2, 4],
        window_size=4,
    ),
    configured(
        "ConvNextForImageClassification",
        "ConvNextConfig",
        _SEE,
        _images,
        hidden_sizes=[16, 24],
        depths=[1, 1],
        num_stages=2,
    ),
    configured(
        "ResNetForImageClassification",
        "ResNetConfig",
        _SEE,
        _images,
        embedding_size=32,
        hidden_sizes=[32, 64],
        depths=[1, 1],
    ),
    configured(
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        "segment images",
        _images,
        hidden_sizes=[16, 16, 32, 32],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 1, 2, 2],
        decoder_hidden_size=32,
    ),
    configured(
        "CLIPModel",
        "CLIPConfig",
        "match images and texts",
        _images_and_text,
        text_config=BERT | {"eos_token_id": 2},
        vision_config=_VIT,
        projection_dim=16,
    ),
    configured(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        "transcribe speech",
        _spectra,
        num_mel_bins=16,
        max_source_positions=20,
        max_target_positions=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        **BART,
    ),
    configured(
        "Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", "classify speech", _waves, **_WAVES
    ),
    configured(
        "HubertForSequenceClassification", "HubertConfig", "classify speech", _waves, **_WAVES
    ),
    configured(
        "ASTForAudioClassification",
        "ASTConfig",
        "classify speech",
        lambda: {"input_values": torch.randn(2, 40, 32)},
        max_length=40,
        num_mel_bins=32,
        frequency_stride=8,
        time_stride=8,
        **{k: v for k, v in _VIT.items() if k != "image_size"},
    ),
    configured(
        "DetrForObjectDetection",
        "DetrConfig",
        "detect objects",
        _images,
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=_backbone,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        num_queries=5,
    ),
)
