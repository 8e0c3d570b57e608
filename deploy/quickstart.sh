#!/usr/bin/env bash
# From nothing to a trained model: sets up, builds, starts a daemon with two CPU devices (with --ranks 2 two daemons with
# one each), trains a byte-level GPT on text through it, lets it continue a prompt, says where the time went, and stops
# the daemon.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: deploy/quickstart.sh [--text FILE] [--steps N] [--ranks N] [--keep] [--json FILE]

  --text FILE   train on this file (default: the licence texts that Debian installs everywhere)
  --steps N     training steps (default: 300)
  --ranks N     1 or 2 processes that hold the model together (default: 1); 2 show what several hosts do
  --keep        leave the daemon running, with the trained model in it; it takes models of your own
  --json FILE   write steps, losses, speed, bubble and the time of each stage as one JSON document
TEXT
}
refuse() { echo "quickstart: $*" >&2; usage >&2; exit 2; }
say() { printf '\n== %s\n' "$*"; }
fail() { echo "quickstart: $*" >&2; exit 1; }

text="" steps=300 ranks=1 keep=false json=""
while (($#)); do
  option="$1" value=""
  case "$option" in
    --*=*) value="${option#*=}" option="${option%%=*}" ;;
    --text | --steps | --ranks | --json) (($# > 1)) || refuse "$option needs a value"; value="$2"; shift ;;
  esac
  shift
  case "$option" in
    --text) text="$value" ;;
    --steps) steps="$value" ;;
    --ranks) ranks="$value" ;;
    --json) json="$value" ;;
    --keep) [[ -z $value ]] || refuse "--keep takes no value, got '$value'"; keep=true ;;
    -h | --help) usage; exit 0 ;;
    *) refuse "unknown option '$option'" ;;
  esac
  case "$option" in --text | --json) [[ -n $value ]] || refuse "$option needs a value" ;; esac
done
[[ $steps =~ ^[1-9][0-9]{0,6}$ ]] || refuse "--steps must be a number from 1 to 9999999, got '$steps'"
[[ $ranks =~ ^[12]$ ]] || refuse "--ranks must be 1 or 2, got '$ranks'"
if [[ -n $text ]]; then
  [[ -f $text && -r $text ]] || refuse "--text must be a file that can be read, got '$text'"
  text="$(realpath "$text")"
fi
if [[ -n $json ]]; then
  json="$(realpath --canonicalize-missing "$json")"
  [[ -d $(dirname "$json") && -w $(dirname "$json") && ! -d $json ]] ||
    refuse "--json must be a file in a folder that can be written to, got '$json'"
fi

cd "$(dirname "${BASH_SOURCE[0]}")/.."
say "Set-up"
deploy/setup.sh

say "Build (the first time takes some minutes)"
deploy/build.sh release penstockd penstock
penstockd="$PWD/build/release/server/penstockd"
penstock="$PWD/build/release/client/cli/penstock"

# --- the daemon ---------------------------------------------------------------------------------------------------------

mkdir -p build/quickstart
folder="$(mktemp -d "$PWD/build/quickstart/run.XXXXXX")"
log="$folder/penstockd.log"
rank_log="$folder/rank1.log"
daemon="" rank=""

