"""From the words of a configuration to the network and the schedule that they mean."""

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

import proxbit as pb
from proxbit.core import methods
from proxbit.core.methods import METHODS
from proxbit.core.schedules import Constant
from proxbit.models import build
from proxbit.nn.model_weights import binary_weights, named_quantizers, quantizers
from proxbit.train.config import Config
from proxbit.train.distillation import Terms
from proxbit.train.loss import Loss
from proxbit.train.network_state import quantizer_states
from proxbit.train.precision import choose_precision, use_plain_attention
from proxbit.train.settings import method_of, parse_strength, resolve_method, with_options
from proxbit.train.setup import PreparedRun, prepare, resolve
from proxbit.util.compat import allow_torchvision

NETS = """
from torch import nn

def keeping(model, **values):
    model.got = values
    return model

def layers(classes):
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Hardtanh(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(16, classes)
    )

class Attending(nn.Module):
    def __init__(self, classes):
        super().__init__()
        block = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(6, classes)
    def forward(self, x): return self.head(self.blocks(x.squeeze(1)).mean(1))

def plain(classes): return layers(classes)
def rectified(classes):
    net = layers(classes)
    net[1] = nn.ReLU()
    return net
def cut(classes, patch_size=2): return keeping(layers(classes), patch_size=patch_size)
def attending(classes): return Attending(classes)
def open(classes, **values): return keeping(layers(classes), **values)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("setup")
    (path / "nets.py").write_text(NETS)
    x, y = np.arange(36 * 8, dtype="u1").reshape(8, 6, 6), np.arange(8) % 2
    np.savez(path / "images.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    return path


def job(place: Path, net: str = "plain", **values: object) -> PreparedRun:
    model, data = f"{place}/nets.py:{net}", f"npz:{place}/images.npz"
    return prepare(Config(model=model, data=data, batch_size=8, cpu=True, **values))


def network(place: Path, net: str = "plain", **values: object) -> nn.Module:
    return job(place, net, **values).model


ends = st.floats(0.01, 100).map(lambda value: float(f"{value:.4g}"))
FORMS = {
    "{0}": lambda a, b, p: a,
    "{0}:{1}": lambda a, b, p: a + p * (b - a),
    "{0}:{1}:log": lambda a, b, p: a ** (1 - p) * b**p,
}


@given(form=st.sampled_from(list(FORMS)), start=ends, end=ends, progress=st.floats(0, 1))
def test_a_strength_in_words_is_its_schedule(place, form, start, end, progress):
    model = network(place, strength=form.format(start, end))
    for weight in binary_weights(model):
        strength = weight.quantizer.schedule(progress)
        assert strength == pytest.approx(FORMS[form](start, end, progress))


@pytest.mark.parametrize("text", ["5:log", "log", "1:2:3", "1:2:log:log", "1:2:", ":log", "1:2log"])
def test_a_strength_that_is_none_is_repeated(place, text):
    with pytest.raises(ValueError, match="a strength is 5, 1:20 or") as caught:
        network(place, strength=text)
    assert str(caught.value).endswith(repr(text))


@pytest.mark.parametrize("settings", ["default", "paper"])
@pytest.mark.parametrize("name", [name for name in METHODS if name != "fp"])
def test_a_methods_own_settings_written_out_are_the_method(name, settings):
    config = resolve_method(Config(method=name, task="BWA", settings=settings))
    own = methods.method(name, settings)
    again = methods.method(
        name, "paper" if settings == "default" else "default", rule=own.rule,
        schedule=parse_strength(config.strength), scale=config.scale or own.scale,
        unit=config.unit, input_schedule=parse_strength(config.input_strength),
    )  # fmt: skip
    assert (again.unit, again.scale) == (own.unit, own.scale)
    if config.strength is not None:  # those without one have no use for a schedule
        assert again.schedule == own.schedule
    if config.input_strength is not None:
        assert again.input_schedule == own.input_schedule
    assert (config.strength is None) == (own.schedule == Constant())


def test_what_was_asked_for_stays_and_a_run_keeps_what_was_not(place):
    asked = {"strength": "2:7", "unit": "one", "scale": "layer"}
    config = job(place, task="BWA", **asked).config
    assert {name: getattr(config, name) for name in asked} == asked
    assert config.input_strength == "1:5"
    assert resolve_method(Config(method="fp")) == Config(method="fp", sharp=0.0, frozen=0.15)


@pytest.mark.parametrize("name", list(METHODS))
def test_the_papers_strengths_run_to_the_last_step_unless_signs_are_to_be_frozen(place, name):
    assert job(place, method=name).config.frozen == 0.15
    assert job(place, method=name, settings="paper").config.frozen == 0.0
    assert job(place, method=name, settings="paper", frozen=0.25).config.frozen == 0.25


@pytest.mark.parametrize("task", ["BW", "BWA", "BWAA"])
@pytest.mark.parametrize("net", ["rectified", "attending"])
def test_in_the_papers_settings_all_methods_are_trained_alike(place, net, task):
    own = {"method", "strength", "input_strength", "unit", "scale"}
    seen = {
        tuple((k, v) for k, v in asdict(config).items() if k not in own)
        for config in (
            job(place, net, method=name, task=task, settings="paper").config
            for name, method in METHODS.items()
            if method.binary
        )
    }
    assert len(seen) == 1
    rates = {job(place, net, method="fp", settings="paper", task=task).config.lr}
    assert rates == {dict(next(iter(seen)))["lr"]}


@pytest.mark.parametrize("task", ["BW", "BWA", "BWAA"])
@pytest.mark.parametrize("settings", ["default", "paper"])
@pytest.mark.parametrize("name", ["bnn++", "pc", "poly+", "ede+", "bc", "ede", "pq", "ptb", "fp"])
def test_a_soft_pair_is_seen_as_signs_for_half_of_the_steps(place, name, settings, task):
    expects = settings == "default" and name in ("bnn++", "poly+", "ede+")
    options = {"method": name, "settings": settings, "task": task}
    assert job(place, **options).config.sharp == (0.5 if expects else 0.0)
    assert job(place, sharp=0.0, **options).config.sharp == 0.0
    assert job(place, frozen=0.9, **options).config.sharp == pytest.approx(0.06 if expects else 0)
    mine = job(place, sharp=0.3, frozen=0.25, **options).model
    shares = [quantizer.method.sharp for quantizer in quantizers(mine)]
    assert shares == pytest.approx([0.4] * len(shares)) and bool(shares) == (name != "fp")


def test_options_of_a_model_reach_the_users_function_if_they_are_given(place):
    sizes = {"channels": 1, "image_size": 6}
    assert network(place, "cut").got == {"patch_size": 2}
    assert network(place, "cut", patch_size=3).got == {"patch_size": 3}
    assert network(place, "open").got == sizes
    given = {"patch_size": 3, "drop_path": 0.25}
    assert network(place, "open", **given).got == sizes | given


@pytest.mark.parametrize("model", ["resnet8", "resnet20"])
def test_options_that_a_model_does_not_have_are_refused_by_name(place, model):
    given = {"patch_size": 3, "drop_path": 0.25}
    data = f"npz:{place}/images.npz"
    for names in (["patch_size"], ["drop_path"], ["drop_path", "patch_size"]):
        options = {name: given[name] for name in names}
        with pytest.raises(ValueError, match=f"unknown option of {model} '{', '.join(names)}'"):
            prepare(Config(model=model, data=data, batch_size=8, **options))
    with pytest.raises(ValueError, match=r"option of .*plain 'drop_path, patch_size': known: clas"):
        network(place, "plain", **given)


@pytest.mark.parametrize("task", ["BW", "BWA"])
def test_quantizers_have_the_names_of_their_modules(place, task):
    model = network(place, task=task)
    named = named_quantizers(model)
    assert list(named.values()) == quantizers(model)
    assert len(named) == {"BW": 1, "BWA": 2}[task]
    for name, quantizer in named.items():
        assert model.get_submodule(name) is quantizer
        assert quantizer_states(model)[name] == quantizer.saved()


@pytest.mark.parametrize(("net", "compares"), [("plain", 0.0), ("attending", 1.0)])
@pytest.mark.parametrize(("per_sample", "temperature"), [(False, 1.0), (True, 4.0)])
def test_the_terms_of_a_job_suit_student_and_teacher_as_they_train(
    place, tmp_path, net, compares, per_sample, temperature
):
    state = network(place, net, method="fp").state_dict()
    weights = str(tmp_path / "float.safetensors")
    save_file({name: value.contiguous() for name, value in state.items()}, weights)
    own = {"per_sample": per_sample, "temperature": temperature}
    made = job(place, net, weights=weights, distill=True, task="BWA", **own)
    assert made.teacher is not None
    assert made.terms == replace(Terms.for_model(made.model, made.teacher), **own)
    named = job(place, net, weights=weights, distill=True, task="BWA", terms="logits", **own)
    assert named.terms == Terms(1.0, 0.0, 0.0, 0.0, **own)
    assert made.terms.relations == made.terms.hidden == compares
    assert Loss(made, made.model, torch.device("cpu")).distiller.terms is made.terms


def test_the_teacher_may_be_another_model(place, tmp_path):
    weights = str(tmp_path / "attending.safetensors")
    state = network(place, "attending", method="fp").state_dict()
    save_file({name: value.contiguous() for name, value in state.items()}, weights)
    model = f"{place}/nets.py:attending"
    made = job(place, teacher=weights, teacher_model=model)
    assert type(made.teacher).__name__ == "Attending"
    assert made.config.distill and made.terms == Terms(relations=0.0, hidden=0.0)
    assert Loss(made, made.model, torch.device("cpu")).distiller.terms is made.terms
    same = job(place, "attending", teacher=weights, teacher_model=model)
    assert same.terms == Terms.for_model(same.model, same.teacher)
    with pytest.raises(ValueError, match=r"give the weights of .*attending as --teacher"):
        job(place, teacher_model=model)


@pytest.mark.parametrize(("classes", "knows"), [(1000, True), (2, False)])
def test_weights_of_timm_teach_if_they_know_the_classes(classes, knows):
    allow_torchvision()
    pytest.importorskip("timm")
    model = build("timm/test_vit", classes=classes)
    for task in ("BW", "BWA"):
        config = Config(model="timm/test_vit", weights="pretrained", task=task)
        assert resolve(config, model).distill == knows
    assert not resolve(replace(config, method="fp"), model).distill
    assert not resolve(replace(config, weights=None), model).distill


def test_a_teacher_that_knows_other_classes_is_refused(place, monkeypatch):
    allow_torchvision()
    pytest.importorskip("timm")
    state = build("timm/test_vit", classes=1000, channels=3).state_dict()
    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", lambda *_, **__: state)
    config = Config(
        model="timm/test_vit", data=f"npz:{place}/images.npz", batch_size=8, image_size=160,
        teacher="pretrained",
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"^timm's weights of timm/test_vit know other classes"):
        prepare(config)


@pytest.mark.parametrize(("normalize", "mean"), [("half", (0.5,)), ("data", None)])
def test_images_are_normalized_as_weights_expect_them(place, normalize, mean):
    data = job(place, normalize=normalize).data
    assert mean is None or (data.mean, data.std) == (mean, mean)
    assert mean is not None or data.mean != (0.5,)


@pytest.mark.parametrize("task", ["BW", "BWA", "BWAA"])
@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.binary])
def test_no_gradient_passes_a_large_binary_input_and_small_ones_keep_their_signs(place, name, task):
    net = network(place, "rectified", method=name, task=task)
    if task == "BW":
        assert type(net[1]) is nn.ReLU
        return
    x = torch.tensor([-1e4, -0.5, 0.5, 1e4], requires_grad=True)
    seen = net[2].binary.input_quantizer(net[1](x.expand(1, 4, 1, 4)))
    assert torch.equal(seen.sign(), x.sign().expand(1, 4, 1, 4))
    (slope,) = torch.autograd.grad(seen.sum(), x)
    assert slope[0] == slope[3] == 0 and (slope[1:3] > 0).all()


def test_the_users_file_with_a_method_runs_once(tmp_path):
    """A method is looked up once per run: its file may do anything when it is executed."""
    own = tmp_path / "own.py"
    own.write_text(
        "from pathlib import Path\n"
        "import proxbit as pb\n"
        "with Path(__file__).with_suffix('.runs').open('a') as file:\n"
        "    file.write('x')\n"
        "mine = pb.pairs.bnn_plus_plus\n"
    )
    config = Config(model="resnet8", data="fashion", method=f"{own}:mine", cpu=True)
    prepared = prepare(config)
    assert prepared.method.pair is pb.bnn_plus_plus
    assert own.with_suffix(".runs").read_text() == "x"


@pytest.mark.parametrize(("capable", "expected"), [("avx512_bf16", "bf16"), ("avx2", "no")])
def test_auto_is_bf16_where_the_cpu_multiplies_it(monkeypatch, capable, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {capable: True}, raising=False)
    assert choose_precision("auto", cpu=True) == expected
    assert [choose_precision(asked, cpu=True) for asked in ("no", "bf16")] == ["no", "bf16"]


def test_plain_attention_is_the_same_attention():
    vit = build("timm/vit_tiny_patch16_224", classes=3, image_size=32).eval()
    x = torch.randn(2, 3, 32, 32)
    fused = vit(x)
    use_plain_attention(vit)
    assert not any(getattr(module, "fused_attn", False) for module in vit.modules())
    torch.testing.assert_close(vit(x), fused, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("inputs", METHODS)
@pytest.mark.parametrize("name", ["pc", "bnn++", "rpc", "fp"])
def test_binary_inputs_are_those_of_another_method(name: str, inputs: str) -> None:
    own, other = METHODS[name], METHODS[inputs]
    config = resolve_method(Config(method=name, input_pair=inputs, task="BWA"))
    found = with_options(method_of(config), config)
    assert found.input_pair == (other.input_pair or other.pair)
    taken = ("input_pair", "input_schedule", "sharp")
    assert replace(found, **{k: getattr(own, k) for k in taken}) == own
    for progress in (0.0, 0.5, 1.0):
        expected = (other.input_schedule or other.schedule)(progress)
        assert found.input_schedule(progress) == expected


def test_inputs_may_have_a_pair_that_weights_of_these_settings_may_not() -> None:
    method = pb.method("pc", "admitted", input_pair="bi-real")
    assert method.input_pair == METHODS["bi-real"].pair
    with pytest.raises(ValueError, match="unknown method 'tanh'"):
        pb.method("pc", input_pair="tanh")
