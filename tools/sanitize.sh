#!/usr/bin/env bash
# The kernels under AddressSanitizer and UBSan: builds them apart, and runs their tests on them.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
build=build/sanitize
mkdir -p "$build"
cmake -S . -B "$build/cmake" -DPROXBIT_SANITIZE=ON >"$build/cmake.log"
cmake --build "$build/cmake" --parallel 2 >>"$build/cmake.log" || { tail -n 30 "$build/cmake.log"; exit 1; }
export PROXBIT_LIBRARY="$PWD/$build/cmake/libproxbit.so" OMP_NUM_THREADS=1
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1
# With libstdc++ in front of Python, the sanitizer knows the exceptions that the kernels throw.
LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libstdc++.so.6)"
export LD_PRELOAD
# A check that cannot fail is none: reading behind an input must end the process.
if "$python" 2>"$build/overrun.log" <<'END'
import numpy as np
from proxbit.engine import kernels

x, bits = np.ones(64, np.float32), np.zeros(1024, np.uint8)
kernels.library().pb_sign_rows(x.ctypes.data, 1, 4096, 4096, None, bits.ctypes.data, 1024, 1)
END
then
  echo "the sanitizer did not see a read behind the end of an input"
  exit 1
fi
grep --quiet heap-buffer-overflow "$build/overrun.log" || { cat "$build/overrun.log"; exit 1; }
[ $# -gt 0 ] || set -- tests/test_kernels_*.py
"$python" -m pytest -p no:cacheprovider "$@"
