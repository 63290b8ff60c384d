#!/usr/bin/env bash
# The kernels for 64-bit ARM, cross-compiled and run under emulation. Nothing here measures speed.
#
#   tools/arm.sh                       what `make arm` does: build, the laws on every backend, the operators
#   tools/arm.sh mutants               kernels with one mistake each, all of which the laws must find (minutes)
#   tools/arm.sh build                 the library alone: build/arm/libproxbit.so
#   tools/arm.sh compile OUT FILES...  a C++ program for ARM that links with it
#   tools/arm.sh run PROGRAM...        such a program under emulation (QEMU_CPU=cortex-a53: another processor)
#
# It needs the Debian packages g++-aarch64-linux-gnu and qemu-user. With CI=true and as root it installs them;
# elsewhere it says which are missing. Without them `make arm` is skipped, and the other commands exit with 77.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$PWD/build/arm
compiler=aarch64-linux-gnu-g++

missing() {
  command -v "$compiler" >/dev/null || echo g++-aarch64-linux-gnu
  command -v qemu-aarch64 >/dev/null || echo qemu-user
}

need_packages() {
  local packages log
  packages=$(missing | paste -sd' ')
  if [ -n "$packages" ] && [ "$(id -u)" = 0 ] && [ "${CI:-}" = true ] && command -v apt-get >/dev/null; then
    echo "installing $packages"
    log=$(mktemp)
    # shellcheck disable=SC2086
    { apt-get update && apt-get install --yes --no-install-recommends $packages; } >"$log" 2>&1 || tail -n 3 "$log"
    packages=$(missing | paste -sd' ')
  fi
  [ -n "$packages" ] || return 0
  echo "skipped: the kernels for ARM need packages that are not here (apt-get install $packages)"
  exit "$1"
}

build_library() {  # SOURCE BUILD [OPTIONS...]
  mkdir -p "$2"
  { cmake -S "$1" -B "$2" "${@:3}" && cmake --build "$2" --parallel 2; } >"$2/log" 2>&1 ||
    { tail -n 40 "$2/log"; exit 1; }
}

build_for_arm() {  # SOURCE BUILD [FLAGS]
  build_library "$1" "$2" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
    -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_CXX_FLAGS="-Werror ${3:-}"
}

build() {
  build_for_arm . "$build/cmake"
  cp "$build/cmake/libproxbit.so" "$build/"
}

compile() {
  "$compiler" -std=c++17 -O1 -Wall -Wextra -Werror "${@:2}" -o "$1" "$build/libproxbit.so" -Wl,-rpath,"$build"
}

run() { qemu-aarch64 -L /usr/aarch64-linux-gnu "$@"; }

# A second compiler, where it is at hand: Apple's is its relative.
clang_too() {
  command -v clang++ >/dev/null || return 0
  for source in csrc/*_neon.cpp csrc/*_dotprod.cpp; do
    clang++ --target=aarch64-linux-gnu -std=c++17 -O1 -ffp-contract=off -Wall -Wextra -Werror \
      -march=armv8.2-a+dotprod -fsyntax-only "$source"
  done
}

digest() { sed -n 's/^digest: //p' "$1"; }

# Plain C++ on this machine, whose answers the tests of `make test` compare with formulas.
laws_here() {
  build_library . "$build/here"
  c++ -std=c++17 -O1 tests/laws/*.cpp -o "$build/here/laws" "$build/here/libproxbit.so" -Wl,-rpath,"$build/here"
  "$build/here/laws" >"$build/here.log" || { cat "$build/here.log"; exit 1; }
}

laws() {
  compile "$build/laws" tests/laws/*.cpp
  run "$build/laws" | tee "$build/laws.log"
  for backend in portable neon dotprod; do
    grep --quiet "^backends:.* $backend" "$build/laws.log" || { echo "$backend did not run"; exit 1; }
  done
  # A check that cannot fail is none: damaged answers break every law.
  run "$build/laws" --spoil neon >"$build/spoiled.log" && { echo "damaged answers break no law"; exit 1; }
  grep --quiet '^laws: \([0-9]*\), broken: \1,' "$build/spoiled.log" || { cat "$build/spoiled.log"; exit 1; }
  # A processor without dot products must not be given them.
  QEMU_CPU=cortex-a53 run "$build/laws" --only weight_linear >"$build/old.log"
  if grep --quiet dotprod "$build/old.log"; then echo "dot products on a processor without them"; exit 1; fi
  laws_here
  if [ "$(digest "$build/laws.log")" != "$(digest "$build/here.log")" ]; then
    echo "plain C++ gives other answers on ARM than on $(uname -m)"
    exit 1
  fi
}

# The operators of ONNX Runtime, on a program that plays its side of the API.
operators() {
  compile "$build/ort_host" tools/ort_host.cpp -ldl
  run "$build/ort_host" "$build/libproxbit.so"
}

# The laws once more, on kernels that stop at undefined behaviour.
sanitized_laws() {
  build_for_arm . "$build/sanitized" "-fsanitize=undefined -fno-sanitize-recover=all"
  LD_LIBRARY_PATH=$build/sanitized run "$build/laws" >"$build/sanitized.log" 2>&1 ||
    { cat "$build/sanitized.log"; exit 1; }
}

# Each of these kernels is wrong in one place, and a law must say so.
mutants() {
  local law file from to source=$build/source
  rm -rf "$source" && mkdir -p "$source"
  while IFS='|' read -r law file from to; do
    cp -r CMakeLists.txt csrc "$source/"
    FROM=$from TO=$to perl -0pi -e 's/\Q$ENV{FROM}\E/$ENV{TO}/' "$source/csrc/$file"
    if cmp --quiet "csrc/$file" "$source/csrc/$file"; then echo "$file holds no '$from' to break"; exit 1; fi
    build_for_arm "$source" "$build/mutant"
    if LD_LIBRARY_PATH=$build/mutant run "$build/laws" --only "$law" >"$build/mutant.log" 2>&1; then
      echo "$file with '$to' for '$from' breaks no law"
      exit 1
    fi
    echo "found by $law: $file with '$to' for '$from'"
    cp "csrc/$file" "$source/csrc/$file"
  done < <(grep -v '^#' tools/arm_mutants.txt)
}

# One behind the other, not joined by &&: there a failure inside of a function would not end it.
case ${1:-all} in
  build) need_packages 77; build ;;
  compile) need_packages 77; compile "${@:2}" ;;
  run) need_packages 77; run "${@:2}" ;;
  mutants) need_packages 77; build; laws; mutants ;;
  all) need_packages 0; build; clang_too; laws; sanitized_laws; operators ;;
  *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" && exit 2 ;;
esac
