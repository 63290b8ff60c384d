"""Networks of transformers, peft and timm, packed: the same outputs, the size that was promised."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import proxbit as pb
from binarizing import binarize
from proxbit.engine.packed import packed_layers
from proxbit.engine.packed_layers import PackedLinear
from proxbit.util.compat import allow_torchvision

pytestmark = [
    pytest.mark.slow,  # importing transformers takes seconds
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


def library(name: str) -> Any:
    allow_torchvision()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


def hard(model: nn.Module, **options: Any) -> tuple[nn.Module, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pb.SettingsWarning)
        report = binarize(model, "bnn++", **options)
    return pb.harden(model).eval(), report


def t5() -> nn.Module:
    transformers = library("transformers")
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=300, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
        decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)  # type: ignore[no-any-return]


@torch.no_grad()
def test_a_t5_is_as_small_as_its_report_says_and_tied_when_loaded(tmp_path: Path) -> None:
    model, report = hard(t5())
    net = pb.pack(model)
    pb.save(net, tmp_path / "a")
    assert report.bytes_packed == pb.summary(net).bytes_packed == (tmp_path / "a").stat().st_size
    assert report.bytes_packed < report.bytes_float / 2
    loaded: Any = pb.load(tmp_path / "a", t5())
    assert loaded.lm_head.weight is loaded.shared.weight is loaded.encoder.embed_tokens.weight
    x = torch.randint(300, (2, 9))
    expected = model(input_ids=x, decoder_input_ids=x).logits
    found = loaded(input_ids=x, decoder_input_ids=x).logits
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def gpt2() -> nn.Module:
    transformers = library("transformers")
    config = transformers.GPT2Config(vocab_size=90, n_positions=32, n_embd=32, n_layer=2, n_head=4)
    return transformers.GPT2LMHeadModel(config)  # type: ignore[no-any-return]


@torch.no_grad()
def test_a_gpt2_is_packed_with_its_inputs_first(tmp_path: Path) -> None:
    model, report = hard(gpt2(), parametrize=["*c_attn", "*c_proj", "*c_fc"])
    net: Any = pb.pack(model)
    assert len([*packed_layers(net)]) == 8
    assert isinstance(net.transformer.h[0].attn.c_attn, PackedLinear)
    pb.save(net, tmp_path / "a")
    assert report.bytes_packed == (tmp_path / "a").stat().st_size
    x = torch.randint(90, (2, 9))
    for found in (net, pb.load(tmp_path / "a", gpt2())):
        torch.testing.assert_close(found(x).logits, model(x).logits, rtol=1e-3, atol=1e-4)


def test_save_pretrained_of_a_packed_network_is_refused(tmp_path: Path) -> None:
    model = hard(t5())[0]
    net: Any = pb.pack(model)
    pb.save(net, tmp_path / "a")
    for packed in (net, net.encoder, pb.load(tmp_path / "a", t5())):
        with pytest.raises(NotImplementedError, match=r"use pb\.save\(net, path\)"):
            packed.save_pretrained(tmp_path / "b")
    assert not (tmp_path / "b").exists()
    model.save_pretrained(tmp_path / "c")  # type: ignore[operator]


def test_a_merged_adapter_is_noticed() -> None:
    peft, transformers = library("peft"), library("transformers")
    config = transformers.BertConfig(
        vocab_size=90, hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
        intermediate_size=64,
    )  # fmt: skip
    model, _ = hard(transformers.BertModel(config), only="*query", skip=None)
    wrapped = peft.get_peft_model(
        model, peft.LoraConfig(target_modules=["query"], init_lora_weights=False, r=2)
    )
    with pytest.raises(ValueError, match=r"query\.weight are not: they were changed after"):
        pb.pack(wrapped.merge_and_unload())


@torch.no_grad()
def test_a_davit_reads_the_kernel_sizes_of_packed_layers(tmp_path: Path) -> None:
    timm = library("timm")

    def make() -> nn.Module:
        return timm.create_model(  # type: ignore[no-any-return]
            "davit_tiny", num_classes=5, depths=(1, 1, 1, 1), embed_dims=(32, 32, 64, 64),
            num_heads=(2, 2, 2, 2),
        )  # fmt: skip

    model, report = hard(make())
    net, x = pb.pack(model), torch.randn(2, 3, 64, 64)
    pb.save(net, tmp_path / "a")
    assert report.bytes_packed == (tmp_path / "a").stat().st_size
    for found in (net, pb.load(tmp_path / "a", make())):
        torch.testing.assert_close(found(x), model(x), rtol=1e-3, atol=1e-4)
