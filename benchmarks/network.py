"""Time of whole networks: float, hard, and packed, with the size of the packed file.

Weights are random. Each contender takes turns with torch's float32 network in one process, both in
the layout that suits them best and equally warm. Packed networks choose how each layer computes by
the input at hand, and must agree with the hard network before they are timed. Other runtimes
(runtimes.py) run the float network and its 8-bit forms.

    python benchmarks/network.py --speed --markdown docs/performance/networks.md
"""

import argparse
import copy
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from contenders import installed
from evidence import environment, team, write_section
from kernels import deviation
from network_settings import SETTINGS, USUAL, Setting
from pairing import Aim, Calls, Row, compare, counts, facts, fastest, judged, table, times
from rich.console import Console
from rivals import channels_last
from runtimes import RUNTIMES, Exported, run_by
from speed_file import write_speed
from torch import Tensor, nn
from training_step import keep_freed_memory, one_of

import proxbit as pb
from proxbit.core.tasks import TASKS
from proxbit.engine import PackedLayer, isa
from proxbit.util.text import size

PACKAGES = ("proxbit", "torch", "timm", "onnxruntime", "openvino")


@dataclass(frozen=True)
class Case:
    """A model with a batch."""

    model: str
    batch: int

    def __str__(self) -> str:
        return f"{self.model}, batch {self.batch}"


def aim(who: str, times: float, model: str, over: str = "float") -> Aim:
    return Aim(who, times, over, f"{model}, batch 1", Case(model, 1).__eq__)


EIGHT = ("ORT int8", "ORT int8 dynamic", "OpenVINO int8")
AIMS = (
    aim("BWA", 6, "vit_base"), aim("BWA", 3, "deit_tiny"), aim("BW", 2.5, "vit_base"),
    *(aim("BWA", 2, "vit_base", over) for over in EIGHT),
    *(aim("BWA", 1.7, "deit_tiny", over) for over in EIGHT),
    *(aim("BWA", 1, "resnet50", over) for over in EIGHT),
    *(aim("BW input8", 1, model, over) for model in ("vit_base", "deit_tiny") for over in EIGHT),
    *(aim(task, 1, "resnet20") for task in ("BW", "BWA", "BWAA")),
)  # fmt: skip


# --- contenders -----------------------------------------------------------------------------


class Disagreement(Exception):
    """A packed network that computes something else must not be timed."""


@dataclass(frozen=True)
class Ready:
    """A network that can run: its calls, how far it is off, its bytes and its layers on bits."""

    calls: Calls
    error: float = 0.0
    bytes: int | None = None
    on_bits: str = ""


@dataclass(frozen=True)
class Stage:
    """What the contenders of one case share: the float network, hard ones by task, the input."""

    setting: Setting
    model: nn.Module
    hard: Callable[[str], nn.Module]
    x: Tensor
    exported: Exported

    def layouts(self, model: nn.Module) -> Iterator[tuple[nn.Module, Tensor]]:
        yield model, self.x
        if self.setting.images:
            yield channels_last(model), self.x.contiguous(memory_format=torch.channels_last)

    def fastest(self, model: nn.Module) -> Calls:
        return fastest([[partial(net, x)] for net, x in self.layouts(model)])


def enter(setting: Setting, batch: int) -> Stage:
    model, x = setting.build(), torch.randn(batch, 3, setting.side, setting.side)
    twin = cache(lambda task: hard_twin(model, task, x))
    return Stage(setting, model, twin, x, Exported(model, x))


def hard_twin(model: nn.Module, task: Any, x: Tensor) -> nn.Module:
    """With norms that fit the hard weights, as after training."""
    twin = copy.deepcopy(model).requires_grad_()
    pb.binarize(twin, "bc", task, relu=None if task == "BW" else nn.Hardtanh)
    return pb.recalibrate(pb.harden(twin), [x]).eval()


def as_float(stage: Stage) -> Ready:
    held = sum(tensor.nbytes for tensor in stage.model.state_dict().values())
    return Ready(stage.fastest(stage.model), bytes=held)


def compiled(stage: Stage) -> Ready:
    return Ready([partial(torch.compile(stage.model), stage.x)])


def by_runtime(kind: str, run: Any, stage: Stage) -> Ready:
    call, held = run_by(kind, run, stage.exported)
    return Ready([call], bytes=held)


