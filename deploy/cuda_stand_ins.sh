#!/usr/bin/env bash
# Lets Python import PyTorch from LibTorch's wheel without the 4 GB of CUDA libraries that the wheel names.
#
# The wheel's CUDA part must find these libraries when it is loaded, though nothing of them is called where there is no
# GPU. So for each that is absent a small one is made: every function is there, under its name and version, and ends the
# program if it is ever called. They are loaded by a line in the environment, before torch is.
#
# Usage: deploy/cuda_stand_ins.sh ENVIRONMENT TORCH    folders: a virtual environment, and the torch package in another
# one
set -euo pipefail
(($# == 2)) || { echo "Usage: deploy/cuda_stand_ins.sh ENVIRONMENT TORCH" >&2; exit 2; }
readonly packages="$(echo "$1"/lib/python3*/site-packages)" torch="$2/lib"
readonly folder="$packages/penstock_cuda_stand_ins"
readonly users=("$torch/libtorch_python.so" "$torch/libtorch_cuda.so" "$torch/libtorch_nvshmem.so")

rm -rf "$folder"
mkdir -p "$folder/made"

# Functions that nobody defines: all that CUDA's libraries have in common is how their names begin.
nm -D --defined-only "$torch"/*.so* "$torch"/../../nvidia/*/lib/*.so* 2>/dev/null |
  awk 'NF == 3 { sub(/@.*/, "", $3); print $3 }' | sort -u >"$folder/made/defined"
nm -D --undefined-only "${users[@]}" | awk '$1 == "U" { sub(/@.*/, "", $2); print $2 }' |
  grep -E '^(cublas|cudnn|cufft|cuFile|curand|cusparse|cusolver|nccl|nvshmem)' | sort -u |
  comm -23 - "$folder/made/defined" | awk '{ print "void " $1 "(void) { __builtin_trap(); }" }' >"$folder/made/functions.c"

# Libraries that are named and absent, with the version that their functions are asked for.
present() { [[ -e $torch/$1 ]] || compgen -G "$torch/../../nvidia/*/lib/$1" >/dev/null; }
for library in $(readelf -d "${users[@]}" | sed -n 's/.*(NEEDED).*\[\(lib\(cu\|nccl\|nvshmem\).*\)\]/\1/p' | sort -u); do
  if present "$library"; then continue; fi
  version="$(readelf -V "${users[@]}" | awk -v file="$library" '/File:/ { at = $5 } /Name:/ && at == file { print $3 }' |
    sort -u)"
  options=()
  if [[ -n $version ]]; then
    echo "$version { *; };" >"$folder/made/versions"
    options=("-Wl,--version-script=$folder/made/versions")
  fi
  gcc -shared -fPIC "-Wl,-soname,$library" "${options[@]}" -o "$folder/$library" "$folder/made/functions.c"
done
rm -r "$folder/made"

cat >"$folder/__init__.py" <<'PYTHON'
"""Loads stand-ins for CUDA's libraries: whoever asks for one of their names afterwards gets them."""

import ctypes
import pathlib

for library in sorted(pathlib.Path(__file__).parent.glob("*.so.*")):
    ctypes.CDLL(str(library))
PYTHON
# Python runs this line at each start of the environment.
echo "import penstock_cuda_stand_ins" >"$packages/penstock_cuda_stand_ins.pth"
