#!/usr/bin/env bash
# Installs what Penstock is built from: Debian's packages, and LibTorch's CPU part and the headers of CUDA in an environment
# of its own.
#
# Safe to run twice, also at the same time: what is there is left alone, and an interrupted step is done again.
# Asks for nothing. Ends with one sentence and a non-zero exit code where it can't go on.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: deploy/setup.sh [--tests] [--help]

Installs what the build needs (about 4 GB at the peak, with the build itself):
  Debian packages   compilers and libraries, by apt-get, only if one is missing (as root or through sudo)
  build/deps/venv   LibTorch's CPU part and the headers of CUDA, by pip
With --tests also the checks' tools, build/deps/test-venv, the Python packages of the tests, and build/deps/torch-venv, the
same with PyTorch and collections of models.
TEXT
}

with_tests=false
for argument in "$@"; do
  case "$argument" in
    --tests) with_tests=true ;;
    -h | --help) usage; exit 0 ;;
    *) echo "setup: unknown option '$argument'" >&2; usage >&2; exit 2 ;;
  esac
done

readonly root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
readonly deps="$root/build/deps"
readonly log="$deps/setup.log"

say() { echo "setup: $*"; }
fail() { echo "setup: $*" >&2; exit 1; }

packages=(
  g++ cmake ninja-build ccache mold patchelf pkg-config python3 python3-venv ca-certificates
  libgrpc++-dev protobuf-compiler-grpc libprotobuf-dev protobuf-compiler libabsl-dev
  prometheus-cpp-dev libcivetweb-dev libcli11-dev nlohmann-json3-dev libisal-dev libssl-dev libsqlite3-dev libjemalloc-dev libucx-dev
  libgtest-dev libgmock-dev libbenchmark-dev)
if $with_tests; then
  packages+=(clang-14 clang-format-14 clang-tidy-14 libclang-rt-14-dev llvm-14)  # llvm-14 names the lines of sanitizers
  # Images without an engine, systems for the packages, hosts of their own, completion: 60 MB.
  packages+=(buildah bubblewrap fish iproute2 mmdebstrap zsh)
fi
# The last two are for the CUDA module, which is compiled and linked without a toolkit, a driver or a GPU.
readonly wheels=(torch==2.11.0 nvidia-cuda-cupti==13.0.85 nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88)

# --- what stops us before anything is changed ---------------------------------------------------------------------------

command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
  fail "this is no Debian system (no dpkg-query and apt-get): Penstock's set-up needs Debian 12 or its like."
mkdir -p "$deps" 2>/dev/null && [[ -w $deps ]] ||
  fail "can't write to $deps: run as the owner of this folder, or give it to $(id -un)."

exec 9>"$deps/.lock"
if ! flock --nonblock 9; then
  say "another set-up is at work in this folder; waiting for it"
  flock 9
fi

missing=()
installed="$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null || true)"
for package in "${packages[@]}"; do
  grep -qx -- "installed $package" <<<"$installed" || missing+=("$package")
done

# An environment is done when its stamp tells the same contents as we want; the stamp is written last.
runtime_contents="${wheels[*]}"
tests_contents="" torch_contents=""
if $with_tests; then  # an image is built without the tests, and has not their files
  tests_contents="$(cat "$root/tests/requirements.txt")"
  torch_contents="$runtime_contents $tests_contents \
$(cat "$root/tests/requirements_torch.txt" "$root/deploy/cuda_stand_ins.sh")"
fi
is_done() { [[ -x $deps/$1/bin/python && -f $deps/$1/.done && "$(<"$deps/$1/.done")" == "$2" ]]; }
runtime_done=true; tests_done=true; torch_done=true; promtool_done=true
is_done venv "$runtime_contents" || runtime_done=false
if $with_tests; then
  is_done test-venv "$tests_contents" || tests_done=false
  is_done torch-venv "$torch_contents" || torch_done=false
  for program in promtool prometheus amtool; do
    command -v "$program" >/dev/null || [[ -x $deps/bin/$program ]] || promtool_done=false
  done
fi