def hard(task: str, stage: Stage) -> Ready:
    return Ready(stage.fastest(stage.hard(task)))


def packed(task: str, precision: str, allowed: float, stage: Stage) -> Ready:
    """Each layout is packed for itself: routes depend on it."""
    nets: list[tuple[nn.Module, Tensor]] = []
    worst = 0.0
    for model, x in stage.layouts(stage.hard(task)):
        net = pb.pack(model, x, precision=precision)
        worst = max(worst, deviation(net(x), model(x)))
        nets.append((net, x))
    if not worst <= allowed:
        raise Disagreement(f"differs by {worst:.2g} from the hard network; {allowed:g} is allowed")
    ways: list[Calls] = [[partial(net, x)] for net, x in nets]
    best = fastest(ways)
    chosen = nets[ways.index(best)][0]
    return Ready(best, worst, file_bytes(chosen), routes(chosen))


def file_bytes(net: Any) -> int:
    with tempfile.TemporaryDirectory() as folder:
        pb.save(net, Path(folder) / "net.safetensors")
        return (Path(folder) / "net.safetensors").stat().st_size


def routes(net: Any) -> str:
    layers = [layer for layer in net.modules() if isinstance(layer, PackedLayer)]
    return f"{sum(layer.route == 'bits' for layer in layers)} of {len(layers)}"


def in_onnx_runtime(task: str, stage: Stage) -> Ready:
    """Our operators in ONNX Runtime, whose float rest rounds by itself and may turn a sign."""
    from onnx_networks import exported

    model, x = stage.hard(task), stage.x
    with torch.inference_mode(False):
        net = exported(model, x, torch.get_num_threads())
    return Ready([partial(net, x)], deviation(net(x), model(x)), net.bytes)


Contender = Callable[[Stage], Ready]


def contenders(args: argparse.Namespace, console: Console) -> dict[str, Contender]:
    found: dict[str, Contender] = {"float": as_float}
    if args.compile:
        found["torch.compile"] = compiled
    for name, package, kind, run in () if args.quick else RUNTIMES:
        if installed(package, console):
            found[name] = partial(by_runtime, kind, run)
    for task in args.tasks:
        if args.hard or args.quick:
            found[f"hard {task}"] = partial(hard, task)
        found[task] = partial(packed, task, "exact", 1e-4)
        if task == "BW":
            found["BW input8"] = partial(packed, task, "input8", 0.2)
        if args.onnx:
            found[f"{task} in ONNX Runtime"] = partial(in_onnx_runtime, task)
    return found


# --- measurement ----------------------------------------------------------------------------


def measure(
    case: Case, field: dict[str, Contender], threads: int, rounds: int, seed: int
) -> list[Row]:
    """One row per contender, timed in a shuffled order."""
    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    stage = enter(SETTINGS[case.model], case.batch)
    base, found = stage.fastest(stage.model), {}
    for name in random.Random(seed).sample(list(field), len(field)):
        try:
            ready = field[name](stage)
        except Disagreement as error:
            print(f"{case}: {name} is left out, because it {error}", file=sys.stderr)
            continue
        timing = compare(ready.calls, base, rounds)
        found[name] = Row(case, threads, name, ready.error, timing, ready.bytes, ready.on_bits)
    return [found[name] for name in field if name in found]


# --- reports --------------------------------------------------------------------------------

HEAD = ("network", "times float", "ms", "least ms", "bytes", "smaller", "on bits", "error")


def tables(rows: Sequence[Row]) -> str:
    """A Markdown table for each model, batch and number of threads."""
    parts = []
    for case, threads in dict.fromkeys((row.case, row.threads) for row in rows):
        here = [row for row in rows if (row.case, row.threads) == (case, threads)]
        title = f"### {case}, {threads} thread{'s' if threads > 1 else ''}"
        parts += [title, table(HEAD, (cells(row, here[0].bytes or 0) for row in here))]
    found = {"Aims, on one thread": judged(rows, AIMS), "More threads": "\n".join(scaling(rows))}
    return "\n\n".join([*parts, *(f"{what}:\n\n{lines}" for what, lines in found.items() if lines)])


SCALED, SCALE = ("vit_base", "resnet50"), 1.6  # on two threads, of one, at batch 1


