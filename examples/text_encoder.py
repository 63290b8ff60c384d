"""One-bit weights in a transformer encoder, with a trainer class as text libraries have them.

    python examples/text_encoder.py

The task is made up and needs attention: does the first token occur again? The trainer knows nothing
of bits: hooks on the optimizer it builds do all.
"""

import argparse
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR

import proxbit as pb

TOKENS, LENGTH = 12, 10


class Classifier(nn.Module):
    """Embedding, two encoder layers, a head that reads the first position."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, width)
        self.place = nn.Parameter(torch.randn(LENGTH, width) / 10)
        layer = nn.TransformerEncoderLayer(width, 4, 96, dropout=0.0, batch_first=True,
                                           norm_first=True)  # fmt: skip
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.head(self.encoder(self.embed(input_ids) + self.place)[:, 0])
        loss = {} if labels is None else {"loss": functional.cross_entropy(logits, labels)}
        return {"logits": logits} | loss


def batch(size: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Random tokens; in half of the rows the first one is copied to another place."""
    ids = torch.randint(1, TOKENS, (size, LENGTH), generator=generator)
    ids[:, 1:][ids[:, 1:] == ids[:, :1]] = 0
    labels = torch.randint(2, (size,), generator=generator)
    place = torch.randint(1, LENGTH, (size,), generator=generator)
    rows = labels.nonzero().squeeze(1)
    ids[rows, place[rows]] = ids[rows, 0]
    return {"input_ids": ids, "labels": labels}


@dataclass
class Trainer:
    """A generic trainer: builds its optimizer, calls back, and steps."""

    model: nn.Module
    steps: int
    on_optimizer: object = None

    def train(self) -> float:
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3, weight_decay=0.0)
        schedule = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50))
        if callable(self.on_optimizer):
            self.on_optimizer(optimizer)
        generator, mean = torch.Generator().manual_seed(0), 0.0
        for _ in range(self.steps):
            loss = self.model(**batch(64, generator))["loss"]
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            mean = 0.95 * mean + 0.05 * loss.item()
        return mean


def main(steps: int) -> None:
    torch.manual_seed(0)
    model = Classifier()
    print(pb.binarize(model, "bc"))
    attach = lambda optimizer: pb.attach(model, optimizer, steps=steps)  # noqa: E731
    loss = Trainer(model, steps, attach).train()
    hard, test = pb.harden(model).eval(), batch(2000, torch.Generator().manual_seed(1))
    with torch.inference_mode():
        right = (hard(test["input_ids"])["logits"].argmax(1) == test["labels"]).float().mean()
    print(f"loss {loss:.3f}; hard: {100 * right.item():.2f} % of 2,000 new sequences")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    main(**vars(parser.parse_args()))
