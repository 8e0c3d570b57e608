#!/usr/bin/env bash
# Runs the tritonserver of DIR in the foreground, with the model mlp: T_LAYERS of T_WIDTH; ports T_HTTP, T_GRPC, T_METRICS.
set -euo pipefail
dir="$(realpath "${1:?usage: start.sh DIR}")"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
server="$(echo "$dir"/lib/python3.*/site-packages/pytriton/tritonserver)"
# Where the model finds a numpy that goes with the backend, and torch.
T_NUMPY="$(echo "$dir"/lib/python3.*/site-packages)"
T_TORCH="$(echo "$here"/../../../build/deps/torch-venv/lib/python3.*/site-packages)"
LD_LIBRARY_PATH="$(python3 -c 'import sysconfig; print(sysconfig.get_config_var("LIBDIR"))'):${LD_LIBRARY_PATH:-}"
export T_NUMPY T_TORCH LD_LIBRARY_PATH
exec "$server/bin/tritonserver" --model-repository="$here/repository" --backend-directory="$server/backends" \
  --http-port="$T_HTTP" --grpc-port="$T_GRPC" --metrics-port="$T_METRICS" --log-verbose=0 --log-info=false