def scaling(rows: Sequence[Row]) -> Iterator[str]:
    """How much faster the packed networks are than on one thread, and beside them the float one."""
    ms = {(row.case, row.contender, row.threads): row.timing.us / 1000 for row in rows}
    for (case, who, threads), now in ms.items():
        one, before, after = (
            ms.get(key, 0.0)
            for key in ((case, who, 1), (case, "float", 1), (case, "float", threads))
        )
        if who not in TASKS or threads == 1 or not (one and before and after):
            continue
        times = one / now
        text = f"- {who} of {case} on {threads}: {one:.2f} -> {now:.2f} ms, {times:.2f}x"
        text += f" (float {before / after:.2f}x)"
        if threads == 2 and who == "BWA" and case.batch == 1 and case.model in SCALED:
            text += f"; aim {SCALE:g}x {'reached' if times >= SCALE else 'missed'}"
        yield text


def cells(row: Row, float_bytes: int) -> tuple[str, ...]:
    timing = row.timing
    sizes = ("", "") if row.bytes is None else (size(row.bytes), f"{float_bytes / row.bytes:.1f}x")
    error = f"{row.error:.1g}" if row.on_bits else ""
    clock = f"{timing.us / 1000:.2f}", f"{timing.least_us / 1000:.2f}"
    return row.contender, times(timing), *clock, *sizes, row.on_bits, error


NEW_SECTION = """## Whole networks

Random weights, one process. Each contender runs beside torch's float32 network, in turns that begin
warm, in a shuffled order, each in its fastest layout. *times float*: how many times faster, the
median of the ratios of neighbouring turns, ± half their interquartile range, in brackets the ratio
of the fastest turns; *rounds* is their number. The row *float* is a second call of the float
network beside the first: it shows the noise. *hard*: the binary network before packing, its weights
held as floats. *on bits*: how many packed layers compute on bits, because that was faster here.
*error*: the largest deviation from the hard network, relative to its largest output.

{marks}
"""


# --- command --------------------------------------------------------------------------------


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    known = ", ".join(SETTINGS)
    add("--model", default=USUAL, type=one_of(SETTINGS), help=f"{known} or all")
    add("--tasks", default=list(TASKS), type=one_of(TASKS), help=f"{', '.join(TASKS)} or all")
    add("--batch-size", default="1,8", type=counts, help="comma-separated sizes")
    add("--threads", default="1,2", type=counts, help="comma-separated numbers of threads")
    add("--rounds", default=9, type=int, help="timed turns of each contender")
    add("--compile", action="store_true", help="also torch.compile of the float network")
    add("--onnx", action="store_true", help="also our operators in ONNX Runtime")
    add("--hard", action="store_true", help="also the binary networks before packing")
    add("--speed", action="store_true", help="renew these rows in results/speed/<cpu>.json")
    add("--quick", action="store_true", help="ResNet-20, one image, one thread: does it run?")
    add("--seed", default=0, type=int)
    add("--json", type=Path, help="write the rows here")
    add("--markdown", type=Path, help="put the tables between this page's marks")
    args = parser.parse_args()
    if args.quick:
        args.model, args.batch_size, args.threads, args.rounds = ["resnet20"], [1], [1], 3
    return args


def main() -> None:
    args, console = options(), Console()
    keep_freed_memory()
    about = environment(PACKAGES, args.rounds, args.seed)
    about |= {"threads": ", ".join(map(str, args.threads)), "kernels": isa()}
    about |= team(max(args.threads))
    print(facts(about))
    field, rows = contenders(args, console), []
    names = [n for n in args.model if "timm/" not in SETTINGS[n].name or installed("timm", console)]
    with torch.inference_mode():
        for threads, name, batch in product(args.threads, names, args.batch_size):
            rows += measure(Case(name, batch), field, threads, args.rounds, args.seed)
    print(tables(rows))
    if args.json:
        result = {"environment": about, "rows": [asdict(row) for row in rows]}
        args.json.write_text(json.dumps(result, indent=1))
    if args.speed:
        print(f"wrote {write_speed(about, rows)}")
    if args.markdown:
        write_section(args.markdown, "networks", about, tables(rows), NEW_SECTION)
    if len(rows) < len(field) * len(names) * len(args.batch_size) * len(args.threads):
        sys.exit("some networks were left out: see above")


if __name__ == "__main__":
    main()
