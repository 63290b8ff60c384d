"""Models as others write them: what binarize learns from graph, source, names and an example."""

import copy
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import proxbit as pb
from proxbit.binarization.bypass import read_directly
from proxbit.data import fashion_mnist
from proxbit.export.dialects import STANDARD, ConstantWeight, as_constants
from proxbit.nn import Layout, layout_of
from proxbit.util.text import alike


def why(report: Any) -> dict[str, str]:
    return {line.name: line.why for line in report.layers if not line.binary}


def signs_by_output(rows: Tensor) -> Tensor:
    """The oracle of BC: +-mean|w| of each output channel, which come first."""
    size = rows.abs().mean(tuple(range(1, rows.dim())), keepdim=True)
    return torch.where(rows < 0, -size, size)


# First and last layers ---------------------------------------------------------------------------


class UNet(nn.Module):
    """Two levels; the output convolution is registered before others, and a skip joins ReLUs."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Conv2d(4, 2, 1)
        self.time = nn.Linear(3, 4)
        self.down, self.act1 = nn.Conv2d(1, 4, 3, padding=1), nn.ReLU()
        self.mid, self.act2 = nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()
        self.up, self.act3 = nn.Conv2d(8, 4, 3, padding=1), nn.ReLU()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        a = self.act1(self.down(x)) + self.time(t)[:, :, None, None]
        b = self.act2(self.mid(a))
        return self.out(self.act3(self.up(torch.cat([b, self.act1(a)], 1))))


def test_the_graph_tells_the_first_and_the_last_layers_of_a_unet() -> None:
    report = pb.binarize(UNet(), "bnn")
    assert why(report) == {"out": "last convolution", "down": "first convolution"}


def test_relus_that_are_joined_in_front_of_a_binary_input_are_replaced() -> None:
    model = UNet()
    report = pb.binarize(model, "bnn", "BWA")
    assert isinstance(model.act1, nn.Identity)
    assert isinstance(model.act2, nn.Identity)
    assert isinstance(model.act3, nn.ReLU)  # in front of a float layer
    assert why(report)["time"].startswith("first layer: the data itself is its input")
    inputs = torch.randn(2, 1, 5, 5), torch.randn(2, 3)
    assert pb.probe(model, inputs).ok


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 3)
    )


def test_the_first_linear_layer_is_binary_in_bw_and_float_where_inputs_are_signs() -> None:
    assert [line.name for line in pb.binarize(mlp(), "bnn").binary] == ["0", "2", "4"]
    report = pb.binarize(mlp(), "bnn", "BWA")
    assert [line.name for line in report.binary] == ["2", "4"]
    assert why(report)["0"] == "first layer: the data itself is its input (float in BWA)"


class Untraceable(nn.Module):
    """A forward that looks at values, around any module."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.children():
            x = part(x) if bool(x.sum() < 1e9) else x
        return x


def test_without_a_graph_roles_decide() -> None:
    clip = Untraceable(
        body=nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)),
        visual_projection=nn.Linear(8, 4), text_projection=nn.Linear(8, 4),
    )  # fmt: skip
    kept = why(pb.binarize(clip, "bnn"))
    assert kept == {"visual_projection": "last classifier", "text_projection": "last classifier"}
    bert = Untraceable(body=nn.Linear(8, 8), pooler=nn.Sequential(nn.Linear(8, 8), nn.Tanh()))
    assert [line.name for line in pb.binarize(bert, "bnn").binary] == ["pooler.0"]
    unet = Untraceable(stem=nn.Conv2d(1, 2, 1), body=nn.Conv2d(2, 2, 1), out=nn.Conv2d(2, 1, 1))
    kept = why(pb.binarize(unet, "bnn"))
    assert kept == {"stem": "first convolution", "out": "last convolution"}


def test_tracing_leaves_the_random_numbers_as_they_were() -> None:
    class EpochRNG(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x) + torch.randn(3))

    model = EpochRNG()
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    pb.binarize(model, "bnn")
    assert torch.equal(torch.rand(2), expected)


def test_torchvisions_segmentation_heads_stay_float() -> None:
    torchvision = torchvision_or_skip()
    with torch.device("meta"):
        model = torchvision.models.segmentation.fcn_resnet50(weights=None, weights_backbone=None)
    kept = why(pb.binarize(model, "bnn"))
    assert kept == {"backbone.conv1": "first convolution", "classifier.4": "last convolution"}


# ReLUs in front of binary inputs -----------------------------------------------------------------