# Stops a process as an operator would, and says so if it does not end well.
stop() {
  local id="$1" name="$2" code=0
  kill -TERM "$id" 2>/dev/null || true
  for ((i = 0; i < 600; ++i)); do
    kill -0 "$id" 2>/dev/null || break
    sleep 0.1
  done
  kill -KILL "$id" 2>/dev/null || true  # only one that did not end within a minute is still there
  wait "$id" || code=$?
  ((code == 0)) || { echo "quickstart: $name ended with code $code" >&2; return 1; }
}
# The daemon that leads ends first: it saves its pipelines, for which it needs the other.
stop_daemon() {
  local first="$daemon" second="$rank" code=0
  daemon="" rank=""
  [[ -z $first ]] || stop "$first" "the daemon" || code=1
  [[ -z $second ]] || stop "$second" "rank 1" || code=1
  return "$code"
}
finish() {
  local code=$?
  trap - EXIT INT TERM HUP
  stop_daemon || code=1
  if ((code != 0)) && [[ -s $log ]]; then
    echo "quickstart: stopped; the daemon's last lines (all of them: $log):" >&2
    tail -n 15 "$log" >&2
    if [[ -s $rank_log ]]; then
      echo "quickstart: and those of rank 1 (all of them: $rank_log):" >&2
      tail -n 15 "$rank_log" >&2
    fi
  elif ! $keep; then
    rm -rf "$folder"
  fi
  exit "$code"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# The first free ports from 8470 on (8473 is the usual one for metrics, 8474 for the status pages, 8475 for ranks).
read -r port metrics_port admin_port leader_port rank_port < <(/usr/bin/python3 - <<'PYTHON'
import socket

def free(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True

ports = [p for p in range(8470, 9470) if free(p)]
others = [p for p in ports[1:] if p >= 8473][:4]
if len(others) == 4:
    print(ports[0], *others)
PYTHON
) || fail "no free port from 8470 to 9469 on 127.0.0.1."
address="127.0.0.1:$port"
metrics="127.0.0.1:$metrics_port"
admin="127.0.0.1:$admin_port"
client() { "$penstock" --server "$address" "$@"; }

devices=(--device cpu:0 --device cpu:1)
if ((ranks == 2)); then
  # One device each, with half of the cores.
  read -r cores rank_cores < <(/usr/bin/python3 - <<'PYTHON'
import os

cores = [str(core) for core in sorted(os.sched_getaffinity(0))]
half = max(1, len(cores) // 2)
print(",".join(cores[:half]), ",".join(cores[half:] or cores))
PYTHON
  )
  group=(--world-size 2 --leader "127.0.0.1:$leader_port")
  devices=(--rank 0 "${group[@]}" --device "cpu:0=$cores")
  say "Start penstockd twice: rank 0 on $address with the device cpu:0, rank 1 with 1/cpu:0"
else
  say "Start penstockd on $address with the devices cpu:0 and cpu:1"
fi
# A session of its own: Ctrl-C reaches the client first, and with --keep the daemon outlives the terminal.
setsid "$penstockd" --listen "$address" --metrics-listen "$metrics" --admin-listen "$admin" \
  --state-dir "$folder/state" --model-root "$folder/models" --allow-model-upload "${devices[@]}" >"$log" 2>&1 </dev/null &
daemon=$!
if ((ranks == 2)); then
  setsid "$penstockd" --rank 1 "${group[@]}" --device "cpu:0=$rank_cores" --metrics-listen "127.0.0.1:$rank_port" \
    --model-root "$folder/models" >"$rank_log" 2>&1 </dev/null &
  rank=$!
fi
client health --wait 60 &
waiter=$!
ended=""
wait -n -p ended "$daemon" ${rank:+"$rank"} "$waiter" || {
  if [[ $ended == "$daemon" ]]; then daemon=""; fi
  if [[ $ended == "$rank" ]]; then rank=""; fi
  kill "$waiter" 2>/dev/null || true
  fail "the daemon did not become ready."
}

# --- the model ----------------------------------------------------------------------------------------------------------

prompt="This License "
if [[ -z $text ]]; then
  text="$folder/licences.txt"
  # Regular files only: the links name the same texts again.
  find /usr/share/common-licenses -maxdepth 1 -type f | sort | xargs -r cat >"$text"
else
  prompt="$(head -c 400 "$text" | tr -s '\n\t' ' ' | tr -cd '[:print:]' | head -c 24)"
fi

say "Create the pipeline gpt: 8 blocks of width 256, cut into two stages by measured time"
client pipeline create gpt --model gpt --option blocks=8 --option width=256 --option heads=4 --option sequence=128 \
  --stages 2 --schedule 1f1b --micro-batches 8 --checkpoint never --optimizer adamw --learning-rate 1e-3

say "Train it for $steps steps on $(basename "$text") ($(stat -c %s "$text") bytes)"
train=(train gpt --text "$text" --steps "$steps" --batch 32)
if [[ -n $json ]]; then train+=(--json "$json"); fi
client "${train[@]}" >"$folder/report.txt"  # progress goes to stderr

say "Continue a prompt"
client infer gpt --prompt "$prompt" --bytes 120 --temperature 0.7

say "Report"
cat "$folder/report.txt"
if ((ranks == 2)); then
  # A rank keeps the time of its own lanes; the report knows those of the daemon that serves.
  /usr/bin/python3 - "127.0.0.1:$rank_port" <<'PYTHON'
import re
import sys
import urllib.request

with urllib.request.urlopen(f"http://{sys.argv[1]}/metrics", timeout=10) as page:
    text = page.read().decode()
print("\nRank 1 by its own clock, from http://" + sys.argv[1] + "/metrics")
for lane, device, state, seconds in re.findall(
    r'^penstock_stage_time_seconds_total{[^}]*lane="(\d+)",device="(1/[^"]*)",state="(\w+)"} (\S+)', text, re.M
):
    if float(seconds) >= 0.005:
        print(f"{state:<15}{float(seconds):>12.2f}  lane {lane} {device}")
PYTHON
fi
if [[ -n $json ]]; then echo "JSON       $json"; fi

if $keep; then
  say "The daemon goes on (process $daemon, log $log)"
  if [[ -n $rank ]]; then echo "Rank 1:   process $rank, log $rank_log"; fi
  echo "Ask it:   $penstock --server $address status"
  echo "See it:   http://$admin/"
  if [[ -n $rank ]]; then
    echo "Stop it:  kill $daemon, and when that has ended: kill $rank"
  else
    echo "Stop it:  kill $daemon"
  fi
  disown "$daemon" ${rank:+"$rank"}
  daemon="" rank=""
else
  say "Stop the daemon"
  stop_daemon
  echo "stopped cleanly"
fi
