"""One-bit weights in a plain PyTorch loop: three added lines, marked below.

python examples/plain_pytorch.py [--epochs 2]
"""

import argparse

import torch
from torch import Generator, nn
from torch.nn import functional

import proxbit as pb
from proxbit.data import fashion_mnist
from proxbit.models import resnet8


def accuracy(model: nn.Module, images) -> float:
    model.eval()
    with torch.inference_mode():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in images.test_batches(500))
    return 100 * right / len(images.y_test)


def main(epochs: int, steps: int | None) -> None:
    torch.manual_seed(0)
    images, generator = fashion_mnist(), Generator().manual_seed(0)
    model = resnet8(in_channels=1)
    per_epoch = steps or len(images.y_train) // 128
    print(pb.binarize(model, "bnn++", task="BW"))  # 1
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    pb.attach(model, optimizer, steps=epochs * per_epoch)  # 2
    for epoch in range(epochs):
        model.train()
        batches = images.train_batches(128, generator)
        for _, (x, y) in zip(range(per_epoch), batches, strict=False):
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: hard {accuracy(pb.hardened(model), images):.2f} %")
    print(pb.gap(model))
    pb.harden(model)  # 3
    pb.recalibrate(model, (batch for batch in images.train_batches(128, generator)))
    print(f"hard, with fresh statistics: {accuracy(model, images):.2f} %")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, help="steps per epoch, instead of all")
    main(**vars(parser.parse_args()))
