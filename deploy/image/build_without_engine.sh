#!/usr/bin/env bash
# Builds a target of the Dockerfile without a container engine, and unpacks it: buildah, isolated by chroot, on a base
# that mmdebstrap makes from Debian's packages. Nothing is pulled from a registry. Needs Debian's buildah and
# mmdebstrap.
#
# Usage: deploy/image/build_without_engine.sh TARGET --out FOLDER [OPTION...] [-- BUILDAH-OPTION...]
#
#   TARGET             daemon-cpu, daemon (with CUDA) or cli
#   --out FOLDER       the root of the image; must not exist. FOLDER.json gets its configuration
#   --packages FOLDER  compiles nothing: FOLDER is what deploy/package.sh has made
#   --files FOLDER     leaves all but the last stage out: FOLDER is what they would leave, assemble.py's result in
#                      FOLDER/image/TARGET
#   --ccache FOLDER    lets the build stage use this compiler cache
#   --work FOLDER      where base, layers and scratch files go, 10 GB of them without --files, 25 GB for daemon
#                      [build/image-work]
#
# The times in the image are that of deploy/source_date.sh. Exit codes: 0; 1 and the reason if it can't be built; 2 for a wrong call; 77 where the programs are missing.
set -euo pipefail

fail() { echo "build_without_engine: $2" >&2; exit "$1"; }

here="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
target="${1:-}" out="" files="" packages="" cache="" work="build/image-work" options=()
case "$target" in
  -h | --help) sed -n '2,/^set -euo/{/^set/d;s/^# \{0,1\}//p}' deploy/image/build_without_engine.sh; exit 0 ;;
  daemon-cpu | cli) stage=files ;;
  daemon) stage=files-cuda ;;
  *) fail 2 "TARGET must be daemon-cpu, daemon or cli, got '$target'" ;;
esac
shift
while (($#)); do
  case "$1" in
    --out | --files | --packages | --ccache | --work)
      (($# > 1)) || fail 2 "$1 needs a folder"
      [[ $2 == /* ]] || set -- "$1" "$here/$2" "${@:3}"
      case "$1" in
        --out) out="$2" ;; --files) files="$2" ;; --packages) packages="$2" ;; --ccache) cache="$2" ;; --work) work="$2" ;;
      esac
      shift 2 ;;
    --) shift; options+=("$@"); break ;;
    *) fail 2 "unknown option '$1'" ;;
  esac
done
[[ -n $out ]] || fail 2 "--out is needed"
[[ ! -e $out ]] || fail 2 "--out must not exist yet, got '$out'"
[[ -z $files || -d $files/image/$target ]] || fail 2 "--files must have a folder image/$target, got '$files'"
[[ -z $packages || -n "$(compgen -G "$packages/penstock_server-*.whl")" ]] ||
  fail 2 "--packages must have a wheel of penstock_server, got '$packages'"
if [[ -n $packages ]]; then
  (cd "$packages" && sha256sum --check --quiet --strict SHA256SUMS) >/dev/null 2>&1 ||
    fail 2 "--packages must have the files that its SHA256SUMS names: make them again, got '$packages'"
fi

epoch="$(deploy/source_date.sh)" || exit 1
programs=(buildah)
[[ -n $files ]] || programs+=(mmdebstrap)
for program in "${programs[@]}"; do
  command -v "$program" >/dev/null || fail 77 "$program is missing: apt-get install ${programs[*]}"
done

mkdir -p "$work/tmp"
work="$(cd "$work" && pwd)"
export TMPDIR="$work/tmp"
log="$work/$target.log"
run_buildah() { buildah --storage-driver vfs --root "$work/storage" --runroot "$work/run" "$@"; }
# What failed, in buildah's own words: a system call and its message where a sandbox forbids one.
reason() { grep -E '^Error|[Ee]rror:|not permitted|denied' "$log" | tail -n 1 || true; }
build() {
  run_buildah bud --isolation chroot --pull-never --format docker "$@" >"$log" 2>&1 ||
    fail 1 "$target can't be built here: $(reason) (all of it: $log)"
}

make_base() {
  run_buildah inspect --type image localhost/penstock-base >/dev/null 2>&1 && return
  echo "making the base from Debian's packages"
  mkdir -p "$work/base"
  mmdebstrap --variant=essential --include=apt,ca-certificates bookworm "$work/base/root.tar" >"$log" 2>&1 ||
    fail 1 "no base can be made here: $(tail -n 1 "$log") (all of it: $log)"
  printf 'FROM scratch\nADD root.tar /\n' >"$work/base/Dockerfile"
  build --tag localhost/penstock-base "$work/base"
  rm -r "$work/base"
}

if [[ -n $files ]]; then
  options+=(--build-context "$stage=$(cd "$files" && pwd)")
else
  make_base
  options+=(--build-arg BUILD_IMAGE=localhost/penstock-base)
  if [[ -n $packages ]]; then options+=(--build-context "packages=$(cd "$packages" && pwd)"); fi
  # Where the Dockerfile says that it is.
  if [[ -n $cache ]]; then options+=(--volume "$(cd "$cache" && pwd):/var/cache/ccache"); fi
fi
echo "building $target"
options+=(--timestamp "$epoch" --build-arg SOURCE_DATE_EPOCH="$epoch")
build --target "$target" --tag "localhost/penstock-$target" "${options[@]}" --file deploy/image/Dockerfile .

container="$(run_buildah from --pull-never "localhost/penstock-$target")"
trap 'run_buildah rm "$container" >/dev/null' EXIT
# The names are given when all is there; what an attempt before has left goes.
new="$(dirname "$out")/.$(basename "$out").new"
rm -rf "$new" "$new.json"
cp -a "$(run_buildah mount "$container")" "$new"
run_buildah inspect --type image "localhost/penstock-$target" >"$new.json"
mv "$new.json" "$out.json"
mv -T "$new" "$out"

bytes="$(find "$out" -type f -printf '%s\n' | awk '{sum += $1} END {printf "%.1f", sum / 1e6}')"
echo "$target: $bytes MB in $(find "$out" -type f | wc -l) files, before compression"
cuda="$(find "$out" -regextype posix-extended -type f \
  -regex '.*/lib(cu|nccl|nv|torch_cuda|c10_cuda|penstock_cuda)[^/]*\.so[^/]*' -printf '%f %s bytes\n' | sort | paste -sd, -)"
echo "CUDA libraries in it: ${cuda:-none}"
