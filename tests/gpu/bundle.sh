#!/usr/bin/env bash
# Collects, from a built tree, what the checks on a GPU need on a machine that has PyTorch 2.11 and a driver, with nothing to
# fetch there: the wheels of the programs and of the Python client, the packages that the client needs, the GPU tests and
# benchmark with the shared libraries that they load but for LibTorch's and the base system's.
#
#   tests/gpu/bundle.sh OUT [--build build/release] [--python 3.12] [--packed FOLDER] [--packages FOLDER]
#   OUT/run.sh OUT                                                     there
#
#   --python     the version there
#   --packed     the wheels that deploy/package.sh has made; without it, those of the build, with gRPC and the like as
#                shared libraries
#   --packages   wheels of numpy, grpcio and the like; without it pip fetches the versions of tests/requirements.txt
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
usage() { echo "Usage: tests/gpu/bundle.sh OUT [--build FOLDER] [--python VERSION] [--packed FOLDER] [--packages FOLDER]"; }
build="$root/build/release" version=3.12 out="" packed="" packages=""
while (($#)); do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --build | --python | --packed | --packages)
      [[ -n ${2:-} ]] || { echo "bundle: $1 needs a value" >&2; exit 2; } ;;&
    --build) build="$(realpath -m "$2")"; shift 2 ;;
    --python) version="$2"; shift 2 ;;
    --packed) packed="$(realpath -m "$2")"; shift 2 ;;
    --packages) packages="$(realpath -m "$2")"; shift 2 ;;
    -*) usage >&2; exit 2 ;;
    *) out="$(realpath -m "$1")"; shift ;;
  esac
done
[[ -n $out ]] || { usage >&2; exit 2; }
if [[ -e $out && ! -e $out/bundle.json ]] && ! rmdir "$out" 2>/dev/null; then
  echo "bundle: $out is there and is no bundle" >&2
  exit 1
fi

needed=(tests/gpu/gpu_tests tests/gpu/gpu_bench)
[[ -n $packed ]] || needed+=(server/penstockd client/cli/penstock engine/device/libpenstock_cuda.so)
for file in "${needed[@]}"; do
  [[ -e $build/$file ]] || { echo "bundle: $file is not built" >&2; exit 1; }
done

work="$(mktemp -d)"
mkdir -p "$(dirname "$out")"
new="$(mktemp -d "$(dirname "$out")/.bundle.XXXXXX")"
trap 'rm -rf "$work" "$new"' EXIT
chmod 755 "$new"
mkdir -p "$new/wheels" "$work"/{bin,lib}
if [[ -z $packed ]]; then
  packed="$work/packed"
  SOURCE_DATE_EPOCH="$("$root/deploy/source_date.sh")"
  export SOURCE_DATE_EPOCH
  python3 -B "$root/deploy/package/pack.py" --build "$build" --out "$packed" --shared >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; exit 1; }
fi
cp "$packed"/penstock-*.whl "$packed"/penstock_server-*.whl "$new/wheels/"
python3 -m zipfile --list "$new"/wheels/penstock_server-*.whl >"$work/inside"
grep -q libpenstock_cuda.so "$work/inside" ||
  { echo "bundle: the wheel has no CUDA module" >&2; exit 1; }
if [[ -n $packages ]]; then
  cp "$packages"/*.whl "$new/wheels/"
else
  "$root/build/deps/test-venv/bin/python" -m pip download --quiet --disable-pip-version-check --dest "$new/wheels" --no-deps \
    --only-binary=:all: --implementation cp --python-version "$version" \
    --constraint "$root/tests/requirements.txt" numpy grpcio protobuf google-crc32c googleapis-common-protos typing-extensions
fi

programs=("$build"/tests/gpu/{gpu_tests,gpu_bench})
cp "${programs[@]}" "$work/bin/"
# The loader, the C and C++ runtimes belong to the machine; LibTorch and CUDA to its PyTorch; the CUDA module to the wheel.
base='^(ld-linux|lib(c|m|dl|rt|util|pthread|resolv|gcc_s|stdc\+\+|gomp)\.so|lib(torch|c10|shm|cu|nv|nccl|caffe2))'
ldd "${programs[@]}" | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u | while read -r name path; do
  [[ $name =~ $base ]] || cp -L "$path" "$work/lib/$name"
done
find "$work/bin" "$work/lib" -type f -exec strip --strip-unneeded {} +
patchelf --set-rpath "\$ORIGIN/../lib" "$work"/bin/*  # not the folders of the build
# By Python, as the machine there reads it: a bare Debian has no xz.
python3 - "$work" "$new/programs.tar.xz" <<'PACK'
import sys, tarfile
folder, out = sys.argv[1:]
with tarfile.open(out, "w:xz") as archive:
    for name in ("bin", "lib"):
        archive.add(f"{folder}/{name}", arcname=name)
PACK

cp -r "$root/tests/gpu/checks" "$root/tests/gpu/run.sh" "$new/"
find "$new/checks" -name __pycache__ -prune -exec rm -r {} +
echo "{\"python\": \"$version\"}" >"$new/bundle.json"

bytes="$(du -sb "$new" | cut -f1)"
((bytes <= 60 << 20)) || { echo "bundle: larger than 60 MiB" >&2; exit 1; }
old="$(mktemp -d "$out.XXXXXX")"
[[ ! -e $out ]] || mv "$out" "$old/"
mv "$new" "$out"
rm -rf "$old"
echo "bundle: $((bytes / 1000000)) MB in $out"
