#!/usr/bin/env bash
# Collects, from a built tree, what the checks on a GPU need on a machine that has PyTorch 2.11 and a driver but neither
# gRPC nor the tools to build: two programs, the CUDA module, the GPU tests and benchmark, the shared libraries that
# they load but for LibTorch's and the base system's, and the Python client.
#
#   tests/gpu/bundle.sh OUT [--build build/release] [--python 3.12]    some 50 MB; --python: the version there
#   OUT/run.sh OUT                                                     there
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
usage() { echo "Usage: tests/gpu/bundle.sh OUT [--build FOLDER] [--python VERSION]"; }
build="$root/build/release" version=3.12 out=""
while (($#)); do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --build) build="$(cd "${2:?$(usage)}" && pwd)"; shift 2 ;;
    --python) version="${2:?$(usage)}"; shift 2 ;;
    -*) usage >&2; exit 2 ;;
    *) out="$1"; shift ;;
  esac
done
[[ -n $out ]] || { usage >&2; exit 2; }

files=("$build"/{server/penstockd,client/cli/penstock,engine/device/libpenstock_cuda.so,tests/gpu/gpu_tests,tests/gpu/gpu_bench})
for file in "${files[@]}"; do
  [[ -e $file ]] || { echo "bundle: ${file#"$build"/} is not built" >&2; exit 1; }
done

rm -rf "$out"
mkdir -p "$out"/{bin,lib,client}
cp "${files[@]}" "$out/bin/"
# The loader, the C and C++ runtimes belong to the machine; LibTorch and CUDA to its PyTorch.
base='^(ld-linux|lib(c|m|dl|rt|util|pthread|resolv|gcc_s|stdc\+\+|gomp)\.so|lib(torch|c10|shm|cu|nv|nccl|caffe2))'
ldd "${files[@]}" | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u | while read -r name path; do
  [[ $name =~ $base ]] || cp -L "$path" "$out/lib/$name"
done
strip --strip-unneeded "$out"/bin/* "$out"/lib/*

cp -r "$root/client/python/penstock" "$out/client/"
find "$out/client" -name __pycache__ -prune -exec rm -r {} +
# Of what the client needs, PyTorch's machine has numpy and grpcio.
"$root/build/deps/test-venv/bin/python" -m pip install --quiet --target "$out/client" --no-deps --no-compile \
  --only-binary=:all: --implementation cp --python-version "$version" protobuf google-crc32c googleapis-common-protos
cp -r "$root/tests/gpu/checks" "$root/tests/gpu/run.sh" "$out/"
find "$out/checks" -name __pycache__ -prune -exec rm -r {} +

bytes="$(du -sb "$out" | cut -f1)"
echo "bundle: $((bytes / 1000000)) MB in $out"
((bytes <= 60 << 20)) || { echo "bundle: larger than 60 MiB" >&2; exit 1; }
