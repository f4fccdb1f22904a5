#!/usr/bin/env bash
# Puts stallwatch and all that the daemon needs into a folder of wheels, for nodes without a network. Run it where there is one,
# with the Python version and the architecture of the nodes, from a checkout of the version that you want:
#   bash deploy/wheels.sh FOLDER
#   STALLWATCH_WHEELS=FOLDER bash deploy/install.sh          on each node, as root
#   pip install --no-index --find-links FOLDER stallwatch    the hook alone, in a training environment
case ${1:-} in -h | --help) sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;; esac
set -euo pipefail
usage() { sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 64; }
[ $# -eq 1 ] || usage
case $1 in -*) usage ;; esac
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$1"
# redis asks for async-timeout before Python 3.11.3, which nodes may have (Debian 12) and this machine not.
"${PYTHON:-python3}" -m pip wheel --disable-pip-version-check --wheel-dir "$1" "$here/..[daemon,archive]" async-timeout
( cd "$1" && sha256sum -- *.whl >SHA256SUMS )
printf '%s wheels in %s; SHA256SUMS beside them\n' "$(find "$1" -name '*.whl' | wc -l)" "$1"
