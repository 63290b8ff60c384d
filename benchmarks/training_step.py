"""Time and peak memory of one training step: float, proxbit, and the same weights in its peers.

A step is forward, cross-entropy, backward, ``optimizer.step()`` and ``zero_grad()`` under Adam.
All contenders live in one process, are equally warm, and take turns in an order shuffled anew
each round; a ratio compares a contender with the float step of the *same* round, so a machine
that slows down for a while slows both. Freed memory stays in the process, so nobody pays page
faults. Memory is measured apart from time: the peak bytes of torch's allocator over building the
model and two steps, above those of float, in copies of the binary weights.

    python benchmarks/training_step.py --model all --markdown docs/performance.md
"""

import argparse
import ctypes
import gc
import importlib.util
import json
import os
import platform
import random
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markdown import Markdown
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam, Optimizer
from torch.profiler import ProfilerActivity, profile

import proxbit as pb
from proxbit.compat import allow_torchvision
from proxbit.models import resnet20
from proxbit.nn import TASKS, Task

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- training-step:begin -->", "<!-- training-step:end -->"
PACKAGES = ("proxbit", "torch", "timm", "torchao", "brevitas")
WARM_UP = 2
# Small steps: a memorized batch ends in denormal gradients, which are slow to multiply.
LEARNING_RATE = 1e-4


@dataclass
class Learner:
    """A model with the optimizer that trains it."""

    model: nn.Module
    optimizer: Optimizer

    def step(self, images: Tensor, labels: Tensor) -> None:
        functional.cross_entropy(self.model(images), labels).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


@dataclass(frozen=True)
class Setting:
    """A model and the batch it is trained on."""

    package: str
    build: Callable[[], nn.Module]
    batch: int
    side: int
    classes: int

    def data(self, batch: int | None) -> tuple[Tensor, Tensor]:
        n = batch or self.batch
        return torch.randn(n, 3, self.side, self.side), torch.randint(self.classes, (n,))


@dataclass(frozen=True)
class Contender:
    """A way to train: which task, by which method or package."""

    task: str
    method: str
    learner: Callable[[nn.Module], Learner]


@dataclass(frozen=True)
class Row:
    """One line of the table; ``spread`` is half the interquartile range of the ratio."""

    model: str
    batch: int
    task: str
    method: str
    ratio: float
    spread: float
    ms: float
    rounds: int
    peak_mib: float
    extra_copies: float


# --- models ---------------------------------------------------------------------------------


def deit_tiny() -> nn.Module:
    allow_torchvision()
    import timm

    model: nn.Module = timm.create_model("deit_tiny_patch16_224", pretrained=False)
    return model


SETTINGS = {
    "resnet20": Setting("proxbit", resnet20, batch=128, side=32, classes=10),
    "deit_tiny": Setting("timm", deit_tiny, batch=8, side=224, classes=1000),
}


def inner_layers(model: nn.Module) -> dict[str, nn.Conv2d | nn.Linear]:
    """The layers that become binary: all but the first (stem, patch embedding) and the last."""
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Conv2d | nn.Linear)
    }
    return {name: layers[name] for name in list(layers)[1:-1]}


# --- contenders -----------------------------------------------------------------------------


def as_float(model: nn.Module) -> Learner:
    return Learner(model, Adam(model.parameters(), lr=LEARNING_RATE))


def ours(model: nn.Module, method: str, task: Task) -> Learner:
    kinds = {name: type(layer) for name, layer in inner_layers(model).items()}
    pb.binarize(model, method, task, relu=None if task == "BW" else nn.Hardtanh)
    missed = [name for name, kind in kinds.items() if type(model.get_submodule(name)) is kind]
    assert not missed, f"the peers binarize {missed} and {method} does not"
    learner = as_float(model)
    pb.attach(model, learner.optimizer, steps=1000)
    return learner


def parq(model: nn.Module) -> Learner:
    """BinaryConnect in torchao: the hard prox onto +-mean|w| of each output channel.

    A period of 1 renews the scale at each step as ours does, and is the faster choice here: other
    steps look each weight up with ``bucketize``.
    """
    from torchao.prototype.parq import LSBQuantizer, ProxHardQuant, QuantOptimizer  # type: ignore[import-untyped]

    binary = [layer.weight for layer in inner_layers(model).values()]
    taken = {id(weight) for weight in binary}
    rest = [weight for weight in model.parameters() if id(weight) not in taken]
    groups: list[dict[str, Any]] = [{"params": rest}, {"params": binary, "quant_bits": 1}]
    adam = Adam(groups, lr=LEARNING_RATE)
    parts = (adam, LSBQuantizer(), ProxHardQuant())
    return Learner(model, QuantOptimizer(*parts, quant_period=1, quant_per_channel=True))


