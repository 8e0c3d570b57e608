#!/usr/bin/env bash
# Builds gpu_tests and libpenstock_cuda.so alone and runs them, on a machine that has a GPU but perhaps little else.
#
# Needs there: an NVIDIA driver, a CUDA 13 toolkit (nvcc on the path), g++ 12, CMake 3.25, Python with torch 2.11, and
# Abseil and GoogleTest. A machine without those two gets them from one that has them:
#
#   tests/gpu/build_and_run.sh --pack FOLDER                  on Debian 12, after deploy/setup.sh; 15 MB
#   tests/gpu/build_and_run.sh --packed FOLDER                on the other, with this source tree and FOLDER
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
usage() {
  echo "Usage: tests/gpu/build_and_run.sh [--packed FOLDER] [--python PYTHON] [gtest arguments]"
  echo "       tests/gpu/build_and_run.sh --pack FOLDER"
}

pack() {
  local from=/usr/lib/x86_64-linux-gnu to="$1/lib/x86_64-linux-gnu"
  mkdir -p "$1/include" "$to/cmake"
  cp -r /usr/include/{absl,gtest,gmock} "$1/include/"
  cp -r "$from"/cmake/{absl,GTest} "$to/cmake/"
  cp -d "$from"/libabsl_*.so* "$from"/lib{gtest,gmock}*.a "$to/"
}

python="$(command -v python3 || true)"
options=()
while (($#)); do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --pack) pack "${2:?$(usage)}"; exit 0 ;;
    --packed)
      packed="$(cd "${2:?$(usage)}" && pwd)/lib/x86_64-linux-gnu/cmake"
      options+=("-Dabsl_DIR=$packed/absl" "-DGTest_DIR=$packed/GTest")
      shift 2 ;;
    --python) python="${2:?$(usage)}"; shift 2 ;;
    *) break ;;
  esac
done
command -v ninja >/dev/null && options+=(-G Ninja)

build="$root/build/gpu"
cmake -S "$root" -B "$build" -DPENSTOCK_ONLY_GPU_TESTS=ON -DPENSTOCK_CUDA=ON "-DPENSTOCK_TORCH_PYTHON=$python" \
  ${options[@]+"${options[@]}"}
cmake --build "$build" --parallel "$(nproc)" --target gpu_tests penstock_cuda
exec "$build/tests/gpu/gpu_tests" "$@"
