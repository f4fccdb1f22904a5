#!/usr/bin/env bash
# Sourced by the two commands of the README: makes .venv with stallwatch, and what the caller asks for beside it.
#   need_torch               a CPU build of torch in it, unless the environment already has any
#   need_stallwatch EXTRAS   stallwatch[EXTRAS] in it, installed again only when pyproject.toml changed
#   need_debian PACKAGE…     Debian packages, when their commands are missing and we may install
# Of the minute that the first run takes most is processor time of pip: for the demo 42 s of it, at the same load 27 s as
# it is here, where no pip is unpacked first and of torch's 2,600 modules those are compiled that a job imports.
[ "${BASH_SOURCE[0]}" != "$0" ] || case ${1:-} in -h | --help) sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;; esac
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${STALLWATCH_VENV:-$root/.venv}
pip=() # the command, set by need_python
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
unset PYTHONDONTWRITEBYTECODE # some images set it: every process would then compile all that it imports

say() { printf '\033[2m· %s\033[0m\n' "$*" >&2; }

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3.13 python3.12 python3.11 python3; do
    [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 || continue
    "$candidate" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$candidate"; return; }
  done
  echo "stallwatch needs Python 3.11 or newer with venv (Debian: apt-get install python3 python3-venv)" >&2
  exit 64
}

need_python() {
  [ ${#pip[@]} -eq 0 ] || return 0
  local python
  python=$(find_python)
  if [ ! -x "$venv/bin/python" ]; then
    say "making $venv with $("$python" --version)"
    "$python" -m venv --without-pip "$venv"
  fi
  pip=("$venv/bin/python" -m pip)
  "$venv/bin/python" -c 'import pip' 2>/dev/null && return
  # Unpacking pip by ensurepip takes 4 s of a core; since 22.3 an interpreter's own installs elsewhere.
  if "$python" -c 'import pip, sys; sys.exit([int(n) for n in pip.__version__.split(".")[:2]] < [22, 3])' 2>/dev/null; then
    pip=("$python" -m pip --python "$venv/bin/python")
  else
    "$python" -m venv "$venv"
  fi
}

need_stallwatch() {
  need_python
  local stamp="$venv/.stallwatch-$1"
  if [ ! -f "$stamp" ] || ! cmp -s "$stamp" "$root/pyproject.toml"; then
    say "installing stallwatch[$1]"
    "${pip[@]}" install -qq --no-compile --editable "${root}[$1]"
    cp "$root/pyproject.toml" "$stamp"
  fi
}

need_torch() {
  need_python
  "$venv/bin/python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' && return
  local index=()
  # PyPI's build brings CUDA, gigabytes that a machine without a GPU has no use for.
  say "installing torch (CPU is enough here)"
  if has_torch ${PIP_FIND_LINKS:-}; then
    : # a CPU build that is at hand is preferred
  elif [ ! -e /dev/nvidiactl ] && reachable "$cpu_builds"; then
    index=(--extra-index-url "$cpu_builds")
  elif [ ! -e /dev/nvidiactl ]; then
    say "without $cpu_builds, which is not reached from here, the build with CUDA may come: gigabytes (PIP_FIND_LINKS names a folder with another)"
  fi
  "${pip[@]}" install -qq --no-compile "${index[@]}" "${STALLWATCH_TORCH:-torch==2.13.0}" numpy pip
  # Once, and beside what follows: four ranks that start at a time would each compile what a job imports.
  "$venv/bin/python" -c 'import torch.distributed.run, torch._dynamo' >/dev/null 2>&1 &
}

# Of folders, as PIP_FIND_LINKS names them: whether one holds a CPU build of torch.
has_torch() {
  local folder
  for folder in "$@"; do compgen -G "${folder#file://}/torch-*+cpu*.whl" >/dev/null && return; done
  return 1
}

cpu_builds=https://download.pytorch.org/whl/cpu

reachable() {
  "$venv/bin/python" -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1] + "/torch/", timeout=5)' "$1" 2>/dev/null
}

need_debian() {
  local missing=() pair
  for pair in "$@"; do command -v "${pair#*=}" >/dev/null 2>&1 || missing+=("${pair%%=*}"); done
  [ ${#missing[@]} -eq 0 ] && return
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    say "missing: ${missing[*]} (install them with your package manager; tests that need them are skipped)"
    return
  fi
  say "installing ${missing[*]}"
  # policy-rc.d: a test machine wants the programs, not services that start by themselves.
  printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d.stallwatch && chmod +x /usr/sbin/policy-rc.d.stallwatch
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -qq -y --no-install-recommends "${missing[@]}"; } >/dev/null
  rm -f /usr/sbin/policy-rc.d.stallwatch
}
