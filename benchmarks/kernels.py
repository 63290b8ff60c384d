"""Time of single layers, float input to float output: proxbit's kernels, torch, and their rivals.

Each contender takes turns with torch's float32 layer in one process, both in the layout that suits
them best and equally warm. Before it is timed, its output is compared with that of the layer that
it stands for.

    python benchmarks/kernels.py --markdown docs/performance.md
"""

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import torch
from contenders import installed
from evidence import environment, write_section
from pairing import Aim, Calls, Row, compare, counts, facts, fastest, judged, table, times
from rich.console import Console
from rivals import FIELD, FLOAT, PORTABLE, Contender, Layers, hard_layers
from torch import Tensor, nn
from training_step import keep_freed_memory, one_of

from proxbit.engine import isa
from proxbit.kernels import inference as kernels

PACKAGES = ("proxbit", "torch", "onnxruntime", "openvino")
KINDS = ("linear", "gemv", "conv")
L2, DRAM = 2**19, 2**26  # bytes: what exceeds the first is in L3, and the second in no cache


@dataclass(frozen=True)
class Case:
    """A layer and its input: ``rows`` inputs of a linear layer, the side of an image."""

    kind: str
    outputs: int
    inputs: int
    rows: int
    stride: int = 1
    copies: int = 1

    def layers(self) -> Layers:
        return [self._layer().eval().requires_grad_(False) for _ in range(self.copies)]

    def _layer(self) -> nn.Linear | nn.Conv2d:
        if self.kind == "conv":
            return nn.Conv2d(self.inputs, self.outputs, 3, self.stride, 1, bias=False)
        return nn.Linear(self.inputs, self.outputs)

    def data(self) -> Tensor:
        shape = (
            (1, self.inputs, self.rows, self.rows)
            if self.kind == "conv"
            else (self.rows, self.inputs)
        )
        return torch.randn(shape)

    @property
    def float_bytes(self) -> int:
        return 4 * self.outputs * self.inputs * (9 if self.kind == "conv" else 1)

    @property
    def place(self) -> str:
        if self.kind == "conv":
            return "3x3, pad 1, batch 1"
        if self.kind == "linear":
            return f"M = {self.rows}"
        return f"M = 1, float weights {'in cache' if self.copies == 1 else 'from DRAM'}"

    def __str__(self) -> str:
        if self.kind != "conv":
            return f"{self.outputs} x {self.inputs}"
        more = "" if self.stride == 1 else f" to {self.outputs}, stride {self.stride}"
        return f"{self.inputs} at {self.rows}x{self.rows}{more}"


LAYERS = tuple((n * d, k * d) for d in (192, 384, 768) for n, k in ((1, 1), (3, 1), (4, 1), (1, 4)))
CONVS = ((16, 32), (32, 16), (64, 56), (128, 28), (256, 14), (512, 7))


def cases(quick: bool) -> list[Case]:
    if quick:
        small = [Case("linear", 192, 192, 64), Case("gemv", 192, 192, 1)]
        return [*small, streaming(3072, 768), Case("conv", 16, 16, 32), Case("conv", 32, 32, 16)]
    found = [Case("linear", n, k, m) for m in (197, 64) for n, k in LAYERS]
    found += [Case("gemv", n, k, 1) for n, k in (*LAYERS, (4096, 1024))]
    found += [streaming(n, k) for n, k in (*LAYERS, (4096, 1024), (4096, 4096))]
    found += [Case("conv", c, c, side) for c, side in CONVS]
    return [*found, Case("conv", 128, 64, 56, stride=2)]


