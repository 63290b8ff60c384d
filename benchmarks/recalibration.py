"""On which images should a hard network's batch-norm statistics be estimated?

    python benchmarks/recalibration.py RUN

Takes the best hard network of a run and shows its accuracy as saved, and after `pb.recalibrate` on
training images as they are and as they were augmented in training.
"""

import sys
from itertools import islice

import torch

import proxbit as pb
from proxbit.train import load_network
from proxbit.train.evaluation import count_right


def main(run: str) -> None:
    model, job = load_network(run)
    cpu = torch.device("cpu")

    def accuracy() -> float:
        right, seen = count_right(model.eval(), job.loader(job.part, False, cpu).epoch(0))
        return 100 * right / seen

    print(f"as saved: {accuracy():.2f} % of the {job.part} images")
    for words, augment in (("plain", False), ("augmented", True)):
        pb.recalibrate(model, islice(job.loader("train", augment, cpu).epoch(0), 20))
        print(f"20 batches, {words}: {accuracy():.2f} %")


if __name__ == "__main__":
    main(*sys.argv[1:])