as_root=()
if ((${#missing[@]})) && ((EUID != 0)); then
  command -v sudo >/dev/null && sudo --non-interactive true 2>/dev/null ||
    fail "installing Debian packages needs root, and $(id -un) has no sudo without a password:" \
      "run 'apt-get install --no-install-recommends ${missing[*]}' as root (or 'sudo -v' first), then this again."
  as_root=(sudo --non-interactive)
fi

# Megabytes that a step needs at its peak, checked where it writes.
need_space() {
  local folder=$1 megabytes=$2 free
  free=$(($(df --output=avail -k "$folder" | tail -n 1) / 1024))
  ((free >= megabytes)) ||
    fail "too little disk for $folder: $megabytes MB are needed there and $free MB are free."
}
if ((${#missing[@]})); then need_space /usr 1500; fi
# The wheels need 2 GB while they are unpacked, the tests' packages 400 MB each, a first build 1 GB.
space=0
$runtime_done || space=$((space + 2000))
$tests_done || space=$((space + 400))
$torch_done || space=$((space + 400))
$promtool_done || space=$((space + 400))
[[ -e $root/build/release/build.ninja ]] || space=$((space + 1000))
if ((space)); then need_space "$deps" "$space"; fi

# --- Debian packages ----------------------------------------------------------------------------------------------------

# The first complaint of apt-get or pip, for the one sentence that a failure gets.
complaint() { grep -m 1 -E '^(E|ERROR):' "$log" || echo "nothing"; }

apt_options=(-y -q -o DPkg::Lock::Timeout=600 -o Acquire::Retries=2 -o Acquire::http::Timeout=30)
update_lists() {
  say "reading Debian's package lists"
  # One dead source among several is no reason to stop: installing tells whether something is really missing.
  ${as_root[@]+"${as_root[@]}"} apt-get "${apt_options[@]}" update >"$log" 2>&1 9>&- || true
}

if ((${#missing[@]})); then
  update_lists
  say "installing ${#missing[@]} Debian packages: ${missing[*]}"
  ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get "${apt_options[@]}" install \
    --no-install-recommends "${missing[@]}" >>"$log" 2>&1 9>&- </dev/null ||
    fail "Debian's packages can't be installed, is a package source reachable? apt-get says:" \
      "$(complaint) (all of it: $log)"
fi

# --- LibTorch and the tests' Python packages ----------------------------------------------------------------------------

# install_environment NAME PIP-ARGUMENTS... builds the environment anew, without its stamp, which comes last.
install_environment() {
  local name=$1
  shift
  rm -rf "${deps:?}/$name" "$deps/tmp"
  mkdir -p "$deps/tmp"
  /usr/bin/python3 -m venv "$deps/$name" >"$log" 2>&1 9>&- ||
    fail "no Python environment can be made in $deps/$name: $(tail -n 1 "$log") (all of it: $log)"
  # Wheels are unpacked beside the environment: a small /tmp would not hold them.
  TMPDIR="$deps/tmp" "$deps/$name/bin/python" -m pip install --disable-pip-version-check --no-input --no-cache-dir \
    --retries 2 --no-deps --only-binary :all: "$@" >>"$log" 2>&1 9>&- </dev/null ||
    fail "Python packages can't be installed, is a package index reachable? pip says: $(complaint) (all of it: $log)"
  rm -rf "$deps/tmp"
}
stamp() { printf '%s\n' "$2" >"$deps/$1/.done"; }

if ! $runtime_done; then
  say "installing LibTorch's CPU part into build/deps/venv (600 MB to fetch, 1.3 GB on disk): ${wheels[*]}"
  install_environment venv "${wheels[@]}"
  stamp venv "$runtime_contents"
fi
if ! $tests_done; then
  say "installing the tests' Python packages into build/deps/test-venv"
  install_environment test-venv -r "$root/tests/requirements.txt"
  stamp test-venv "$tests_contents"
fi
if ! $torch_done; then
  say "installing PyTorch's Python packages and collections of models into build/deps/torch-venv (45 MB to fetch)"
  install_environment torch-venv -r "$root/tests/requirements_torch.txt"
  # The tests' packages and torch itself are those of the other two environments.
  packages_of() { echo "$deps/$1"/lib/python3*/site-packages; }
  printf '%s\n' "$(packages_of test-venv)" "$(packages_of venv)" >"$(packages_of torch-venv)/penstock_environments.pth"
  "$root/deploy/cuda_stand_ins.sh" "$deps/torch-venv" "$(packages_of venv)/torch" >>"$log" 2>&1 ||
    fail "stand-ins for CUDA's libraries can't be made: $(tail -n 1 "$log") (all of it: $log)"
  stamp torch-venv "$torch_contents"
fi

# --- promtool, amtool -----------------------------------------------------------------------------------------------------

# Debian's packages would enable and start servers, so only their programs are taken out.
if ! $promtool_done; then
  say "fetching promtool, prometheus and amtool into build/deps/bin (nothing is started)"
  rm -rf "$deps/tmp"
  mkdir -p "$deps/tmp/out" "$deps/bin"
  fetch_prometheus() { (cd "$deps/tmp" && apt-get "${apt_options[@]}" download prometheus prometheus-alertmanager \
    >>"$log" 2>&1 9>&-); }
  if ! fetch_prometheus; then
    if ((EUID != 0)) && command -v sudo >/dev/null; then as_root=(sudo --non-interactive); fi
    update_lists
    fetch_prometheus ||
      fail "Debian's packages prometheus and prometheus-alertmanager can't be fetched, is a package source reachable? apt-get says:" \
        "$(complaint) (all of it: $log)"
  fi
  for package in "$deps"/tmp/*.deb; do dpkg-deb --extract "$package" "$deps/tmp/out"; done
  mv "$deps"/tmp/out/usr/bin/{prometheus,promtool,amtool} "$deps/bin/"
  rm -rf "$deps/tmp"
fi

say "everything is there"
