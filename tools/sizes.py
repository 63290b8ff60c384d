"""What "about 30 times smaller" means for the models of the paper: bytes and ratios when packed.

``python tools/sizes.py`` prints the table of docs/packing.md; with ``--write`` it writes it there.
Random weights serve: a packed size depends on shapes only. Each size is that of a whole file, the
header with its names included.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import proxbit as pb
from proxbit.models import build
from proxbit.util.text import size

PAGE = Path(__file__).resolve().parents[1] / "docs" / "packing.md"
MODELS = {
    "ResNet-20": ("resnet20", 10),
    "ResNet-50": ("timm/resnet50", 1000),
    "DeiT-T": ("timm/deit_tiny_patch16_224", 1000),
    "DeiT-S": ("timm/deit_small_patch16_224", 1000),
    "DeiT-B": ("timm/deit_base_patch16_224", 1000),
    "ViT-B": ("timm/vit_base_patch16_224", 1000),
    "Swin-T": ("timm/swin_tiny_patch4_window7_224", 1000),
    "NesT-T": ("timm/nest_tiny", 1000),
}
RESTS = {
    "float32": {},
    "float16": {"float_rest": "float16"},
    "float16, tables int8": {"float_rest": "float16", "tables": "int8"},
}
HEAD = (
    "| model | weights | binary | float32 | packed, rest float32 | rest float16 | "
    "rest float16, tables int8 |\n|---|--:|--:|--:|--:|--:|--:|"
)


def row(name: str, model: str, classes: int) -> str:
    """One model, made binary (BW) with the first and last layers float, as by default."""
    net = build(model, classes=classes)
    report = pb.binarize(net, "bnn++", "BW")
    packed = pb.pack(pb.harden(net).eval())
    held = pb.summary(packed).bytes_float
    weights = sum(line.weights for line in report.layers)
    share = sum(line.weights for line in report.binary) / weights
    with tempfile.TemporaryDirectory() as folder:
        cells = []
        for options in RESTS.values():
            path = Path(folder) / "net.safetensors"
            pb.save(packed, path, **options)  # type: ignore[arg-type]
            written = path.stat().st_size
            cells.append(f"{size(written)}, {held / written:.1f}x")
    return f"| {name} | {weights:,} | {share:.1%} | {size(held)} | {' | '.join(cells)} |"


def table() -> str:
    """Every model."""
    return "\n".join([HEAD, *(row(name, *given) for name, given in MODELS.items())])


def main(write: bool) -> None:
    """Print the table, or write it between its markers."""
    made = table()
    if not write:
        print(made)
        return
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split("<!-- sizes:begin -->")
    _, after = rest.split("<!-- sizes:end -->")
    filled = f"{before}<!-- sizes:begin -->\n{made}\n<!-- sizes:end -->{after}"
    PAGE.write_text(filled, encoding="utf-8")


if __name__ == "__main__":
    main("--write" in sys.argv[1:])
