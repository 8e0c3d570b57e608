#!/usr/bin/env bash
# Makes what others install, from a clean clone on Debian 12: sets up, builds the preset portable, packs.
#
# Usage: deploy/package.sh [--out FOLDER]      (default: build/packages)
#
# In FOLDER, whose older packages are removed first:
#   penstock-*.whl               the Python client
#   penstock_server-*.whl        penstockd and penstock, for the LibTorch of an installed torch
#   penstock-*.tar.gz            the same programs without pip
#   penstock_*.deb               the command line, with its manual page and completion
#   libpenstock-dev_*.deb        the C++ client's archives and headers
#   SHA256SUMS                   of all of them
# The times in them are those of the commit, or of SOURCE_DATE_EPOCH: the same sources give the same bytes, in any folder.
set -euo pipefail

here="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out="build/packages"
while (($#)); do
  case "$1" in
    --out)
      (($# > 1)) && [[ -n $2 ]] || { echo "package: --out needs a folder" >&2; exit 2; }
      out="$2"
      [[ $out == /* ]] || out="$here/$out"
      shift 2 ;;
    -h | --help) sed -n '2,/^set -euo/{/^set/d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "package: unknown option '$1'" >&2; exit 2 ;;
  esac
done
if [[ -z ${SOURCE_DATE_EPOCH:-} ]]; then
  SOURCE_DATE_EPOCH="$(git log -1 --format=%ct 2>/dev/null)" || SOURCE_DATE_EPOCH=0  # sources without a history
fi
export SOURCE_DATE_EPOCH

deploy/setup.sh
deploy/build.sh portable penstockd penstock

mkdir -p "$out"
find "$out" -mindepth 1 -maxdepth 1 \( -name 'penstock*.whl' -o -name 'penstock-*.tar.gz' -o -name '*penstock*.deb' -o -name SHA256SUMS \) -delete
# cpack writes beside what it packs with; only its packages are taken.
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
if ! (umask 022 && cpack --config build/portable/CPackConfig.cmake -B "$work") >"$work/log" 2>&1; then
  cat "$work/log" >&2
  exit 1
fi
# Again, as cpack writes the time of day into them and no documents; by one thread, as what several make depends on the free
# memory.
for package in "$work"/*.deb; do
  dpkg-deb --raw-extract "$package" "$work/files"
  python3 -B deploy/package/debian.py --build build/portable "$work/files"
  find "$work/files" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
  dpkg-deb --root-owner-group -Zxz --threads-max=1 --build "$work/files" "$out/$(basename "$package")" >>"$work/log"
  rm -r "$work/files"
done
python3 -B deploy/package/pack.py --build build/portable --out "$out"
ls -l "$out"
