#!/usr/bin/env bash
# Links the CUDA runtime that stands in, its driver, and a compiler of kernels that nobody calls. Each function that LibTorch
# names, and that is not in the objects, says its name and ends the process.
#
# Usage: runtime.sh COMPILER TORCH-LIB OUT-FOLDER DRIVER RUNTIME      the last two are objects of cuda_driver.cc, cuda_runtime.cc
set -euo pipefail
compiler="$1" torch="$2" out="$3" driver="$4" runtime="$5"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

build() { "$compiler" -std=c++20 -O1 -fPIC "$@"; }
nm --defined-only "$driver" "$runtime" | awk '$2 == "T" { print $3 }' | sort -u >"$work/there"
asked() { nm -D --undefined-only "$torch"/*.so* 2>/dev/null | sed -En "s/^ *U ($1)\$/\\1/p" | sed 's/@.*//' | sort -u; }
missing() {
  asked "$1" | comm -23 - "$work/there" | awk '
    BEGIN { print "#include <cstdio>\nextern \"C\" {" }
    { print "void " $1 "() { std::fputs(\"the stand-in has no " $1 "\\n\", stderr); __builtin_trap(); }" }
    END { print "}" }'
}

missing '.*@libcudart\.so\.13' >"$work/runtime.cc"
missing 'cu[A-Z][A-Za-z]*' >"$work/driver.cc"
missing 'nvrtc[A-Za-z]*' >"$work/kernels.cc"
echo 'libcudart.so.13 { *; };' >"$work/versions"
build -shared -Wl,-soname,libcudart.so.13 "-Wl,--version-script=$work/versions" -o "$out/libcudart.so.13" \
  "$runtime" "$work/runtime.cc"
build -shared -Wl,-soname,libcuda.so.1 -o "$out/libcuda.so.1" "$driver" "$work/driver.cc"
build -shared -Wl,-soname,libnvrtc.so.13 -o "$out/libnvrtc.so.13" "$work/kernels.cc"