def streaming(n: int, k: int) -> Case:
    """One row, with so many copies of the layer that float weights come from memory."""
    return Case("gemv", n, k, 1, copies=DRAM // (4 * n * k) + 1)


def in_l3(case: Case) -> bool:
    return case.kind == "gemv" and case.copies == 1 and case.float_bytes > L2


def square(case: Case) -> bool:
    return case.kind == "conv" and case.inputs == case.outputs


ALSO_PORTABLE = (
    Case("linear", 192, 192, 64),
    Case("linear", 768, 768, 197),
    Case("conv", 64, 64, 56),
)
AIMS = (
    Aim("BWA", 10, "float", "M = 197, N >= 576", lambda c: c.rows == 197 and c.outputs >= 576),
    Aim("BWA", 7, "float", "M = 197, N = 192", lambda c: c.rows == 197 and c.outputs == 192),
    Aim("BWAA", 10, "float", "M = 197, N >= 576", lambda c: c.rows == 197 and c.outputs >= 576),
    Aim("BW", 2.5, "float", "M = 197", lambda c: c.rows == 197),
    Aim("BW input8", 3.7, "float", "M = 197", lambda c: c.rows == 197),
    Aim("BW input8", 1, "ORT int8", "M = 197", lambda c: c.rows == 197),
    Aim("BWA", 20, "float", "M = 1, weights in L3", in_l3),
    Aim("BWA", 40, "float", "M = 1, from DRAM", lambda c: c.copies > 1),
    Aim("BW", 5, "float", "M = 1, weights in L3", in_l3),
    Aim("BW", 12, "float", "M = 1, from DRAM", lambda c: c.copies > 1),
    Aim("BWA", 6, "float", "3x3, C = 64", lambda c: square(c) and c.inputs == 64),
    Aim("BWA", 9, "float", "3x3, C >= 128", lambda c: square(c) and c.inputs >= 128),
    Aim("BWA", 1, "OpenVINO binary", "3x3, every size", lambda c: c.kind == "conv"),
)


# --- measurement ----------------------------------------------------------------------------


def measure(case: Case, threads: int, rounds: int, seed: int, console: Console) -> list[Row]:
    """One row per contender, timed in a shuffled order."""
    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    layers, x = case.layers(), case.data()
    base = fastest(FLOAT.ways(layers, x, threads))
    found = {}
    twins = cache(lambda task: layers if task == "float" else hard_layers(layers, task))
    field = entrants(case, threads, console)
    for contender in random.Random(seed).sample(field, len(field)):
        with instructions(contender.isa):
            ready = prepare(contender, twins(contender.like), x, threads, console)
            if ready is not None:
                calls, error = ready
                timing = compare(calls, base, rounds)
                found[contender] = Row(case, threads, contender.name, error, timing)
    return [found[contender] for contender in field if contender in found]


def entrants(case: Case, threads: int, console: Console) -> list[Contender]:
    portable = PORTABLE if case in ALSO_PORTABLE and isa() != "torch" else ()
    return [
        contender
        for contender in (*FIELD, *portable)
        if case.kind in contender.kinds
        and (case.copies == 1 or threads <= contender.streams)
        and present(contender.package, console)
    ]


@cache
def present(package: str, console: Console) -> bool:
    """Asked often, said once."""
    return installed(package, console)


@contextmanager
def instructions(name: str) -> Iterator[None]:
    """Let our kernels use these instructions for a while; "" for those they use anyway."""
    library = kernels.library()
    before = isa()
    if name:
        kernels.check(library.pb_use_isa(name.encode()))
    try:
        yield
    finally:
        if name:
            kernels.check(library.pb_use_isa(before.encode()))


def prepare(
    contender: Contender, layers: Layers, x: Tensor, threads: int, console: Console
) -> tuple[Calls, float] | None:
    """Its fastest way and its error; None, with a reason, where another package refuses."""
    try:
        ways = contender.ways(layers, x, threads)
        results = [calls[0]() for calls in ways]
    except Exception as error:
        if contender.package == "torch":
            raise
        console.print(f"{contender.name} refuses {tuple(x.shape)}: {error}", markup=False)
        return None
    worst = max(deviation(result, layers[0](x)) for result in results)
    if not worst <= contender.error:
        raise AssertionError(
            f"{contender.name} differs by {worst:.2g} from the {contender.like} layer "
            f"on {tuple(x.shape)}, and {contender.error:g} is allowed"
        )
    return fastest(ways), worst


def deviation(result: Tensor | np.ndarray, right: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return float((torch.as_tensor(result) - right).abs().max() / right.abs().max())


# --- reports --------------------------------------------------------------------------------


def tables(rows: Sequence[Row]) -> str:
    """A Markdown table for each place and number of threads: shapes down, contenders across."""
    parts = []
    for place, threads in dict.fromkeys((row.case.place, row.threads) for row in rows):
        here = [row for row in rows if (row.case.place, row.threads) == (place, threads)]
        names = list(dict.fromkeys(row.contender for row in here))
        cells = {(row.case, row.contender): row.timing for row in here}
        body = [
            [str(case), f"{cells[case, 'float'].us:.1f}"]
            + [times(cells[case, name]) if (case, name) in cells else "-" for name in names]
            for case in dict.fromkeys(row.case for row in here)
        ]
        title = f"### {place}, {threads} thread{'s' if threads > 1 else ''}"
        parts += [title, table(["layer", "float µs", *names], body)]
    aims = judged(rows, AIMS)
    return "\n\n".join([*parts, *([f"Aims, on one thread:\n\n{aims}"] if aims else [])])


HOW = """Each contender runs beside torch's float32 layer in one process, in turns that begin warm,
in a shuffled order, each in its fastest layout, and only after its output was found right. A cell
says how many times faster than float it is: the median of the ratios of neighbouring turns, ± half
their interquartile range, and in brackets the ratio of the fastest turns; *rounds* is the number of
turns. The column *float* is a second call of the float layer beside the first: it shows the noise.
"""
SECTIONS = {
    "linear": f"## Linear layers\n\nM rows, N x K weights.\n{HOW}\n{{marks}}\n",
    "gemv": "## Linear layers on one row\n\nMeasured as above. *From DRAM*: every contender goes "
    "through so many copies of the\nlayer that the float ones exceed 64 MB.\n\n{marks}\n",
    "conv": "## Convolutions\n\nMeasured as above.\n\n{marks}\n",
}


# --- command --------------------------------------------------------------------------------


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--only", default=list(KINDS), type=one_of(KINDS), help=f"{', '.join(KINDS)} or all")
    add("--threads", default="1,2", type=counts, help="comma-separated numbers of threads")
    add("--rounds", default=15, type=int, help="timed turns of each contender")
    add("--quick", action="store_true", help="few shapes, one thread, three rounds: does it run?")
    add("--seed", default=0, type=int)
    add("--json", type=Path, help="write the rows here")
    add("--markdown", type=Path, help="put the tables between this page's marks")
    args = parser.parse_args()
    if args.quick:
        args.threads, args.rounds = [1], 3
    return args


def main() -> None:
    args, console = options(), Console()
    keep_freed_memory()
    about = environment(PACKAGES, args.rounds, args.seed)
    about |= {"threads": ", ".join(map(str, args.threads)), "kernels": isa()}
    print(facts(about))
    rows = []
    with torch.inference_mode():
        for threads, case in product(args.threads, cases(args.quick)):
            if case.kind in args.only:
                rows += measure(case, threads, args.rounds, args.seed, console)
    print(tables(rows))
    if args.json:
        result = {"environment": about, "rows": [asdict(row) for row in rows]}
        args.json.write_text(json.dumps(result, indent=1))
    for kind in args.only if args.markdown else ():
        body = tables([row for row in rows if row.case.kind == kind])
        write_section(args.markdown, f"kernels-{kind}", about, body, SECTIONS[kind])


if __name__ == "__main__":
    main()