@pytest.mark.slow
def test_by_default_a_relu_network_with_binary_inputs_learns() -> None:
    """40 steps on the embedded images: with its ReLUs kept, the same network learns nothing."""
    images = fashion_mnist()
    x, y = (images.x_train.float() / 255 - 0.2864) / 0.3537, images.y_train

    def accuracy(relu: str | None) -> float:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10),
        )  # fmt: skip
        pb.binarize(model, "bnn++", "BWA", relu=relu)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        pb.attach(model, optimizer, steps=40)
        for _ in range(40):
            some = torch.randint(0, len(x), (64,))
            optimizer.zero_grad()
            functional.cross_entropy(model(x[some]), y[some]).backward()
            optimizer.step()
        hard = pb.recalibrate(pb.harden(model), [x[:512]]).eval()
        with torch.no_grad():
            return float((hard(x[-1000:]).argmax(1) == y[-1000:]).float().mean())

    assert accuracy("keep") < 0.4
    assert accuracy(None) > 0.55


@pytest.mark.slow
def test_torchvisions_resnet18_stays_finite_with_binary_inputs() -> None:
    torchvision = torchvision_or_skip()
    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=10)
    pb.binarize(model, "bnn++", "BWA")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    pb.attach(model, optimizer, steps=8)
    x, y = torch.randn(4, 3, 32, 32), torch.randint(0, 10, (4,))
    for _ in range(8):  # with its ReLUs it is not a number after five
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        assert bool(loss.isfinite())


# Weights that are read without calling their layers ----------------------------------------------


class Attention(nn.Module):
    """As BEiT's: a bias of its own makes it read the weight; without one it calls the layer."""

    def __init__(self, own_bias: bool) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(4, 4, bias=False), nn.Linear(4, 4)
        self.q_bias = nn.Parameter(torch.zeros(4)) if own_bias else None

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(self._project(x).to(self.proj.weight.dtype))

    def _project(self, x: Tensor) -> Tensor:
        if self.q_bias is None:
            return self.qkv(x)
        return functional.linear(x, self.qkv.weight, self.q_bias)

    def fuse(self) -> Tensor:
        return self.proj.weight @ self.qkv.weight


@pytest.mark.parametrize("own_bias", [True, False])
def test_the_source_of_an_owner_tells_what_it_reads(own_bias: bool) -> None:
    model = nn.Sequential(Attention(own_bias), nn.Linear(4, 2))
    assert read_directly(model) == ({"0.qkv": "Attention"} if own_bias else {})
    report = pb.binarize(model, "bnn")
    assert [line.name for line in report.binary] == ["0.qkv", "0.proj"]
    expected = "parametrized (Attention reads its weight directly)" if own_bias else ""
    assert report.layers[0].why == expected
    assert pb.probe(model, torch.randn(3, 4)).ok


