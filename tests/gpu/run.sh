#!/usr/bin/env bash
# Runs the checks of a bundle (bundle.sh) with this machine's PyTorch and GPU, prints a report and writes it as text and
# JSON, with the log of each check, to a folder. Without a GPU it says what it skips.
#
#   tests/gpu/run.sh BUNDLE [--minutes 9] [--out gpu-report] [--only CHECK ...]     bundles have it, too
set -euo pipefail
[[ ${1:-} != "" && ${1:-} != -* ]] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
bundle="$(cd "$1" && pwd)"
shift
exec python3 "$bundle/checks/run.py" --bundle "$bundle" "$@"
