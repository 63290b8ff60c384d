#!/usr/bin/env bash
# The stored networks in the oldest and the newest onnxruntime that we name, each in a small environment of its own.
#
# Usage: tools/onnxruntimes.sh [VERSION...], such as 1.18.0 1.24.4; it needs the network, or wheels that pip has kept.
set -euo pipefail
cd "$(dirname "$0")/.."
library=${PROXBIT_LIBRARY:-$(ls "$PWD"/src/proxbit/kernels/libproxbit.*)}
pinned=$(sed -n 's/^onnxruntime==//p' constraints.txt)
versions=("$@")
[ $# -gt 0 ] || versions=(1.18.0 "$pinned")
for version in "${versions[@]}"; do
  place=build/onnxruntimes/$version
  if [ ! -d "$place" ]; then
    numpy=numpy
    case $version in 1.1[0-8].*) numpy='numpy<2' ;; esac  # built before numpy 2
    rm -rf "$place.new"
    "${PYTHON:-python3}" -m venv "$place.new"
    "$place.new/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "onnxruntime==$version" "$numpy"
    mv "$place.new" "$place"
  fi
  PYTHONPATH=runtime/src "$place/bin/python" - "$library" <<'END'
import sys

import numpy as np
import onnxruntime

from proxbit_runtime import load, networks

networks.library = lambda: sys.argv[1]
for task in ("bw", "bwa", "bwaa"):
    held = np.load(f"tests/runtime_nets/{task}.npz")
    apart = float(np.abs(load(f"tests/runtime_nets/{task}.onnx")(held["x"]) - held["y"]).max())
    print(f"onnxruntime {onnxruntime.__version__}, {task}: largest difference {apart:.1e}")
    assert apart < 1e-5
END
done
