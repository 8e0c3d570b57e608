#!/usr/bin/env bash
# Runs pytest on the given files in the tests' Python environment; exits with 77 (skipped) where there is none. Files called
# *_namespaces.py run in a network and with mounts of their own (own_network.sh).
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
python="${PENSTOCK_TEST_PYTHON:-$root/build/deps/test-venv/bin/python}"
if [[ ! -x $python ]]; then
  echo "skipped: $python is missing; deploy/setup.sh --tests makes it"
  exit 77
fi
export PATH="$root/build/deps/bin:$PATH" PYTHONDONTWRITEBYTECODE=1
results=()
if [[ -n ${PENSTOCK_TEST_RESULTS:-} ]]; then
  results=("--junitxml=$PENSTOCK_TEST_RESULTS/$(basename "${1%.py}").xml")
fi
inside=()
[[ $* != *_namespaces.py* ]] || inside=("$root/tests/integration/own_network.sh")
exec "${inside[@]}" "$python" -m pytest -q -ra -p no:cacheprovider "${results[@]}" "$@"
