"""The CIFAR ResNets: the names, sizes and values of the public ones."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from proxbit.models import CifarResNet, cifar_resnet, resnet8, resnet20
from proxbit.models.resnet import BasicBlock, PaddedShortcut

SHARED = Path(__file__).parents[2] / "shared" / "data"
WEIGHTS = SHARED / "resnet20_cifar10.safetensors"
needs_shared = pytest.mark.skipif(not WEIGHTS.exists(), reason=f"no public weights in {SHARED}")


@pytest.mark.parametrize(
    ("depth", "parameters"),
    [(8, 75_290), (20, 269_722), (32, 464_154), (44, 658_586), (56, 853_018)],
)
def test_the_family_has_the_sizes_of_the_paper(depth: int, parameters: int) -> None:
    model = cifar_resnet(depth)
    assert sum(p.numel() for p in model.parameters()) == parameters
    weighty = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(weighty) == depth


@pytest.mark.parametrize("depth", [18, 0, -4, 2])
def test_an_unknown_depth_is_answered_with_the_known_ones(depth: int) -> None:
    with pytest.raises(ValueError, match=f"depth {depth}: choose one of 8, 20, 32, 44, 56"):
        cifar_resnet(depth)


@pytest.mark.parametrize(("classes", "channels", "width", "size"), [(10, 3, 16, 32), (7, 1, 5, 9)])
def test_scores_have_one_column_per_class(
    classes: int, channels: int, width: int, size: int
) -> None:
    model = resnet8(classes, channels, width)
    assert model(torch.randn(2, channels, size, size)).shape == (2, classes)


@pytest.mark.parametrize("channels", [(4, 8), (3, 6), (4, 4)])
@pytest.mark.parametrize("size", [6, 7])
def test_the_shortcut_is_slicing_and_zero_padding(channels: tuple[int, int], size: int) -> None:
    small, big = channels
    x = torch.randn(2, small, size, size)
    expected = torch.zeros(2, big, (size + 1) // 2, (size + 1) // 2)
    for channel in range(small):
        for i in range(0, size, 2):
            for j in range(0, size, 2):
                expected[:, (big - small) // 2 + channel, i // 2, j // 2] = x[:, channel, i, j]
    assert torch.equal(PaddedShortcut(small, big)(x), expected)


def test_a_block_is_the_shortcut_plus_two_normalized_convolutions() -> None:
    block, x = BasicBlock(4, 8, stride=2).eval(), torch.randn(2, 4, 6, 6)
    inner = block.bn1(block.conv1(x)).clamp(min=0)
    expected = (block.bn2(block.conv2(inner)) + block.shortcut(x)).clamp(min=0)
    torch.testing.assert_close(block(x), expected)


def test_the_parts_of_a_block_are_registered_in_the_order_they_run() -> None:
    names = [name for name, _ in BasicBlock(4, 8, stride=2).named_children()]
    assert names == ["conv1", "bn1", "relu1", "conv2", "bn2", "shortcut", "relu2"]


def test_fx_traces_the_network() -> None:
    model, x = resnet8(in_channels=1, width=4).eval(), torch.randn(2, 1, 8, 8)
    assert torch.equal(torch.fx.symbolic_trace(model)(x), model(x))


@pytest.mark.slow
def test_the_network_compiles_in_one_graph() -> None:
    model, x = resnet8(in_channels=1, width=4).eval(), torch.randn(2, 1, 8, 8)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x))


def public_resnet20() -> CifarResNet:
    load_file = pytest.importorskip("safetensors.torch").load_file
    model = resnet20()
    model.load_state_dict(load_file(WEIGHTS), strict=True)
    return model.eval()


@needs_shared
def test_the_public_weights_load_strictly() -> None:
    assert public_resnet20().conv1.weight.abs().sum() > 0


@pytest.fixture(scope="module")
def cifar10_test(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tensor, Tensor]:
    """The first 1,000 test images of CIFAR-10, normalized as the public weights expect."""
    out = tmp_path_factory.mktemp("cifar10") / "cifar10.npz"
    subprocess.run([sys.executable, str(SHARED / "unpack.py"), str(out)], check=True)
    with np.load(out, allow_pickle=False) as arrays:
        x, y = arrays["x_test"][:1000], arrays["y_test"][:1000]
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    images = (torch.from_numpy(x) / 255 - mean) / std
    return images.permute(0, 3, 1, 2), torch.from_numpy(y).long()


@pytest.mark.slow
@needs_shared
def test_the_public_weights_reach_their_accuracy(cifar10_test: tuple[Tensor, Tensor]) -> None:
    images, labels = cifar10_test
    with torch.inference_mode():
        accuracy = (public_resnet20()(images).argmax(1) == labels).float().mean().item()
    assert accuracy >= 0.90
