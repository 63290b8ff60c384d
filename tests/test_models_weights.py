"""Weights of others: all of them bit for bit, or none and one sentence that says why."""

import json
import math
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import proxbit as pb
from proxbit.models import build, load_weights
from proxbit.models.weight_files import read_weights
from proxbit.models.weight_fitting import misfit
from proxbit.util.compat import allow_torchvision

safetensors = pytest.importorskip("safetensors.torch", reason="needs safetensors")
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning:timm.*"
)
SHARED = Path(__file__).parents[2] / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason=f"no public weights in {SHARED}")
VIT: dict[str, Any] = {"embed_dim": 12, "depth": 1, "num_heads": 3}
SWIN: dict[str, Any] = {"embed_dim": 12, "depths": (1, 1, 1, 1), "num_heads": (1, 1, 2, 2)}


@pytest.fixture(scope="module")
def timm() -> Any:
    allow_torchvision()
    return pytest.importorskip("timm", reason="needs timm")


def small(classes: int = 3, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return build("resnet8", classes=classes, width=2)


def copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def save(tensors: dict[str, Tensor], path: Path) -> Path:
    safetensors.save_file({name: t.contiguous() for name, t in tensors.items()}, path)
    return path


def refusal(model: nn.Module, path: Path, **options: Any) -> str:
    """The sentence, after a proof that the model is untouched."""
    before = copied(model)
    with pytest.raises(ValueError) as caught:
        load_weights(model, path, **options)
    assert same(copied(model), before)
    message = str(caught.value)
    assert "\n" not in message and str(path) in message
    return message


# every way a file may come

WRAPPINGS: dict[str, Callable[[Any], Any]] = {
    "bare": lambda state: state,
    "state_dict": lambda state: {"state_dict": state, "epoch": 3, "best": 91.7},
    "model": lambda state: {"model": state, "args": ["--lr", 0.1]},
    "both": lambda state: {"model": {"state_dict": state}},
    "ordered": lambda state: OrderedDict(state),
}


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod."])
@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_a_torch_file_loads_bit_for_bit(wrapping: str, prefix: str, tmp_path: Path) -> None:
    there, here = small(seed=1), small(seed=2)
    state = {prefix + name: tensor for name, tensor in there.state_dict().items()}
    torch.save(WRAPPINGS[wrapping](state), tmp_path / "net.pth")
    note = load_weights(here, tmp_path / "net.pth")
    assert same(copied(here), copied(there))
    assert set(note.loaded) == set(there.state_dict()) and not note.resized and not note.fresh


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod."])
def test_safetensors_and_folders_load_bit_for_bit(prefix: str, tmp_path: Path) -> None:
    there = small(seed=1)
    state = {prefix + name: tensor for name, tensor in there.state_dict().items()}
    file = save(state, tmp_path / "model.safetensors")
    for path in (file, tmp_path, str(tmp_path)):
        here = small(seed=2)
        load_weights(here, path)
        assert same(copied(here), copied(there))


def test_names_that_really_begin_with_module_are_kept_apart(tmp_path: Path) -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module, self.head = nn.Linear(2, 2), nn.Linear(2, 3)

    there, here = Holder(), nn.DataParallel(small(seed=2))
    file = save(there.state_dict(), tmp_path / "holder.safetensors")
    again = Holder()
    load_weights(again, file)
    assert same(copied(again), copied(there))

    file = save(small(seed=1).state_dict(), tmp_path / "net.safetensors")
    load_weights(here, file)
    assert same(copied(here.module), copied(small(seed=1)))


def test_two_names_that_become_one_are_refused(tmp_path: Path) -> None:
    state = small().state_dict()
    file = save({**state, "module.linear.bias": torch.zeros(3)}, tmp_path / "net.safetensors")
    assert "both 'module.linear.bias' and 'linear.bias'" in refusal(small(), file)


def test_other_number_types_are_converted_to_the_models(tmp_path: Path) -> None:
    half = {name: t.half() if t.is_floating_point() else t for name, t in copied(small()).items()}
    model = small(seed=2)
    load_weights(model, save(half, tmp_path / "net.safetensors"))
    assert model.linear.weight.dtype is torch.float32
    assert torch.equal(model.linear.weight, half["linear.weight"].float())


def test_weights_from_before_batch_counters_load(tmp_path: Path) -> None:
    there, here = small(seed=1), small(seed=2)
    state = {n: t for n, t in there.state_dict().items() if not n.endswith("num_batches_tracked")}
    load_weights(here, save(state, tmp_path / "net.safetensors"))
    assert same(copied(here), copied(there))


def test_parameters_stay_the_same_objects(tmp_path: Path) -> None:
    model = small()
    before = [id(p) for p in model.parameters()]
    load_weights(model, save(small(seed=1).state_dict(), tmp_path / "net.safetensors"))
    assert [id(p) for p in model.parameters()] == before


def test_float_weights_load_into_a_binary_model(tmp_path: Path) -> None:
    there, here = small(seed=1), small(seed=2)
    pb.binarize(here, "bnn++")
    load_weights(here, save(there.state_dict(), tmp_path / "net.safetensors"))
    assert same(copied(here), copied(there))


def test_the_note_is_one_line_and_plain_data(tmp_path: Path) -> None:
    file = save(small(5).state_dict(), tmp_path / "net.safetensors")
    note = load_weights(small(), file, new_head=True)
    assert str(note) == f"{len(note.loaded)} tensors from {file}; new: linear.weight, linear.bias"
    assert json.loads(json.dumps(note.to_dict()))["fresh"] == ["linear.weight", "linear.bias"]


# what does not fit

NAMES = [name for name in small().state_dict() if not name.endswith("num_batches_tracked")]


@given(
    gone=st.sets(st.sampled_from(NAMES), max_size=6),
    new=st.sets(st.text("abc", min_size=1, max_size=4), max_size=6),
    reshaped=st.sets(st.sampled_from(NAMES), max_size=6),
)
def test_missing_unknown_and_reshaped_tensors_are_counted_and_named(
    tmp_path_factory: pytest.TempPathFactory, gone: set[str], new: set[str], reshaped: set[str]
) -> None:
    model, reshaped = small(seed=2), reshaped - gone
    state = {name: tensor for name, tensor in copied(small()).items() if name not in gone}
    state |= {name: torch.zeros(9, 9, 9) for name in (*new, *reshaped)}
    file = save(state, tmp_path_factory.mktemp("w") / "net.safetensors")
    if not (gone or new or reshaped):
        load_weights(model, file)
        assert same(copied(model), copied(small()))
        return
    message = refusal(model, file)
    for names, word in ((gone, "missing"), (new, "unknown to the model"), (reshaped, "another sh")):
        assert (f"{len(names)} {word}" in message or f"{len(names)} of {word}" in message) == bool(
            names
        )
        told = [name for name in names if name in message.partition("fit the model")[2]]
        assert len(told) >= min(3, len(names))
    assert ("(9, 9, 9) for" in message) == bool(reshaped)


@given(st.lists(st.text("ab.", min_size=1, max_size=3)), st.lists(st.text("ab.", max_size=3)))
def test_a_misfit_is_the_difference_of_sets(own: list[str], there: list[str]) -> None:
    shapes = {name: torch.zeros(len(name)) for name in own}
    given_shapes = {name: torch.zeros(1) for name in there}
    found = misfit(shapes, given_shapes)
    assert set(found.missing) == set(own) - set(there)
    assert set(found.extra) == set(there) - set(own)
    assert {n for n, _, _ in found.shapes} == {n for n in set(own) & set(there) if len(n) != 1}
    assert bool(found) == (set(own) != set(there) or any(len(n) != 1 for n in own))


# the classifier


class HeadFirst(nn.Module):
    """A network whose classifier is registered before its body."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(4, classes), nn.Linear(3, 4)


def two_heads(classes: int) -> nn.Module:
    return build("timm/deit_tiny_distilled_patch16_224", classes=classes, **SMALL_DEIT)


SMALL_DEIT: dict[str, Any] = {"image_size": 8, "patch_size": 4, **VIT}
HEADS: dict[str, tuple[Callable[[int], nn.Module], set[str]]] = {
    "ours": (small, {"linear"}),
    "head first": (HeadFirst, {"head"}),
    "a layer alone": (lambda classes: nn.Linear(4, classes), {""}),
    "two heads of timm": (two_heads, {"head", "head_dist"}),
    "swin": (
        lambda classes: build("timm/swin_tiny_patch4_window7_224", classes=classes, **SWIN),
        {"head.fc"},
    ),
    "timm resnet": (lambda classes: build("timm/test_resnet", classes=classes), {"fc"}),
}


@pytest.mark.parametrize("case", HEADS)
def test_other_classes_are_refused_with_the_cure_and_cured(
    case: str, timm: Any, tmp_path: Path
) -> None:
    make, layers = HEADS[case]
    there, here = make(5), make(3)
    file = save(there.state_dict(), tmp_path / "net.safetensors")
    message = refusal(here, file)
    assert "have 5 classes, the model 3: pass new_head=True (--new-head)" in message

    before = copied(here)
    note = load_weights(here, file, new_head=True)
    assert set(note.fresh) == {n for n in before if n.rpartition(".")[0] in layers}
    for name, tensor in here.state_dict().items():
        expected = before if name in note.fresh else there.state_dict()
        assert torch.equal(tensor, expected[name]), name


def test_a_new_head_is_new_even_where_the_old_one_would_fit(tmp_path: Path) -> None:
    there, here = small(seed=1), small(seed=2)
    before = copied(here)
    load_weights(here, save(there.state_dict(), tmp_path / "net.safetensors"), new_head=True)
    assert torch.equal(here.linear.weight, before["linear.weight"])
    assert torch.equal(here.conv1.weight, there.conv1.weight)


def test_weights_without_a_classifier_need_a_new_one(tmp_path: Path) -> None:
    body = {n: t for n, t in small(seed=1).state_dict().items() if not n.startswith("linear")}
    file, here = save(body, tmp_path / "net.safetensors"), small(seed=2)
    message = refusal(here, file)
    assert "2 missing (linear.weight, linear.bias): pass new_head=True" in message
    load_weights(here, file, new_head=True)
    assert torch.equal(here.conv1.weight, body["conv1.weight"])


def test_a_new_head_excuses_nothing_else(tmp_path: Path) -> None:
    narrow = build("resnet8", classes=5, width=3)
    file = save(narrow.state_dict(), tmp_path / "net.safetensors")
    for new_head in (False, True):
        message = refusal(small(), file, new_head=new_head)
        assert "of another shape" in message and "classes" not in message


@pytest.mark.parametrize("shape", [(), (1, 1, 1), (3, 7)])
def test_a_classifier_of_strange_shape_is_no_matter_of_classes(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    state = copied(small()) | {"linear.weight": torch.zeros(shape)}
    message = refusal(small(), save(state, tmp_path / "net.safetensors"))
    assert "of another shape (linear.weight" in message and "pass new_head=True" in message


# files that are damaged or mean harm


@given(share=st.floats(0, 1, exclude_max=True), kind=st.sampled_from(["safetensors", "pth"]))
def test_a_file_cut_anywhere_is_refused(
    tmp_path_factory: pytest.TempPathFactory, share: float, kind: str
) -> None:
    file = tmp_path_factory.mktemp("w") / f"net.{kind}"
    model = nn.Linear(2, 3)
    if kind == "pth":
        torch.save(model.state_dict(), file)
    else:
        save(model.state_dict(), file)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    assert "file" in refusal(nn.Linear(2, 3), file)


@given(junk=st.binary(max_size=64), kind=st.sampled_from(["safetensors", "pth", "txt"]))
def test_junk_is_refused(tmp_path_factory: pytest.TempPathFactory, junk: bytes, kind: str) -> None:
    file = tmp_path_factory.mktemp("w") / f"net.{kind}"
    file.write_bytes(junk)
    refusal(nn.Linear(2, 3), file)


HEADERS: dict[str, Any] = {
    "past the end": {"weight": {"dtype": "F32", "shape": [3, 2], "data_offsets": [0, 2400]}},
    "wrong length": {"weight": {"dtype": "F32", "shape": [300, 2], "data_offsets": [0, 24]}},
    "negative": {"weight": {"dtype": "F32", "shape": [-3, 2], "data_offsets": [0, 24]}},
    "no such type": {"weight": {"dtype": "PYOBJ", "shape": [3, 2], "data_offsets": [0, 24]}},
    "overflow": {"weight": {"dtype": "F32", "shape": [2**62, 8], "data_offsets": [0, 24]}},
    "empty": {},
    "a list": [],
}


@pytest.mark.parametrize("kind", HEADERS)
def test_a_lying_header_is_refused(kind: str, tmp_path: Path) -> None:
    header = json.dumps(HEADERS[kind]).encode()
    file = tmp_path / "net.safetensors"
    file.write_bytes(
        len(header).to_bytes(8, "little") + header + bytes(24 if kind != "empty" else 0)
    )
    refusal(nn.Linear(2, 3), file)


def test_a_header_longer_than_memory_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "net.safetensors"
    file.write_bytes((2**63).to_bytes(8, "little") + b"{}")
    refusal(nn.Linear(2, 3), file)


class Touch:
    """A pickle that would make a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("writer", [torch.save, lambda x, f: f.write_bytes(pickle.dumps(x))])
def test_a_torch_file_cannot_run_code(writer: Any, tmp_path: Path) -> None:
    trace, file = tmp_path / "it_ran", tmp_path / "net.pth"
    writer({**nn.Linear(2, 3).state_dict(), "more": Touch(trace)}, file)
    assert "nothing in it was run" in refusal(nn.Linear(2, 3), file)
    assert not trace.exists()
    torch.load(file, weights_only=False) if writer is torch.save else pickle.loads(
        file.read_bytes()
    )
    assert trace.exists()  # it would have


ODD: dict[str, tuple[Callable[[], Any], str]] = {
    "tensor": (lambda: torch.zeros(3), "holds a Tensor: it must hold named tensors"),
    "list": (lambda: [torch.zeros(3)], "holds a list"),
    "nothing": (dict, "holds nothing"),
    "numbers": (lambda: {"epoch": 3, "lr": 0.1}, "holds epoch, lr beside tensors"),
    "sparse": (
        lambda: {"weight": torch.eye(3, 2).to_sparse_csr(), "bias": torch.zeros(3)},
        "'weight' in",
    ),
    "meta, after a good one": (
        lambda: {"weight": torch.ones(3, 2), "bias": torch.zeros(3, device="meta")},
        "'bias' in",
    ),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_set_of_plain_tensors_is_refused(kind: str, tmp_path: Path) -> None:
    content, words = ODD[kind]
    torch.save(content(), tmp_path / "net.pt")
    assert words in refusal(nn.Linear(2, 3), tmp_path / "net.pt")


@pytest.mark.parametrize("kind", ["nan", "inf", "too large", "complex"])
@pytest.mark.parametrize("name", ["linear.weight", "bn1.running_var"])
def test_numbers_that_nobody_can_train_from_are_refused(
    kind: str, name: str, tmp_path: Path
) -> None:
    given = copied(small(seed=1))
    value = given[name].double()
    value.view(-1)[-1] = {"nan": math.nan, "inf": -math.inf, "too large": 1e300}.get(kind, 1.0)
    given[name] = value + 1j if kind == "complex" else value
    torch.save(given, tmp_path / "w.pt")
    words = "is complex" if kind == "complex" else "has values that are not finite"
    assert f"'{name}' in '{tmp_path / 'w.pt'}' {words}" in refusal(small(), tmp_path / "w.pt")


def test_an_infinity_that_the_model_has_itself_is_no_fault(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("mask", torch.tensor([0.0, -math.inf]))
    torch.save(model.state_dict(), tmp_path / "w.pt")
    load_weights(model, tmp_path / "w.pt")


def test_a_missing_file_and_an_empty_folder_are_told(tmp_path: Path) -> None:
    assert "there is no weight file" in refusal(small(), tmp_path / "nowhere.safetensors")
    assert "holds no model.safetensors" in refusal(small(), tmp_path)


# other sizes, by timm


def vit(size: int, patch: int, classes: int = 3) -> nn.Module:
    name = "timm/vit_tiny_patch16_224"
    return build(name, classes=classes, image_size=size, patch_size=patch, **VIT)


@pytest.mark.parametrize(("size", "patch"), [(16, 2), (24, 4), (8, 4), (32, 8)])
def test_a_constant_position_embedding_stays_constant(
    timm: Any, size: int, patch: int, tmp_path: Path
) -> None:
    there, here = vit(16, 4), vit(size, patch)
    token, place = torch.randn(12), torch.randn(12)
    with torch.no_grad():
        there.pos_embed[:, 0], there.pos_embed[:, 1:] = token, place
    note = load_weights(here, save(there.state_dict(), tmp_path / "net.safetensors"))
    torch.testing.assert_close(here.pos_embed[0, 1:], place.expand((size // patch) ** 2, 12))
    assert torch.equal(here.pos_embed[0, 0], token)
    assert ("pos_embed" in note.resized) == (size // patch != 4)
    assert ("patch_embed.proj.weight" in note.resized) == (patch != 4)
    changed = [n for n, t in copied(here).items() if not torch.equal(t, there.state_dict()[n])]
    assert set(changed) <= set(note.resized)


def test_a_larger_patch_sees_in_an_enlarged_image_what_the_smaller_saw(
    timm: Any, tmp_path: Path
) -> None:
    there, here = vit(16, 4), vit(32, 8)
    load_weights(here, save(there.state_dict(), tmp_path / "net.safetensors"))
    x = torch.randn(2, 3, 4, 4)
    enlarged = F.interpolate(x, (8, 8), mode="bicubic", antialias=True)
    seen = F.conv2d(enlarged, here.patch_embed.proj.weight)
    torch.testing.assert_close(seen, F.conv2d(x, there.patch_embed.proj.weight), atol=1e-4, rtol=0)


def test_the_same_sizes_are_not_resampled(timm: Any, tmp_path: Path) -> None:
    there, here = vit(16, 4), vit(16, 4)
    note = load_weights(here, save(there.state_dict(), tmp_path / "net.safetensors"))
    assert same(copied(here), copied(there)) and not note.resized


def test_another_size_and_other_classes_go_together(timm: Any, tmp_path: Path) -> None:
    there, here = vit(16, 4, classes=5), vit(24, 4)
    file = save(there.state_dict(), tmp_path / "net.safetensors")
    assert "have 5 classes, the model 3" in refusal(here, file)
    note = load_weights(here, file, new_head=True)
    assert note.resized == ("pos_embed",) and set(note.fresh) == {"head.weight", "head.bias"}
    assert "resampled: pos_embed; new: head.weight, head.bias" in str(note)


def test_resampling_excuses_nothing_else(timm: Any, tmp_path: Path) -> None:
    there = build("timm/vit_tiny_patch16_224", classes=3, image_size=16, patch_size=4, **VIT)
    state = copied(there)
    state["blocks.0.attn.qkv.weight"] = torch.zeros(5, 5)
    message = refusal(vit(24, 4), save(state, tmp_path / "net.safetensors"))
    assert "1 of another shape (blocks.0.attn.qkv.weight (5, 5) for (36, 12))" in message


def test_positions_that_are_no_square_are_refused(timm: Any, tmp_path: Path) -> None:
    state = copied(vit(16, 4)) | {"pos_embed": torch.zeros(1, 8, 12)}
    message = refusal(vit(24, 4), save(state, tmp_path / "net.safetensors"))
    assert "pos_embed (1, 8, 12) for (1, 37, 12)" in message


def test_swin_takes_weights_of_another_size(timm: Any, tmp_path: Path) -> None:
    swin = "timm/swin_tiny_patch4_window7_224"
    there = build(swin, classes=3, image_size=64, window_size=8, **SWIN)
    here = build(swin, classes=3, image_size=32, **SWIN)
    state = copied(there)
    tables = [name for name in state if name.endswith("bias_table")]
    state[tables[0]].fill_(0.25)
    note = load_weights(here, save(state, tmp_path / "swin.safetensors"))
    assert list(note.resized) == tables
    torch.testing.assert_close(here.state_dict()[tables[0]], torch.full((49, 1), 0.25))
    for name in tables:  # a token's bias to itself stays what it was
        old, new = state[name], here.state_dict()[name]
        torch.testing.assert_close(new[len(new) // 2], old[len(old) // 2])


def test_nest_takes_weights_of_another_size(timm: Any, tmp_path: Path) -> None:
    """Its blocks of positions make one picture, which is resampled and cut into blocks again."""
    there = build("timm/nest_tiny", image_size=32, patch_size=2)
    here = build("timm/nest_tiny", image_size=32, patch_size=4)
    state = copied(there)
    rows = torch.arange(16.0).view(4, 1, 4, 1).expand(4, 4, 4, 4)  # block row, column, row, column
    state["levels.0.pos_embed"][..., 0] = rows.flatten(2).flatten(0, 1)
    note = load_weights(here, save(state, tmp_path / "nest.safetensors"))
    places = {f"levels.{i}.pos_embed" for i in range(3)}
    assert set(note.resized) == places | {"patch_embed.proj.weight"}
    new = here.levels[0].pos_embed[0, :, :, 0].view(4, 4, 2, 2)
    # halved: each new row lies between two old ones, up to bicubic overshoot at the edges
    expected = (torch.arange(8.0) * 2 + 0.5).view(4, 1, 2, 1).expand(4, 4, 2, 2)
    torch.testing.assert_close(new, expected, atol=0.1, rtol=0)
    assert torch.equal(here.head.weight, there.head.weight)


# the public weights


@needs_shared
def test_the_public_resnet20_loads_strictly_and_bit_for_bit() -> None:
    file = SHARED / "resnet20_cifar10.safetensors"
    model = build("resnet20", classes=10, channels=3)
    note = load_weights(model, file)
    weights = read_weights(file)
    assert set(note.loaded) == set(weights) and not note.fresh and not note.resized
    assert all(torch.equal(model.state_dict()[name], weights[name]) for name in weights)


@needs_shared
def test_the_public_vision_transformer_loads_at_another_size(timm: Any) -> None:
    file = SHARED / "vit_tiny_patch16_224_in1k.safetensors"
    model = build("timm/vit_tiny_patch16_224", classes=10, image_size=32, patch_size=8)
    assert "have 1000 classes, the model 10" in refusal(model, file)
    note = load_weights(model, file, new_head=True)
    assert set(note.resized) == {"pos_embed", "patch_embed.proj.weight"}
    assert len(note.loaded) == len(model.state_dict()) - 2