class Hidden(nn.Module):
    """Reads one weight through a variable, runs one layer never, and calls one."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.idle, self.called = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        layer = self.read
        return self.head(self.called(functional.linear(x, layer.weight, layer.bias)))


@pytest.mark.parametrize("task", ["BW", "BWA"])
def test_an_example_shows_what_is_read_and_what_never_runs(task: Any) -> None:
    model, x = Hidden(), torch.randn(5, 4)
    with pytest.warns(pb.SettingsWarning, match=r"the example does not use idle\.weight"):
        report = pb.binarize(model, "bc", task, only=["read", "idle", "called"], example=x)
    found = {line.name: line.why for line in report.binary}
    inputs = "" if task == "BW" else "; its input stays float"
    assert found == {"read": f"parametrized (it is not called){inputs}", "idle": "", "called": ""}
    assert pb.probe(model, x).unused == ("idle.weight",)
    torch.testing.assert_close(
        model.read.weight, signs_by_output(pb.binary_weights(model)[0].latent)
    )


def test_an_example_that_fails_leaves_the_model_as_it_was() -> None:
    model, x = Hidden().eval(), torch.randn(5, 4)
    expected, kinds = model(x), [type(m) for m in model.modules()]
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        pb.binarize(model, "bnn", "BWA", example=torch.randn(5, 3))
    assert [type(m) for m in model.modules()] == kinds
    assert torch.equal(model(x), expected)


def test_gap_and_pack_warn_of_weights_that_the_example_does_not_use() -> None:
    model, x = Hidden().eval(), torch.randn(5, 4)
    pb.binarize(model, "bc", only=["called", "idle"])
    words = r"does not use 1 binary weights \(idle\.weight\)"
    with pytest.warns(pb.SettingsWarning, match=words):
        pb.gap(model, x)
    pb.harden(model)
    with pytest.warns(pb.SettingsWarning, match=words):
        net = pb.pack(model, x)
    torch.testing.assert_close(net(x), model(x))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gap_takes_an_example_in_modes_without_gradients(mode: Any) -> None:
    model = Hidden()
    pb.binarize(model, "bc", only="called")
    with mode():
        pb.gap(model, torch.randn(5, 4))
        if mode is torch.no_grad:
            assert pb.probe(model, torch.randn(5, 4)).ok


def test_gap_warns_of_a_weight_that_other_code_reads() -> None:
    model, x = Hidden(), torch.randn(5, 4)
    pb.binarize(model, "bc", skip="idle")
    with pytest.warns(pb.SettingsWarning, match=r"does not use 1 binary weights \(read\.weight\)"):
        pb.gap(model, x)


def torchvision_or_skip() -> Any:
    from proxbit.util.compat import allow_torchvision

    allow_torchvision()
    return pytest.importorskip("torchvision")


def timm_or_skip() -> Any:
    torchvision_or_skip()
    return pytest.importorskip("timm")


def transformers_or_skip() -> Any:
    from proxbit.util.compat import allow_torchvision

    allow_torchvision()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("transformers")


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("beit_base_patch16_224", {"depth": 2, "embed_dim": 12, "num_heads": 2}, 2),
        ("swinv2_tiny_window8_256", {"depths": (1, 1), "embed_dim": 8, "num_heads": (2, 2)}, 2),
        ("vit_tiny_patch16_224", {"depth": 2, "embed_dim": 12, "num_heads": 2}, 0),
    ],
)
def test_timms_attentions_that_read_their_projection_are_known(
    name: str, options: dict[str, Any], count: int
) -> None:
    timm = timm_or_skip()
    model = timm.create_model(name, pretrained=False, num_classes=3, **options)
    report = pb.binarize(model, "bnn")
    turned = [line.name for line in report.binary if "reads its weight" in line.why]
    assert len(turned) == count
    assert all(name.endswith("qkv") for name in turned)
    size = 256 if "swin" in name else 224
    assert not pb.probe(model, torch.randn(1, 3, size, size)).unused


def test_torchvisions_swin_reads_both_projections() -> None:
    torchvision = torchvision_or_skip()
    model = torchvision.models.SwinTransformer([4, 4], 8, [1, 1], [2, 2], [4, 4], num_classes=3)
    report = pb.binarize(model, "bnn")
    turned = [line.name.rpartition(".")[2] for line in report.binary if line.why]
    assert turned == ["qkv", "proj"] * 2
    assert not pb.probe(model, torch.randn(1, 3, 32, 32)).unused


# Layouts -----------------------------------------------------------------------------------------


class Conv1D(nn.Module):
    """As transformers has it: a linear layer whose weight is inputs by outputs."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf)), nn.Parameter(torch.randn(nf))

    def forward(self, x: Tensor) -> Tensor:
        return (x.reshape(-1, self.nx) @ self.weight + self.bias).reshape(*x.shape[:-1], self.nf)


@pytest.mark.parametrize("task", ["BW", "BWA", "BWAA"])
def test_conv1d_is_the_linear_layer_of_its_transposed_weight(task: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(6), Conv1D(4, 6), nn.Linear(4, 3))
    twin = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 4), nn.Linear(4, 3))
    with torch.no_grad():
        twin[1].weight.copy_(model[1].weight.t())
        twin[1].bias.copy_(model[1].bias)
        twin[2].load_state_dict(model[2].state_dict())
    nets = [model, twin]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.01) for net in nets]
    for net, optimizer in zip(nets, optimizers, strict=True):
        pb.binarize(net, "bnn++", task, only="1")
        pb.attach(net, optimizer, steps=4)
    for _ in range(4):
        x = torch.randn(2, 5, 6)
        for net, optimizer in zip(nets, optimizers, strict=True):
            optimizer.zero_grad()
            net(x).square().sum().backward()
            optimizer.step()
    for net in nets:
        pb.harden(net)
    torch.testing.assert_close(model(x), twin(x))
    torch.testing.assert_close(model[1].weight.t(), twin[1].weight)
    assert isinstance(pb.restore(model)[1], Conv1D)


