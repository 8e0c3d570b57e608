#!/usr/bin/env bash
# Prints the time of all that is made of these sources, in seconds since 1970: SOURCE_DATE_EPOCH, or the time of the commit where
# this folder is the top of a clone. Ends with one sentence and code 1 where there is neither.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds="${SOURCE_DATE_EPOCH:-}"
clone() { git -c safe.directory="$(pwd -P)" "$@" 2>/dev/null; }  # another user's clone gives the same time
if [[ -z $seconds && "$(clone rev-parse --show-toplevel)" == "$(pwd -P)" ]]; then
  seconds="$(clone log -1 --format=%ct)"
fi
if [[ ! $seconds =~ ^[0-9]+$ ]]; then
  echo "source_date: no time for what is made: set SOURCE_DATE_EPOCH to seconds since 1970, as here is no clone, got '$seconds'" >&2
  exit 1
fi
echo "$seconds"
