"""One process of a small training run; test_distributed.py starts two, or calls ``train`` itself.

Usage: train.py RANK WORLD_SIZE FOLDER
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

import proxbit as pb

STEPS = 5
# name: (method, with attention, optimizer, clip)
RUNS: dict[str, tuple[str, bool, str, float | str]] = {
    "bc": ("bc", False, "sgd", "auto"),
    "bc clipped": ("bc", False, "sgd", 0.05),
    "bnn++": ("bnn++", False, "sgd", "auto"),
    "bnn++ by AdamW": ("bnn++", False, "adamw", "auto"),
    "pq": ("pq", False, "sgd", "auto"),
    "rpc": ("rpc", False, "sgd", "auto"),
    "react": ("react", False, "sgd", "auto"),
    "bnn++ attention": ("bnn++", True, "sgd", "auto"),
    "pq attention": ("pq", True, "sgd", "auto"),
    "bc attention clipped": ("bc", True, "sgd", 0.05),
}
Wrap = Callable[[nn.Module], nn.Module]


class Net(nn.Module):
    """No batch norm: its statistics would be of half a batch."""

    def __init__(self, attention: bool) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.conv = nn.Conv2d(4, 6, 3, padding=1)
        self.norm = nn.GroupNorm(2, 6)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True) if attention else None
        self.inner = nn.Linear(6, 7)
        self.head = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.norm(self.conv(torch.tanh(self.stem(x)))))
        x = x.flatten(2).transpose(1, 2)
        if self.attention is not None:
            x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(torch.tanh(self.inner(x.mean(1))))


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(8, 1, 4, 4, generator=generator), torch.randint(3, (8,), generator=generator))
        for _ in range(STEPS)
    ]


def train(name: str, rank: int, world: int, wrap: Wrap = lambda model: model) -> dict[str, Any]:
    """The strengths, and the wrapped model, after a run on this rank's share of each batch."""
    method, attention, optimizer_name, clip = RUNS[name]
    torch.manual_seed(0)
    model = Net(attention)
    pb.binarize(model, method, "BW")
    wrapped = wrap(model)
    parameters = list(wrapped.parameters())
    optimizer: torch.optim.Optimizer = (
        torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        if optimizer_name == "sgd"
        else torch.optim.AdamW(parameters, lr=0.01, eps=1e-3)
    )
    handle = pb.attach(wrapped, optimizer, steps=STEPS, clip=clip)
    for x, y in batches():
        optimizer.zero_grad()
        loss = functional.cross_entropy(wrapped(x.chunk(world)[rank]), y.chunk(world)[rank])
        loss.backward()
        optimizer.step()
    return {"model": model, "numbers": list(handle.state_dict().values()), "step": handle.step}


def whole(model: nn.Module) -> dict[str, Tensor]:
    """The state_dict, with sharded tensors put together."""
    return {
        name: (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().clone()
        for name, value in model.state_dict().items()
    }


def data_parallel(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def sharded(model: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for part in (model.conv, model.attention, model.inner):
        if part is not None:
            fully_shard(part, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def attempt(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return work()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def one(name: str, rank: int, world: int, wrap: Wrap) -> dict[str, Any]:
    run = train(name, rank, world, wrap)
    model = run.pop("model")
    run["state"] = whole(model)
    run["hard"] = attempt(lambda: whole(pb.harden(model)))
    return run


def source() -> nn.Module:
    """The float model whose checkpoint is loaded."""
    torch.manual_seed(5)
    return Net(attention=True)


def loads_a_float_checkpoint() -> dict[str, Any]:
    """Shard first and load afterwards, as for a model that fits no single machine."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    torch.manual_seed(0)
    model = Net(attention=True)
    pb.binarize(model, pb.method("bnn++", unit="initial"))
    sharded(model)
    options = StateDictOptions(full_state_dict=True)
    set_model_state_dict(model, source().state_dict(), options=options)
    units = {w.name: w.quantizer.unit.clone() for w in pb.binary_weights(model)}
    return {"units": units, "state": whole(model)}


def main(rank: int, world: int, folder: Path) -> None:
    torch.set_num_threads(1)
    address = f"file://{folder / 'rendezvous'}"
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=world)
    results = {
        (kind, name): attempt(lambda name=name, wrap=wrap: one(name, rank, world, wrap))
        for kind, wrap in (("ddp", data_parallel), ("fsdp", sharded))
        for name in RUNS
    }
    results["fsdp", "load"] = attempt(loads_a_float_checkpoint)
    torch.save(results, folder / f"rank{rank}.pt")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