def test_gpt2_is_binarized_with_one_scale_per_output() -> None:
    transformers = transformers_or_skip()
    config = transformers.GPT2Config(
        vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    model, ids = transformers.GPT2LMHeadModel(config), torch.randint(0, 20, (2, 5))
    report = pb.binarize(model, "bc")
    assert sorted(line.name.rpartition(".")[2] for line in report.binary) == [
        "c_attn", "c_fc", "c_proj", "c_proj",
    ]  # fmt: skip
    assert pb.probe(model, ids).ok
    pb.harden(model)
    w = model.transformer.h[0].attn.c_attn.weight
    assert torch.equal(w.abs(), w.abs().amax(0, keepdim=True).expand_as(w))


class Experts(nn.Module):
    """One matrix per expert, inputs or outputs first, and biases of two dimensions."""

    def __init__(self, is_transposed: bool) -> None:
        super().__init__()
        self.is_transposed = is_transposed
        shape = (3, 4, 5) if is_transposed else (3, 5, 4)
        self.up = nn.Parameter(torch.randn(shape))
        self.up_bias = nn.Parameter(torch.randn(3, 5))

    def forward(self, x: Tensor) -> Tensor:
        w = self.up if self.is_transposed else self.up.transpose(1, 2)
        return torch.bmm(x.expand(3, -1, -1), w) + self.up_bias[:, None]


ODD: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "ConvTranspose2d": (nn.ConvTranspose2d(4, 6, 3, groups=2), (2, 4, 5, 5)),
    "ConvTranspose1d": (nn.ConvTranspose1d(4, 6, 3), (2, 4, 5)),
    "Conv3d": (nn.Conv3d(2, 3, 2), (1, 2, 4, 4, 4)),
    "LSTM": (nn.LSTM(4, 3, bidirectional=True), (5, 2, 4)),
    "GRU": (nn.GRU(4, 3), (5, 2, 4)),
    "experts": (Experts(False), (3, 2, 4)),
    "experts, inputs first": (Experts(True), (3, 2, 4)),
}


def outputs_first(name: str, w: Tensor) -> list[Tensor]:
    """The weight of one output each, taken out by hand."""
    if name == "ConvTranspose2d":  # output 3 * g + o of group g takes the inputs of that group
        return [w[2 * g : 2 * g + 2, o] for g in range(2) for o in range(3)]
    if name == "ConvTranspose1d":
        return [w[:, o] for o in range(6)]
    if name == "experts":
        return [w[e, o] for e in range(3) for o in range(5)]
    if name == "experts, inputs first":
        return [w[e, :, o] for e in range(3) for o in range(5)]
    return list(w)


@pytest.mark.parametrize("name", list(ODD))
def test_parametrized_layers_have_one_scale_per_output_and_train(name: str) -> None:
    """What the reasons advise works: BC by hand gives the same output, and every weight moves."""
    torch.manual_seed(0)
    module, shape = ODD[name]
    model = nn.ModuleDict({"odd": copy.deepcopy(module)})
    twin, x = copy.deepcopy(module), torch.randn(shape)
    pb.binarize(model, "bc", parametrize="odd")
    weights = pb.binary_weights(model)
    for weight in weights:
        w = dict(twin.named_parameters())[weight.name.removeprefix("odd.")]
        for part in outputs_first(name, w.detach()):
            part.copy_(torch.where(part < 0, -1.0, 1.0) * part.abs().mean())
    first = [out[0] if isinstance(out, tuple) else out for out in (model["odd"](x), twin(x))]
    torch.testing.assert_close(*first)
    first[0].square().sum().backward()
    assert all(bool((w.parameter.grad != 0).any()) for w in weights)
    assert not any(w.name.endswith("bias") for w in weights)
    pb.harden(model)
    again = model["odd"](x)
    torch.testing.assert_close(again[0] if isinstance(again, tuple) else again, first[1])


@given(
    groups=st.integers(1, 3), out=st.integers(1, 4), inner=st.integers(1, 4),
    tail=st.lists(st.integers(1, 3), max_size=2), stacked=st.booleans(), transposed=st.booleans(),
)  # fmt: skip
def test_a_layout_and_back_is_where_one_began(
    groups: int, out: int, inner: int, tail: list[int], stacked: bool, transposed: bool
) -> None:
    layout = Layout(groups, stacked, transposed)
    matrix = (inner, out) if transposed else (out, inner)
    shape = (groups, *matrix) if stacked else (groups * matrix[0], matrix[1])
    w = torch.randn(*shape, *tail)
    rows = layout.rows(w)
    assert rows.shape == (groups * out, inner, *tail)
    assert torch.equal(layout.back(rows), w)


def test_layers_with_outputs_first_have_no_layout() -> None:
    usual = [nn.Linear(2, 3), nn.Conv1d(2, 3, 1), nn.Conv2d(2, 3, 1), nn.Bilinear(2, 3, 4)]
    assert all(layout_of(module, module.weight) is None for module in usual)