def brevitas(model: nn.Module) -> Learner:
    """Binary weights of a constant scale with a clamped straight-through gradient."""
    for name, layer in inner_layers(model).items():
        model.set_submodule(name, brevitas_twin(layer))
    return as_float(model)


def brevitas_twin(layer: nn.Conv2d | nn.Linear) -> nn.Module:
    from brevitas.nn import QuantConv2d, QuantLinear  # type: ignore[import-untyped]
    from brevitas.quant import SignedBinaryWeightPerTensorConst as Binary  # type: ignore[import-untyped]

    options: dict[str, Any] = {"bias": layer.bias is not None, "weight_quant": Binary}
    twin: nn.Module
    if isinstance(layer, nn.Linear):
        twin = QuantLinear(layer.in_features, layer.out_features, **options)
    else:
        options |= {"stride": layer.stride, "padding": layer.padding, "groups": layer.groups}
        twin = QuantConv2d(layer.in_channels, layer.out_channels, layer.kernel_size, **options)
    twin.load_state_dict(layer.state_dict())
    return twin


PEERS = {
    "torchao": Contender("BW", "torchao PARQ", parq),
    "brevitas": Contender("BW", "brevitas", brevitas),
}


def contenders(methods: Sequence[str], console: Console) -> list[Contender]:
    peers = [peer for package, peer in PEERS.items() if installed(package, console)]
    own = [
        Contender(task, method, partial(ours, method=method, task=task))
        for task in TASKS
        for method in methods
    ]
    return [Contender("float", "-", as_float), *sorted(own + peers, key=lambda c: len(c.task))]


def installed(package: str, console: Console) -> bool:
    found = importlib.util.find_spec(package) is not None
    if not found:
        console.print(f"{package} is not installed: left out")
    return found


# --- measurement ----------------------------------------------------------------------------


def keep_freed_memory() -> None:
    """Let glibc keep what a step frees, so that no contender pays for fetching it again.

    By default the page faults of a step depend on the size of the *other* models in the process:
    float ResNet-20 has 33,000 a step (13 % of its time) alone and none beside a bigger model.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
        mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, the most that glibc takes


def enrol(setting: Setting, contender: Contender, seed: int) -> Learner:
    """Every contender starts from the same weights."""
    torch.manual_seed(seed)
    return contender.learner(setting.build().train())


def time_rounds(
    learners: Sequence[Learner], data: tuple[Tensor, Tensor], rounds: int, seed: int
) -> list[list[float]]:
    """Seconds of each learner in each round; the order within a round is shuffled."""
    shuffle = random.Random(seed).shuffle
    for learner in learners:
        for _ in range(WARM_UP):
            learner.step(*data)
    table = []
    for _ in range(rounds):
        order = list(range(len(learners)))
        shuffle(order)
        gc.collect()
        seconds = {i: time_step(learners[i], data) for i in order}
        table.append([seconds[i] for i in range(len(learners))])
    return table


def time_step(learner: Learner, data: tuple[Tensor, Tensor]) -> float:
    start = time.perf_counter()
    learner.step(*data)
    return time.perf_counter() - start


def peak_bytes(enrol: Callable[[], Learner], data: tuple[Tensor, Tensor]) -> int:
    """Highest sum of torch's live allocations from building the learner through two steps.

    The second step counts: the first allocates the state of Adam.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # it logs each start and stop otherwise
    gc.collect()  # what an earlier learner left in cycles must not be freed on our account
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        learner = enrol()
        for _ in range(2):
            learner.step(*data)
    live = peak = 0
    for event in allocations(trace):
        live += event
        peak = max(peak, live)
    return peak


def allocations(trace: Any) -> Iterator[int]:
    """Bytes allocated (positive) and freed (negative), in the order they happened."""
    events = [e for e in trace.profiler.kineto_results.events() if e.name() == "[memory]"]
    return (e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()))


def measure(
    name: str, field: Sequence[Contender], rounds: int, batch: int | None, seed: int
) -> list[Row]:
    """One row per contender; the first is the float that the others are compared with."""
    setting = SETTINGS[name]
    torch.manual_seed(seed)
    data = setting.data(batch)
    peaks = [peak_bytes(partial(enrol, setting, c, seed), data) for c in field]
    seconds = time_rounds([enrol(setting, c, seed) for c in field], data, rounds, seed)
    copy = sum(layer.weight.nbytes for layer in inner_layers(setting.build()).values())
    rows = []
    for i, contender in enumerate(field):
        ratio, spread = middle([s[i] / s[0] for s in seconds])
        rows.append(
            Row(
                model=name,
                batch=len(data[0]),
                task=contender.task,
                method=contender.method,
                ratio=ratio,
                spread=spread,
                ms=1000 * statistics.median(s[i] for s in seconds),
                rounds=rounds,
                peak_mib=peaks[i] / 2**20,
                extra_copies=(peaks[i] - peaks[0]) / copy,
            )
        )
    return rows


