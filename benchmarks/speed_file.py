"""results/speed: one file of figures for each CPU and the kernels that it used."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evidence import ROOT
from pairing import Row

KEYS = ("network", "contender", "batch", "threads")
SPEED = ROOT / "results" / "speed"
# Instruction sets that decide who is fast, as the kernel of Linux names them.
NOTABLE = (
    "avx2", "fma", "avx512f", "avx512vl", "avx512_vnni", "avx512_bitalg", "avx512_vpopcntdq",
    "avx_vnni", "avx512_bf16", "amx_int8", "asimd", "asimddp",
)  # fmt: skip


def instruction_sets() -> list[str]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    flags = [line for line in lines if line.startswith(("flags", "Features"))]
    return [name for name in NOTABLE if flags and name in flags[0].split()]


def write_speed(about: dict[str, Any], rows: Sequence[Row]) -> Path:
    """Renew the rows of what was measured in the file of this CPU; the others stay."""
    name = re.sub("[^a-z0-9]+", "-", f"{about['cpu']} {about['kernels']}".lower()).strip("-")
    path = SPEED / f"{name}.json"
    held = json.loads(path.read_text()) if path.exists() else {"rows": []}
    known = {tuple(row[key] for key in KEYS): row for row in held["rows"]}
    for row in rows:
        plain = plain_row(row) | {key: about[key] for key in ("commit", "date")}
        known[tuple(plain[key] for key in KEYS)] = plain
    facts = about | {"instruction_sets": instruction_sets()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"environment": facts, "rows": list(known.values())}, indent=1))
    return path


def plain_row(row: Row) -> dict[str, Any]:
    return {
        "network": row.case.model, "contender": row.contender, "batch": row.case.batch,
        "threads": row.threads, "ms": round(row.timing.us / 1000, 3),
        "least_ms": round(row.timing.least_us / 1000, 3),
        "times_float": round(row.timing.ratio, 3), "file_bytes": row.bytes,
        "on_bits": row.on_bits,
    }  # fmt: skip
