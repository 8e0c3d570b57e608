#!/usr/bin/env bash
# Makes what others install, from a clean clone on Debian 12: sets up, builds the preset portable, packs.
#
# Usage: deploy/package.sh [--out FOLDER]
#
#   --out FOLDER  [build/packages]
#
# In FOLDER, whose older packages are removed when all new ones are there:
#   penstock-*.whl               the Python client
#   penstock_server-*.whl        penstockd and penstock, for the LibTorch of an installed torch
#   penstock-*.tar.gz            the same programs without pip
#   penstock_*.deb               the command line, with its manual page and completion
#   libpenstock-dev_*.deb        the C++ client's archives and headers
#   SHA256SUMS                   of all of them
# The times in them are that of source_date.sh, the commit's: the same sources give the same bytes, in any folder.
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
    -h | --help) sed -n '2,/^set -euo/{/^set/d;s/^# \{0,1\}//p}' deploy/package.sh; exit 0 ;;
    *) echo "package: unknown option '$1'" >&2; exit 2 ;;
  esac
done
SOURCE_DATE_EPOCH="$(deploy/source_date.sh)"
export SOURCE_DATE_EPOCH

deploy/setup.sh
mkdir -p build "$(dirname "$out")"
deploy/build.sh portable penstockd penstock

# What is being made has no name that anybody looks for until all of it is there.
new="$(mktemp -d "$(dirname "$out")/.packages.XXXXXX")"
work="$(mktemp -d)"
trap 'rm -rf "$new" "$work"' EXIT
# cpack writes beside what it packs with; only its packages are taken.
if ! (umask 022 && cpack --config build/portable/CPackConfig.cmake -B "$work") >"$work/log" 2>&1; then
  cat "$work/log" >&2
  exit 1
fi
# Again, as cpack writes the time of day into them and no documents; by one thread, as what several make depends on the free
# memory. By Debian's Python: another one may have another zlib, and so other bytes.
for package in "$work"/*.deb; do
  dpkg-deb --raw-extract "$package" "$work/files"
  /usr/bin/python3 -B deploy/package/debian.py --build build/portable "$work/files"
  find "$work/files" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
  dpkg-deb --root-owner-group -Zxz --threads-max=1 --build "$work/files" "$new/$(basename "$package")" >>"$work/log"
  rm -r "$work/files"
done
/usr/bin/python3 -B deploy/package/pack.py --build build/portable --out "$new" --with "$new"/*.deb
mkdir -p "$out"
find "$out" -mindepth 1 -maxdepth 1 \( -name 'penstock*.whl' -o -name 'penstock-*.tar.gz' -o -name '*penstock*.deb' -o -name SHA256SUMS \) -delete
find "$new" -mindepth 1 ! -name SHA256SUMS -exec mv -t "$out" {} +
mv -t "$out" "$new/SHA256SUMS"  # the last: what it names is there
ls -l "$out"