def middle(values: Sequence[float]) -> tuple[float, float]:
    """Median and half the interquartile range."""
    if len(values) < 2:
        return values[0], 0.0
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return median, (high - low) / 2


# --- reports --------------------------------------------------------------------------------


def environment(rounds: int, seed: int) -> dict[str, str | int]:
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "versions": ", ".join(f"{p} {version(p)}" for p in PACKAGES),
        "python": platform.python_version(),
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": f"`{shlex.join(['python', 'benchmarks/training_step.py', *sys.argv[1:]])}`",
        "rounds": rounds,
        "seed": seed,
    }


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown CPU")


def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"


def commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "uncommitted"


HEADER = ("task", "method", "time / float", "±", "ms", "peak MiB", "extra copies")


def cells(row: Row) -> tuple[str, ...]:
    return (
        row.task,
        row.method,
        f"{row.ratio:.3f}",
        f"{row.spread:.3f}",
        f"{row.ms:.1f}",
        f"{row.peak_mib:.1f}",
        f"{row.extra_copies:+.2f}",
    )


def tables(rows: Sequence[Row]) -> str:
    """A Markdown table for each model."""
    lines = []
    for title in dict.fromkeys((row.model, row.batch) for row in rows):
        lines += ["", f"### {title[0]}, batch {title[1]}", ""]
        lines += [line(HEADER), line(["---"] * 2 + ["--:"] * 5)]
        lines += [line(cells(row)) for row in rows if row.model == title[0]]
    return "\n".join(lines)


def line(values: Sequence[str]) -> str:
    return f"| {' | '.join(values)} |"


NEW_SECTION = f"""## One training step

Forward, loss, backward, Adam step and `zero_grad`, in one process, contenders interleaved in a
shuffled order; freed memory is kept, so nobody pays page faults. *time / float*: median over the
rounds of the ratio to the float step of the same round, ± half its interquartile range. *extra
copies*: peak memory above float, in copies of the binary weights. torchao's PARQ and brevitas
binarize the same layers, weights only.

{BEGIN}
{END}
"""


def write_markdown(path: Path, rows: Sequence[Row], about: dict[str, str | int]) -> None:
    """Replace what stands between the markers; add the section where there are none."""
    facts = "\n".join(f"- {key}: {value}" for key, value in about.items())
    page = path.read_text() if path.exists() else "# Performance\n"
    if BEGIN not in page:
        page += "\n" + NEW_SECTION
    before, rest = page.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{before}{BEGIN}\n{facts}\n{tables(rows)}\n{END}{after}")


# --- command --------------------------------------------------------------------------------


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add(
        "--model",
        default=list(SETTINGS),
        type=one_of(SETTINGS),
        help=f"{', '.join(SETTINGS)} or all",
    )
    add("--methods", default="bc,pc,bnn++", type=one_of(pb.METHODS), help="comma-separated, or all")
    add("--rounds", default=15, type=int, help="timed steps of each contender")
    add("--batch", type=int, help="instead of each model's own")
    add("--threads", type=int, help="of torch, instead of its own choice")
    add("--seed", default=0, type=int)
    add("--json", type=Path, help="write the rows here")
    add("--markdown", type=Path, help="put the tables between this page's markers")
    return parser.parse_args()


def one_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """A parser of comma-separated names; "all" stands for every one."""

    def names(text: str) -> list[str]:
        found = list(known) if text == "all" else text.split(",")
        if unknown := sorted(set(found) - set(known)):
            message = f"{', '.join(unknown)}: choose from {', '.join(known)} or all"
            raise argparse.ArgumentTypeError(message)
        return found

    return names


def main() -> None:
    args, console = options(), Console()
    keep_freed_memory()
    if args.threads:
        torch.set_num_threads(args.threads)
    field = contenders(args.methods, console)
    names = [name for name in args.model if installed(SETTINGS[name].package, console)]
    rows = [
        row for name in names for row in measure(name, field, args.rounds, args.batch, args.seed)
    ]
    about = environment(args.rounds, args.seed)
    console.print(Markdown(tables(rows)))
    if args.json:
        result = {"environment": about, "rows": [asdict(row) for row in rows]}
        args.json.write_text(json.dumps(result, indent=1))
    if args.markdown:
        write_markdown(args.markdown, rows, about)


if __name__ == "__main__":
    main()
