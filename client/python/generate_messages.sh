#!/usr/bin/env bash
# Writes penstock/v1 anew from proto/penstock/v1: Python messages and their types. Run it after a .proto has changed; a
# test compares the result with the .proto files. Another folder for the result may be given.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
protos="$here/../../proto"
into="${1:-$here}"

command -v protoc >/dev/null || { echo "generate_messages: protoc is missing: run deploy/setup.sh" >&2; exit 1; }
mkdir -p "$into/penstock/v1"
rm -f "$into"/penstock/v1/*_pb2.py "$into"/penstock/v1/*_pb2.pyi
(cd "$protos" && protoc --proto_path=. --python_out="$into" --pyi_out="$into" penstock/v1/*.proto)
