"""``python -m proxbit_runtime net.onnx cat.png``: the best classes of images, or a time."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict

import numpy as np

from proxbit_runtime.networks import Network, load

MISTAKE = 2
MOST_THREADS = 256  # a slip of the hand must not start a hundred thousand
MOST_SECONDS = 86400


def main(arguments: list[str] | None = None) -> int:
    """Run the command, and return its status."""
    given = _parser().parse_args(arguments)
    try:
        if not given.images and not given.bench:
            raise ValueError("give image files, or --bench")
        network = load(given.file, given.threads)
        if given.bench:
            _bench(network, given.batch_size, given.seconds, given.json)
        return _recognize(network, given.images, given.top, given.json)
    except (OSError, ValueError) as error:
        return _complain(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m proxbit_runtime", description=__doc__)
    parser.add_argument("file", help="what pb.export_onnx or proxbit export wrote")
    parser.add_argument("images", nargs="*", help="image files (need pillow)")
    parser.add_argument("--top", type=_positive, default=5, help="how many classes to name")
    parser.add_argument("--bench", action="store_true", help="time the network on random inputs")
    parser.add_argument("--batch-size", type=_positive, default=1, help="inputs of a timed run")
    parser.add_argument("--seconds", type=_seconds, default=2.0, help="how long to measure")
    parser.add_argument("--threads", type=_threads, help="threads of ONNX Runtime")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    return parser


def _positive(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 2**20:
        raise argparse.ArgumentTypeError(f"a number above 0, not {text!r}")
    return int(text)


def _threads(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) <= MOST_THREADS:
        raise argparse.ArgumentTypeError(f"a number from 1 to {MOST_THREADS}, not {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"a number from 0 to {MOST_SECONDS}, not {text!r}")
    return seconds


def _recognize(network: Network, images: list[str], top: int, as_json: bool) -> int:
    status = 0
    for image in images:
        try:
            guesses = network.recognize(image, top)
        except (OSError, ValueError) as error:
            status = _complain(error)
            continue
        if as_json:
            _say(json.dumps({"image": image, "top": [asdict(guess) for guess in guesses]}))
        else:
            lines = [f"  {100 * guess.share:5.1f} %  {guess.label}" for guess in guesses]
            _say("\n".join([image, *lines]))
    return status


def _bench(network: Network, batch_size: int, seconds: float, as_json: bool) -> None:
    """Median and best time on random inputs, after a few warm-up runs."""
    random = np.random.default_rng(0)
    feeds = {}
    for entry in network.session.get_inputs():
        shape = [n if isinstance(n, int) else batch_size for n in entry.shape]
        whole = "int" in entry.type
        values = random.integers(0, 2, shape) if whole else random.standard_normal(shape)
        feeds[entry.name] = values.astype(np.int64 if whole else np.float32)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 8 or time.perf_counter() < end:
        begin = time.perf_counter()
        network.session.run(None, feeds)
        times.append(1e3 * (time.perf_counter() - begin))
    median, best = statistics.median(times[3:]), min(times[3:])
    if as_json:
        facts = {"batch_size": batch_size, "runs": len(times) - 3, "median_ms": median}
        _say(json.dumps(facts | {"best_ms": best}))
    else:
        runs = f"median of {len(times) - 3} runs"
        _say(f"batch {batch_size}: {median:.2f} ms ({runs}), best {best:.2f} ms")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _complain(error: Exception) -> int:
    sys.stderr.write(f"proxbit-runtime: {' '.join(str(error).split())}\n")
    return MISTAKE


if __name__ == "__main__":
    sys.exit(main())
