#!/usr/bin/env bash
# The kernels under AddressSanitizer and UBSan: builds them apart, runs on every backend of this CPU the tests of
# kernels and of packed layers, and then packed files whose lengths are wrong (SECONDS_OF_FUZZ=600 for more).
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
build=build/sanitize
mkdir -p "$build"
cmake -S . -B "$build/cmake" -DPROXBIT_SANITIZE=ON >"$build/cmake.log"
cmake --build "$build/cmake" --parallel 2 >>"$build/cmake.log" || { tail -n 30 "$build/cmake.log"; exit 1; }
export PROXBIT_LIBRARY="$PWD/$build/cmake/libproxbit.so" OMP_NUM_THREADS=1
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1
# Python's own arenas would hide a read behind a small buffer.
export PYTHONMALLOC=malloc
# With libstdc++ in front of Python, the sanitizer knows the exceptions that the kernels throw.
LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libstdc++.so.6)"
export LD_PRELOAD
# A check that cannot fail is none: reading behind an input must end the process.
if "$python" 2>"$build/overrun.log" <<'END'
import numpy as np
from proxbit.kernels import inference as kernels

x, bits = np.ones(64, np.float32), np.zeros(1024, np.uint8)
kernels.library().pb_sign_rows(x.ctypes.data, 1, 4096, 4096, None, bits.ctypes.data, 1024, 1)
END
then
  echo "the sanitizer did not see a read behind the end of an input"
  exit 1
fi
grep --quiet heap-buffer-overflow "$build/overrun.log" || { cat "$build/overrun.log"; exit 1; }
if [ $# -gt 0 ]; then
  exec "$python" -m pytest -p no:cacheprovider "$@"
fi
# The tests of kernels go through every backend of this CPU themselves; packed layers take the chosen one.
"$python" -m pytest -p no:cacheprovider --numprocesses 2 tests/test_kernels_*.py
backends=$("$python" -c "from proxbit.kernels.library import backends; print(*backends().supported)")
for backend in $backends; do
  case $backend in emulated*) continue ;; esac
  PROXBIT_KERNELS=$backend "$python" -m pytest -p no:cacheprovider --numprocesses 2 --quiet \
    tests/test_engine_layers.py tests/test_packed_parts.py tests/test_engine_fusing.py
done
"$python" tools/attack/run.py packed_shapes onnx_nodes --seconds "${SECONDS_OF_FUZZ:-20}"
