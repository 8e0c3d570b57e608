#!/usr/bin/env bash
# Fetches a real tritonserver with its Python backend into DIR (380 MB): PyPI's nvidia-pytriton carries both, and they run
# without a container. Its model runs in the torch that deploy/setup.sh --tests fetches.
set -euo pipefail
dir="$(realpath -m "${1:?usage: setup.sh DIR}")"
python3 -m venv "$dir"
"$dir/bin/pip" install -q nvidia-pytriton==0.7.0
server="$(echo "$dir"/lib/python3.*/site-packages/pytriton/tritonserver)"
# One stub for each version of Python; the backend looks for the right one beside itself.
version="$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
cp "$server/python_backend_stubs/$version/triton_python_backend_stub" "$server/backends/python/"
chmod +x "$server/backends/python/triton_python_backend_stub" "$server/bin/tritonserver"
