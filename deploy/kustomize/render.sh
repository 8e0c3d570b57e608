#!/usr/bin/env bash
# Writes what is generated under deploy/kustomize: the monitoring component's copies of rules and dashboard, and
# rendered/, what each overlay comes to. Needs kubectl 1.27 or newer (kustomize 5); tests/deploy compares.
#
# Usage: deploy/kustomize/render.sh [FOLDER]     (FOLDER: where rendered output goes instead; nothing else is written)
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"
kubectl version --client 2>/dev/null | grep -q 'Kustomize Version: v5' || {
  echo "render: kubectl with kustomize 5 is needed" >&2
  exit 77
}
out="${1:-rendered}"

if (($# == 0)); then
  monitoring=components/monitoring
  cp ../grafana/penstock.json "$monitoring/penstock.json"
  {
    printf '%s\n' '# A copy, by render.sh, of the rules in deploy/prometheus.' \
      'apiVersion: monitoring.coreos.com/v1' 'kind: PrometheusRule' 'metadata:' '  name: penstock' 'spec:' '  groups:'
    for file in ../prometheus/rules.yaml ../prometheus/alerts.yaml; do
      grep -v -e '^groups:' -e '^#' "$file" | sed 's/^\(.\)/  \1/'
    done
  } >"$monitoring/prometheusrule.yaml"
fi

mkdir -p "$out"
for overlay in overlays/*/; do
  kubectl kustomize "$overlay" >"$out/$(basename "$overlay").yaml"
done
