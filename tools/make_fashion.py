"""Make ``src/proxbit/data/fashion_mnist.npz``: a class-balanced part of Fashion-MNIST.

    python tools/make_fashion.py FOLDER [OUT.npz]

FOLDER holds the four idx ``.gz`` files as Zalando publishes them (Debian: the package
``dataset-fashion-mnist``). Of each class the first 800 training and the first 200 test images are
kept, in their original order. The same zlib (1.2.13 here) writes the same bytes every time:

    sha256 bfc365533c7d4f53eef38323463b2d4d45166c59cfa8437f7124b34ad03d62d6
"""

import gzip
import hashlib
import io
import sys
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

TRAIN_PER_CLASS = 800
TEST_PER_CLASS = 200
CLASSES = 10
OUT = Path(__file__).parents[1] / "src" / "proxbit" / "data" / "fashion_mnist.npz"

# The earliest date a zip file can hold: the clock must not reach the bytes.
EPOCH = (1980, 1, 1, 0, 0, 0)

Bytes = NDArray[np.uint8]


def read_idx(path: Path) -> Bytes:
    """Read a gzipped idx file of unsigned bytes: magic 0, 0, 8, rank, then big-endian sizes."""
    raw = gzip.decompress(path.read_bytes())
    if raw[:3] != b"\0\0\x08":
        raise SystemExit(f"{path} is not an idx file of unsigned bytes")
    rank = raw[3]
    shape = np.frombuffer(raw, ">u4", count=rank, offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * rank).reshape(shape.tolist())


def first_of_each_class(labels: Bytes, count: int) -> NDArray[np.intp]:
    """Positions of the first ``count`` images of every class, in the original order."""
    return np.sort(np.concatenate([np.flatnonzero(labels == c)[:count] for c in range(CLASSES)]))


def balanced_part(folder: Path, stem: str, count: int) -> tuple[Bytes, Bytes]:
    """The chosen images and labels of one of the two original parts, ``train`` or ``t10k``."""
    images = read_idx(folder / f"{stem}-images-idx3-ubyte.gz")
    labels = read_idx(folder / f"{stem}-labels-idx1-ubyte.gz")
    keep = first_of_each_class(labels, count)
    return images[keep], labels[keep]


def write_npz(path: Path, arrays: dict[str, Bytes]) -> None:
    """Write what ``np.savez_compressed`` would, with fixed dates so that the bytes repeat."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.save(buffer, array, allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy", EPOCH)
            entry.create_system = 3  # Unix, wherever this runs
            archive.writestr(entry, buffer.getvalue(), zipfile.ZIP_DEFLATED, 9)


def main(arguments: list[str]) -> None:
    """Write the file and show its size and sha256."""
    if len(arguments) not in (1, 2):
        raise SystemExit(__doc__)
    folder, out = Path(arguments[0]), Path(arguments[1]) if arguments[1:] else OUT
    x_train, y_train = balanced_part(folder, "train", TRAIN_PER_CLASS)
    x_test, y_test = balanced_part(folder, "t10k", TEST_PER_CLASS)
    write_npz(out, {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test})
    data = out.read_bytes()
    sys.stdout.write(f"{out}: {len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
