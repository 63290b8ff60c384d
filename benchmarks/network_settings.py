"""The networks that benchmarks run, with their inputs."""

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from proxbit.models import build


@dataclass(frozen=True)
class Setting:
    """A model, its input, and whether channels last may suit it better."""

    name: str
    side: int = 224
    classes: int = 1000
    images: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def build(self) -> nn.Module:
        model = build(self.name, classes=self.classes, **self.options)
        return model.eval().requires_grad_(False)


# timm begins with blocks that give 0: nothing would come of their weights, and no error show.
ALIVE = {"zero_init_last": False}
SETTINGS = {
    "resnet20": Setting("resnet20", side=32, classes=10, images=True),
    "bireal_resnet20": Setting("bireal_resnet20", side=32, classes=10, images=True),
    "bireal_resnet18": Setting("bireal_resnet18", images=True),
    "resnet50": Setting("timm/resnet50", images=True, options=ALIVE),
    "deit_tiny": Setting("timm/deit_tiny_patch16_224"),
    "deit_small": Setting("timm/deit_small_patch16_224"),
    "vit_base": Setting("timm/vit_base_patch16_224"),
    "efficientnet_b0": Setting("timm/efficientnet_b0", images=True),
    "mobilenetv3": Setting("timm/mobilenetv3_large_100", images=True),
    "densenet121": Setting("timm/densenet121", images=True),
}
USUAL = ["resnet20", "resnet50", "deit_tiny", "vit_base"]