# What cannot train -------------------------------------------------------------------------------


class Lora(nn.Module):
    """A frozen layer with a trained adapter beside it, in PEFT's names."""

    def __init__(self) -> None:
        super().__init__()
        self.base_layer = nn.Linear(4, 4).requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(4, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, 4, bias=False)})

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))


def test_adapters_stay_float_and_frozen_weights_are_told() -> None:
    model = nn.Sequential(Lora(), Lora(), nn.Linear(4, 2))
    with pytest.warns(pb.SettingsWarning, match="2 of 2 binary weights are frozen") as caught:
        report = pb.binarize(model, "bnn++")
    assert len(caught) == 1
    assert [line.name for line in report.binary] == ["0.base_layer", "1.base_layer"]
    assert {
        name: reason for name, reason in why(report).items() if "lora" in name
    } == dict.fromkeys([f"{i}.lora_{part}.default" for i in range(2) for part in "AB"], "adapter")
    assert any("are frozen" in note for note in report.notes)


def test_peft_adapters_stay_float() -> None:
    transformers_or_skip()
    peft = pytest.importorskip("peft")
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    tuned = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["0", "1"]))
    with pytest.warns(pb.SettingsWarning, match="frozen"):
        report = pb.binarize(tuned, "bnn++")
    assert all(line.name.endswith("base_layer") for line in report.binary)
    assert len(report.binary) == 2


# What the report says ----------------------------------------------------------------------------


def test_names_get_a_star_only_where_they_differ() -> None:
    assert alike(["features.0.0.conv"]) == ["features.0.0.conv"]
    assert alike(["a.0.b.1.c", "a.0.b.2.c", "a.0.d"]) == ["a.0.b.*.c", "a.0.d"]


def test_a_warning_of_many_layers_names_a_few() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for i in range(40):
                self.add_module(f"layer{i}", nn.Linear(3, 3))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.children():
                x = functional.relu(layer(x))
            return x

    with pytest.warns(pb.SettingsWarning, match="the inputs of 38 layers") as caught:
        pb.binarize(Wide(), "bnn", "BWA")
    assert len(str(caught[0].message)) < 400


def test_a_notebook_gets_the_report_as_a_table() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    report = pb.binarize(model, "bnn")
    html = report._repr_html_()
    assert html.count("<tr>") == 1 + 3
    assert "<td>float: last classifier</td>" in html
    assert "BNN, BW: 2 of 3 layers binary" in html


def test_the_report_names_the_table_that_dominates_and_how_to_store_it(tmp_path: Any) -> None:
    model = nn.Sequential(nn.Embedding(500, 64), nn.Linear(64, 64), nn.Linear(64, 5))
    report = pb.binarize(model, "bc")
    (hint,) = report.notes
    assert "is '0.weight', which stays float" in hint
    net = pb.pack(pb.harden(model).eval())
    file = tmp_path / "net.safetensors"
    pb.save(net, file, float_rest="float16", tables="int8")
    about = float(hint.rpartition("about ")[2].split()[0]) * 1e3
    assert about == pytest.approx(file.stat().st_size, rel=0.1)


def test_a_model_without_tables_gets_no_hint() -> None:
    assert not pb.binarize(mlp(), "bc").notes


@pytest.mark.parametrize("name", list(ODD))
def test_exported_constants_stand_where_their_parameters_stood(name: str) -> None:
    """The constants that an ONNX file gets are those of the hard model, whatever their layout."""
    module, shape = ODD[name]
    model = nn.ModuleDict({"odd": copy.deepcopy(module)}).eval()
    pb.binarize(model, "bc", parametrize="odd")
    pb.harden(model)
    x = torch.randn(shape)
    outputs = [net["odd"](x) for net in (model, as_constants(model, STANDARD))]
    torch.testing.assert_close(*(out[0] if isinstance(out, tuple) else out for out in outputs))
    for constant in as_constants(model, STANDARD).modules():
        if isinstance(constant, ConstantWeight):
            assert torch.equal(constant.values.abs(), constant.scale.expand_as(constant.values))


def test_follow_refuses_weights_that_lie_otherwise() -> None:
    model = nn.Sequential(Conv1D(4, 4), nn.Linear(4, 2))
    pb.binarize(
        model, pb.method("bnn", scale="none", unit="one", schedule=pb.Constant(1.0)), only="0"
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pb.attach(model, optimizer, steps=3)
    with pytest.raises(ValueError, match=r"'0\.weight' does not hold its output channels first"):
        pb.theory.follow(model, optimizer)
