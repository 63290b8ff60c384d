"""The plain tables of a report: evidence, packed networks, verdicts, every run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from proxbit.experiments.report.cells import Outcome, figures, how_trained, is_number
from proxbit.experiments.report.claims import decision, difference
from proxbit.experiments.report.parts import Claim, Entry, Evidence, Table, chance, points, signed
from proxbit.experiments.reproduce.results import ResultLine
from proxbit.util.text import size

_AXES = ("model", "dataset", "pipeline", "task", "method")


def evidence_table(claims: Sequence[Claim]) -> Table:
    """Every comparison behind the claims."""
    head = ("claim", "preset", "where", "first", "second", "difference", "p", "over", "says")
    rows = tuple(_compared(claim, each) for claim in claims for each in claim.evidence)
    return Table("The comparisons behind the claims", head, rows, wide=frozenset({"claim"}))


def _compared(claim: Claim, each: Evidence) -> tuple[Entry, ...]:
    sides = zip(each.names, each.means, strict=True)
    means = [Entry(f"{name} {points(mean)}", sort=100 * mean) for name, mean in sides]
    gap = Entry(signed(100 * difference(each)), sort=100 * difference(each))
    said = map(Entry, (each.comparison.test, decision(each)))
    where = map(Entry, (claim.text, claim.preset, each.where))
    return *where, *means, gap, Entry(chance(each.p), sort=each.p), *said


def packed_table(found: Sequence[Outcome]) -> Table:
    """Size and speed of the packed networks next to the same ones in float32."""
    sizes, speeds = ("float", "packed", "smaller"), ("float ms", "packed ms", "faster")
    head = ("grid", "preset", *_AXES, "more", *sizes, *speeds, "device")
    rows = tuple(_packed(cell) for cell in found if cell.packed("bytes") is not None)
    notes = ("One image at a time; the float network has the same hard weights.",)
    return Table("Size and speed of the packed networks", head, rows, notes)


def _packed(cell: Outcome) -> tuple[Entry, ...]:
    words = [cell.grid, cell.preset, *(cell.at(axis) for axis in _AXES), _more(dict(cell.axes))]
    sizes = _beside(cell.mean("bytes_float"), cell.packed("bytes"), size)
    times = _beside(cell.packed("float_ms"), cell.packed("ms"), "{:.3g}".format)
    devices = ", ".join(dict.fromkeys(line.device for line in cell.done))
    return *map(Entry, words), *sizes, *times, Entry(devices)


def _more(key: Mapping[str, str]) -> str:
    """Where a cell lies on the axes that only some grids have."""
    return ", ".join(value for axis, value in key.items() if axis not in _AXES)


def _beside(
    before: float | None, after: float | None, words: Callable[[float], str]
) -> list[Entry]:
    """Two figures, and how many times less the second is, as far as they are known."""
    shown = [Entry() if x is None else Entry(words(x), sort=x) for x in (before, after)]
    if before is None or not after:
        return [*shown, Entry()]
    return [*shown, Entry(f"{before / after:.3g} x", sort=before / after)]


def verdicts_table(lines: Sequence[ResultLine]) -> Table:
    """The theory's verdict on each method, at the strengths that it was run with."""
    said = dict.fromkeys((line.key["method"], line.verdict) for line in lines if line.verdict)
    rows = tuple((Entry(method), Entry(verdict)) for method, verdict in sorted(said))
    head = ("method", "verdict")
    return Table("The verdict of each pair", head, rows, wide=frozenset({"verdict"}))


def runs_table(lines: Sequence[ResultLine]) -> Table:
    """Every line of the results."""
    head = ("grid", "preset", *_AXES, "more", "seed", "float", "soft", "hard at once", "hard",
            "images", "seconds", "here", "device", "commit", "started")  # fmt: skip
    return Table("Every run", head, tuple(_run(line) for line in lines), wide=frozenset({"hard"}))


def _run(line: ResultLine) -> tuple[Entry, ...]:
    words = [line.grid, line.preset, *(line.key[axis] for axis in _AXES), _more(line.key)]
    result = figures(line)
    shares = [_share(result.get(name)) for name in ("float", "soft", "hardened", "hard")]
    if not line.done:
        shares[-1] = Entry("broken", (line.error or "",), broken=True)
    return (
        *map(Entry, words),
        Entry(str(line.seed), sort=line.seed),
        *shares,
        Entry(str(result.get("n", ""))),
        Entry(f"{line.seconds:.1f}", sort=line.seconds),
        *map(Entry, (how_trained(line), line.device, (line.commit or "")[:12], line.started)),
    )


def _share(value: object) -> Entry:
    if not is_number(value):
        return Entry()
    share = float(str(value))
    return Entry(points(share), sort=100 * share)
