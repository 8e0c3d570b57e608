#!/usr/bin/env bash
# Runs a command as root of a network and of mounts of its own, in which it may make more networks; nobody's privileges are
# needed. Exits with 77 (skipped) where this machine does not let it.
set -euo pipefail

if [[ ${1:-} != --inside ]]; then
  for program in ip unshare; do
    command -v "$program" >/dev/null || { echo "skipped: $program is missing; deploy/setup.sh --tests installs it"; exit 77; }
  done
  inside=(unshare --user --map-root-user --net --mount "${BASH_SOURCE[0]}" --inside)
  # All that the tests make of it: hosts with a network and a /sys of their own at a bridge.
  trial='ip netns add a && ip netns exec a true && ip link add bridge0 type bridge && ip link add port0 master bridge0 type veth peer name eth0 netns a'
  why="$("${inside[@]}" sh -c "$trial" 2>&1)" || { echo "skipped: no network namespaces can be made here: $why"; exit 77; }
  exec "${inside[@]}" "$@"
fi

shift
mount -t tmpfs tmpfs /run  # `ip netns` keeps its names there
ip link set lo up
export PENSTOCK_OWN_NETWORK=1
exec "$@"
