"""Every family of models in every task, exported with our operators: ONNX Runtime agrees."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import proxbit as pb
from proxbit.export.graphs import attributes
from proxbit.export.onnx import OnnxFile
from proxbit.util.compat import allow_torchvision

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

import onnx

from ort_nodes import places, session
from ort_oracle import binary_node

ROOT = Path(__file__).resolve().parents[1]
TASKS = ("BW", "BWA", "BWAA")
SWIN = {"embed_dim": 24, "depths": (2,), "num_heads": (2,), "patch_size": 2}
NARROW = {"depth": 1, "embed_dim": 24, "num_heads": 2}
# Of each family as little as there is; the whole of a large one in one task.
MODELS: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("resnet8", {"image_size": 16, "width": 4}, TASKS),
    ("bireal_resnet8", {"image_size": 16, "width": 4}, TASKS),
    ("tiny_vit", {"image_size": 16, "depth": 1, "embed_dim": 24}, TASKS),
    ("mini_bottleneck", {"image_size": 32}, TASKS),
    ("mini_nest", {"image_size": 32}, ("BWA", "BWAA")),
    ("mini_swin", {"image_size": 32}, ("BWAA",)),
    ("timm/swin_tiny_patch4_window7_224", {"image_size": 32, **SWIN}, ("BW", "BWA")),
    ("timm/deit_tiny_patch16_224", {"image_size": 32, **NARROW}, ("BWA",)),
]
CASES = [(name, options, task) for name, options, tasks in MODELS for task in tasks]


def hard(model: nn.Module, task: Any, x: Tensor) -> nn.Module:
    """With batch statistics of its own, and no two norms alike, which would be held once."""
    pb.binarize(model, "bnn", task)
    with torch.no_grad():
        model(x)
        for each in model.parameters():
            if each.dim() == 1:
                each.add_(torch.randn_like(each) / 10)
    return pb.harden(model).eval()


def results(net: nn.Module, x: Tensor) -> Any:
    with torch.no_grad():
        out = net(x)
    return (out["logits"] if isinstance(out, dict) else out).numpy()


def everything(path: Path, x: Tensor) -> tuple[Any, dict[str, Any], list[Any]]:
    """The first output, each value that our nodes touch by its name, and our nodes."""
    proto = onnx.load(path)
    nodes = [node for node in proto.graph.node if node.op_type.startswith(("Binary", "Weight"))]
    held = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    known = {value.name for value in (*proto.graph.input, *proto.graph.output)} | held.keys()
    wanted = {name for node in nodes for name in (*node.input, *node.output) if name} - known
    names = [proto.graph.output[0].name, *sorted(wanted)]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(wanted))
    entry = proto.graph.input[0].name
    found = session(proto.SerializeToString()).run(names, {entry: x.numpy()})
    values = held | {entry: x.numpy()} | dict(zip(names, found, strict=True))
    return found[0], values, nodes


def check_sums(values: dict[str, Any], nodes: list[Any]) -> None:
    """Each layer gives, for what it was given, the very output of plain formulas."""
    for node in nodes:
        named = zip(places(node.op_type), node.input, strict=False)
        held = {place: values[name] for place, name in named if name}
        how = {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes(node).items()}
        found = next(values[name] for name in node.output if name)
        wanted = binary_node(node.op_type, how, held)
        if how.get("activation") == "gelu" and found.dtype == np.float32:
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6, err_msg=node.name)
        else:
            np.testing.assert_array_equal(found, wanted, err_msg=node.name)


def check(net: nn.Module, written: OnnxFile, task: str, x: Tensor) -> None:
    out, values, nodes = everything(written.path, x)
    assert nodes and all(node.name for node in nodes)
    wanted = results(net, x)
    apart = np.abs(out - wanted).reshape(len(x), -1).max(1) / np.abs(wanted).max()
    if task == "BW":
        assert apart.max() < 1e-5
        return
    # A rounding of the float rest may give an input of a binary layer another sign, now and then.
    assert np.median(apart) < 1e-5
    check_sums(values, nodes)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options", "task"), CASES)
def test_every_family_agrees_and_is_as_small_as_its_packed_file(
    name: str, options: dict[str, Any], task: str, tmp_path: Path
) -> None:
    allow_torchvision()
    pytest.importorskip("timm")
    side = options["image_size"]
    model = pb.models.build(name, classes=7, **options)
    pb.save(pb.pack(hard(model, task, torch.randn(3, 3, side, side))), tmp_path / "net.safetensors")
    skeleton = pb.models.build(name, classes=7, **options) if "depths" in options else None
    net = pb.load(tmp_path / "net.safetensors", skeleton)
    fixed = task == "BWA"
    written = pb.export_onnx(net, tmp_path / "net.onnx", operators="proxbit", fixed_batch=fixed)
    assert [*written.inputs.values()] == [(1 if fixed else "batch", 3, side, side)]
    check(net, written, task, torch.randn(1 if fixed else 3, 3, side, side))
    assert written.bytes < 1.03 * (tmp_path / "net.safetensors").stat().st_size


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_the_text_encoder_of_the_examples_agrees(task: str, tmp_path: Path) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "text_encoder.py"))
    ids = torch.randint(0, example["TOKENS"], (3, example["LENGTH"]))
    net = pb.pack(hard(example["Classifier"](width=16), task, ids))
    fixed = task == "BWA"
    given = {"input_ids": ids[:1]}
    written = pb.export_onnx(
        net, tmp_path / "net.onnx", given, operators="proxbit", fixed_batch=fixed
    )
    assert [*written.inputs.values()] == [(1 if fixed else "batch", example["LENGTH"])]
    check(net, written, task, ids[: 1 if fixed else 3])
