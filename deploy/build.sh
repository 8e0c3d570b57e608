#!/usr/bin/env bash
# Configures a preset and builds targets of it, with progress. Needs what deploy/setup.sh installs.
#
# Usage: deploy/build.sh PRESET [TARGET...]      (no target: everything)
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset="${1:?usage: deploy/build.sh PRESET [TARGET...]}"
shift

# One job per core, but a file that includes LibTorch wants up to 2 GB of memory.
cores="$(nproc)"
memory="$(awk '/^MemAvailable:/ {print int($2 / 2097152)}' /proc/meminfo)"
jobs=$((memory < cores ? memory : cores))
jobs=$((jobs < 1 ? 1 : jobs))

# One build of a preset at a time: ninja itself does not look.
mkdir -p build
exec 9>"build/.$preset.lock"
if ! flock --nonblock 9; then
  echo "build: preset $preset is being built already; waiting"
  flock 9
fi

configured="$(mktemp)"
trap 'rm -f "$configured"' EXIT
if ! cmake --preset "$preset" >"$configured" 2>&1 9>&-; then
  cat "$configured" >&2
  echo "build: preset $preset can't be configured, see above." >&2
  exit 1
fi
ninja -C "build/$preset" -j "$jobs" "$@" 9>&-
