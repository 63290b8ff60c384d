"""ResNets with a shortcut around every convolution: names, sizes, blocks, and the way to a file."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import proxbit as pb
from proxbit.models import bireal_resnet, build, cifar_resnet
from proxbit.models.bireal import STAGES, AveragedShortcut, BiRealBlock, projection
from proxbit.models.resnet import DEPTHS
from proxbit.util.compat import allow_torchvision


@pytest.mark.parametrize("depth", DEPTHS)
def test_tensors_are_those_of_the_ordinary_cifar_resnet(depth: int) -> None:
    ours, ordinary = bireal_resnet(depth, 7, 1), cifar_resnet(depth, 7, 1)
    shapes = {name: value.shape for name, value in ours.state_dict().items()}
    assert shapes == {name: value.shape for name, value in ordinary.state_dict().items()}


@pytest.mark.parametrize("depth", STAGES)
def test_tensors_are_those_of_torchvision_s_resnet(depth: int) -> None:
    allow_torchvision()
    models = pytest.importorskip("torchvision.models")
    with torch.device("meta"):
        ours, theirs = bireal_resnet(depth, 1000), getattr(models, f"resnet{depth}")()
    shapes = {name: value.shape for name, value in ours.state_dict().items()}
    assert shapes == {name: value.shape for name, value in theirs.state_dict().items()}


def test_an_unknown_depth_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="depth 19: choose one of 8, 20"):
        bireal_resnet(19)


@pytest.mark.parametrize("size", [6, 7])
@pytest.mark.parametrize("channels", [(4, 8), (3, 6)])
def test_the_shortcut_is_means_and_zero_padding(channels: tuple[int, int], size: int) -> None:
    small, big = channels
    x, half = torch.randn(2, small, size, size), (size + 1) // 2
    expected = torch.zeros(2, big, half, half)
    for i in range(half):
        for j in range(half):
            window = x[:, :, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2]
            first = (big - small) // 2
            expected[:, first : first + small, i, j] = window.mean((2, 3))
    torch.testing.assert_close(AveragedShortcut(small, big)(x), expected)


@pytest.mark.parametrize("shortcut", [AveragedShortcut, projection])
@pytest.mark.parametrize("stride", [1, 2])
def test_each_convolution_has_its_own_shortcut(shortcut: type[nn.Module], stride: int) -> None:
    wide = 4 * stride
    block, x = BiRealBlock(4, wide, stride, shortcut).eval(), torch.randn(2, 4, 5, 5)
    beside = x if stride == 1 else block.downsample(x)
    middle = (block.bn1(block.conv1(x)) + beside).clamp(min=0)
    torch.testing.assert_close(block(x), (block.bn2(block.conv2(middle)) + middle).clamp(min=0))


def silent(block: BiRealBlock) -> BiRealBlock:
    """The block when its convolutions say nothing, and no activation stands in the way."""
    for norm in (block.bn1, block.bn2):
        nn.init.zeros_(norm.weight)
    block.relu1 = block.relu2 = nn.Identity()  # type: ignore[assignment]
    return block.eval()


def test_what_enters_a_block_leaves_it_where_the_convolutions_are_silent() -> None:
    x = torch.randn(2, 4, 5, 5)
    assert torch.equal(silent(BiRealBlock(4, 4, 1))(x), x)


@pytest.mark.parametrize("task", ["BW", "BWA", "BWAA"])
@pytest.mark.parametrize(("depth", "size"), [(8, 12), (18, 40)])
def test_trained_hard_packed_and_loaded_it_is_one_network(
    depth: int, size: int, task: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = build(f"bireal_resnet{depth}", classes=3, width=4, image_size=size)
    report = pb.binarize(model, "bnn++", pb.Task(task))
    assert all("conv" not in each.name for each in report.layers[1:] if not each.binary)
    x, y = torch.randn(4, 3, size, size), torch.tensor([0, 1, 2, 0])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    pb.attach(model, optimizer, steps=2)
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    hard = pb.harden(model).eval()
    pb.save(pb.pack(hard), tmp_path / "net")
    found = _outputs(pb.load(tmp_path / "net"), x)
    torch.testing.assert_close(found, _outputs(hard, x), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def _outputs(model: nn.Module, x: Tensor) -> Tensor:
    scores: Tensor = model(x)
    return scores


def test_binary_inputs_lose_no_relu_that_the_shortcut_needs() -> None:
    """BNN++ takes the ReLUs in front of signs away; the classifier keeps the one before it."""
    model = bireal_resnet(8, width=4)
    pb.binarize(model, "bnn++", pb.Task("BWA"))
    left = [name for name, module in model.named_modules() if isinstance(module, nn.ReLU)]
    assert left == ["layer3.0.relu2"]
