"""One-bit weights and activations under accelerate, on any number of processes.

python examples/with_accelerate.py
accelerate launch --cpu --num_processes 2 examples/with_accelerate.py
"""

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import proxbit as pb
from proxbit.data import fashion_mnist, normalize
from proxbit.models import resnet8


def main(epochs: int, images: int) -> None:
    torch.manual_seed(0)
    accelerator, data = Accelerator(cpu=not torch.cuda.is_available()), fashion_mnist()
    x = normalize(data.x_train[:images], data.mean, data.std)
    loader = DataLoader(TensorDataset(x, data.y_train[:images]), batch_size=64, shuffle=True)
    model = resnet8(in_channels=1)
    pb.binarize(model, "bc", task="BWA", relu=nn.Hardtanh)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    # After prepare: sharding may have replaced the parameters, and the hooks belong to the
    # optimizer inside.
    pb.attach(model, optimizer.optimizer, steps=epochs * len(loader))
    for epoch in range(epochs):
        for batch, labels in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch), labels)
            accelerator.backward(loss)
            optimizer.step()
        accelerator.print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
    trained = accelerator.unwrap_model(model)
    accelerator.print(pb.gap(trained))
    hard = pb.harden(trained).eval()
    test = normalize(data.x_test, data.mean, data.std)
    with torch.inference_mode():
        share = (hard(test).argmax(1) == data.y_test).float().mean().item()
    accelerator.print(f"hard: {100 * share:.2f} % of {len(test):,} test images")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--images", type=int, default=8000)
    main(**vars(parser.parse_args()))
