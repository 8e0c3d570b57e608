#!/usr/bin/env bash
# Makes certificates for trying TLS: a certificate authority, one certificate for the daemon, and one for each client that is
# named. Not for production: the authority's key lies beside the others.
#
#   deploy/dev_certs.sh FOLDER [CLIENT...]        (clients: spiffe://penstock/CLIENT; default: admin)
#
# FOLDER gets ca.crt, server.crt, server.key, and CLIENT.crt, CLIENT.key; what is there stays. More names of the daemon:
# DEV_CERTS_SERVER="DNS:penstock.example.org,IP:192.0.2.1". Days that they are valid: DEV_CERTS_DAYS, 30.
# DEV_CERTS_READERS=all: every user may read ca.crt, server.crt and server.key, for a daemon in a container that runs as another user.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
command -v openssl >/dev/null || { echo "dev_certs: openssl is missing: apt-get install openssl" >&2; exit 1; }
folder="$1"
shift
[ $# -ge 1 ] || set -- admin
days="${DEV_CERTS_DAYS:-30}"
server="DNS:localhost,IP:127.0.0.1,IP:::1${DEV_CERTS_SERVER:+,$DEV_CERTS_SERVER}"
umask 077
mkdir -p "$folder"
cd "$folder"

new_key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1" 2>/dev/null; }

# NAME SAN USE: a certificate that the authority signs.
issue() {
  [ ! -e "$1.crt" ] || return 0
  new_key "$1.key"
  openssl req -new -key "$1.key" -subj "/CN=$1" -out "$1.csr"
  openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days "$days" -out "$1.crt" 2>/dev/null \
    -extfile <(printf 'subjectAltName=%s\nextendedKeyUsage=%s\nbasicConstraints=CA:FALSE\n' "$2" "$3")
  rm "$1.csr"
}

if [ ! -e ca.crt ]; then
  new_key ca.key
  openssl req -x509 -new -key ca.key -subj "/CN=penstock development" -days "$days" -out ca.crt \
    -addext keyUsage=critical,keyCertSign,cRLSign
fi
issue server "$server" serverAuth,clientAuth  # ranks show it to each other
for client in "$@"; do
  [[ "$client" =~ ^[a-z][a-z0-9-]*$ && "$client" != ca && "$client" != server ]] ||
    { echo "dev_certs: a client is called [a-z][a-z0-9-]*, and not ca or server, got $client" >&2; exit 2; }
  issue "$client" "URI:spiffe://penstock/$client" clientAuth
done
if [ "${DEV_CERTS_READERS:-}" = all ]; then
  chmod a+rx .
  chmod a+r ca.crt server.crt server.key
fi
