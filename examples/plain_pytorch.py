"""One-bit weights in a plain PyTorch loop: three added lines, marked below.

python examples/plain_pytorch.py [--epochs 2]
"""

import argparse
from itertools import islice

import torch
from torch import nn
from torch.nn import functional

import proxbit as pb
from proxbit.data import Loader, fashion_mnist
from proxbit.models import resnet8


def accuracy(model: nn.Module, test: Loader) -> float:
    model.eval()
    with torch.inference_mode():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in test)
    return 100 * right / test.data.count("test")


def main(epochs: int, steps: int | None) -> None:
    torch.manual_seed(0)
    images = fashion_mnist()
    train, test = Loader(images), Loader(images, part="test", batch_size=500)
    model = resnet8(in_channels=1)
    per_epoch = steps or len(train)
    print(pb.binarize(model, "bnn++", task="BW"))  # 1
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    pb.attach(model, optimizer, steps=epochs * per_epoch)  # 2
    for epoch in range(epochs):
        model.train()
        for x, y in islice(train, per_epoch):
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: hard {accuracy(pb.hardened(model), test):.2f} %")
    print(pb.gap(model))
    pb.harden(model)  # 3
    pb.recalibrate(model, train)
    print(f"hard, with fresh statistics: {accuracy(model, test):.2f} %")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, help="steps per epoch, instead of all")
    main(**vars(parser.parse_args()))
