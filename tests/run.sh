#!/usr/bin/env bash
# Sets up, builds everything and runs every test; ends with ctest's summary and its exit code.
#
# The build is the one of deploy/quickstart.sh (preset release). Arguments go on to ctest: tests/run.sh -L lint. With --long as
# the first one the tests that take hours run too.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  echo "Usage: tests/run.sh [--long] [ctest arguments]"
  echo "Installs what is missing, builds the preset release and runs every test, for example: tests/run.sh -L lint"
  echo "  --long   also what takes hours: an hour of clients, an hour of fuzzing per target, 20,000 random pipelines,"
  echo "           the changes of docs/guides; tests/run.sh --long -L long runs only these"
  exit 0
fi
selection=()
if [[ ${1:-} == --long ]]; then
  selection=(-C Long)
  shift
fi

step() { printf '\n== %s (after %d s)\n' "$1" "$SECONDS"; }

deploy/setup.sh --tests
export PATH="$root/build/deps/bin:$PATH"  # promtool, where Debian's package is not installed

step "build"
deploy/build.sh release
# Built here for the sake of visible progress: the tests named sanitize_* would do it without a word.
step "build with sanitizers"
python3 tests/sanitize/run.py --build-only asan-ubsan
python3 tests/sanitize/run.py --build-only tsan
# For tests/ancestors/generate.py --results.
export PENSTOCK_TEST_RESULTS="$root/build/release/test-results"
export GTEST_OUTPUT="xml:$PENSTOCK_TEST_RESULTS/"
rm -rf "$PENSTOCK_TEST_RESULTS"
step "test"
ctest --test-dir build/release --output-on-failure --parallel 2 "${selection[@]}" "$@"
# A whole run has run every test that docs/ancestors.md names; what didn't is told.
if (($# == 0)); then
  missed="$(python3 -B tests/ancestors/generate.py --ran "$PENSTOCK_TEST_RESULTS")" || { echo "$missed" >&2; exit 1; }
fi
