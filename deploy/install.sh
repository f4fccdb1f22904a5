#!/usr/bin/env bash
# Installs stallwatch on this node, or a newer version over an older one; run it as root, from a checkout of the version that
# you want. Run it as often as you like: configuration, secrets and incidents that are there stay as they are.
#   bash deploy/install.sh               install or upgrade, and start
#   bash deploy/install.sh --rollback    back to the version before the last upgrade
#   bash deploy/install.sh --uninstall   units and program go; /etc/stallwatch and /var/lib/stallwatch stay
#   bash deploy/install.sh --purge       those, too
# Where systemd does not run (the tree of an image, in a chroot) everything is put in place and nothing is started.
# PYTHON names the interpreter of the daemon (3.11 or newer, one that every user may run); STALLWATCH_WHEELS a folder of wheels
# (deploy/wheels.sh), for a node without a network.
case ${1:-} in -h | --help) sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;; esac
set -euo pipefail
umask 022 # what is installed is for every user, whatever root is used to
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
opt=/opt py_spy=/usr/local/bin/py-spy units="stallwatch-privileged.socket stallwatch-privileged.service stallwatch.service"

say() { printf '· %s\n' "$*" >&2; }
fail() { printf 'stallwatch: %s\n' "$*" >&2; exit 64; }
[ "$(id -u)" = 0 ] || fail "run this as root; without root see \"Watch your own job\" in README.md"
runs() { [ -d /run/systemd/system ]; }

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3.13 python3.12 python3.11 python3 /usr/bin/python3; do
    [ -n "$candidate" ] && candidate=$(command -v "$candidate") || continue
    "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
    case $(readlink -f "$candidate") in
      /root/* | /home/*) say "not used, since other users may not run it: $candidate" ;;
      *) echo "$candidate"; return ;;
    esac
  done
  fail "needs Python 3.11 or newer with venv (Debian: apt-get install python3 python3-venv); PYTHON=… names one"
}

# $1: a version's folder below /opt. Units come with their version, so that a rollback brings them back, too.
use() {
  local unit share=$opt/$1/share/stallwatch
  install -D -m 0644 "$share/stallwatch.sysusers" "/usr/lib/sysusers.d/stallwatch.conf"
  install -D -m 0644 "$share/stallwatch.tmpfiles" "/usr/lib/tmpfiles.d/stallwatch.conf"
  systemd-sysusers stallwatch.conf
  systemd-tmpfiles --create stallwatch.conf
  mkdir -p "/etc/systemd/system" "/usr/local/bin"
  for unit in $units; do install -m 0644 "$share/$unit" "/etc/systemd/system/$unit"; done
  ln -sfn "$1" "$opt/stallwatch.new" && mv -T "$opt/stallwatch.new" "$opt/stallwatch"
  ln -sfn /opt/stallwatch/bin/stallwatch "/usr/local/bin/stallwatch"
  # Verdicts say what to run: `py-spy dump --pid …`. A py-spy that the node has stays the one that is run.
  [ -e "$py_spy" ] || ln -sfn /opt/stallwatch/bin/py-spy "$py_spy"
}

start() {
  "$opt/stallwatch/bin/stallwatch" config check /etc/stallwatch/config.toml >&2 ||
    fail "mend /etc/stallwatch/config.toml and run this again, or go back: bash deploy/install.sh --rollback"
  systemctl enable -q $units
  runs || { say "systemd does not run here: nothing is started"; return; }
  systemctl daemon-reload
  # Running jobs go on, and are seen again: their records stay in /run/stallwatch/ranks.
  systemctl restart $units
}

packages() { "$opt/$1/bin/python" -m pip list --format=freeze | sed 's/[=@ ].*//' | sort; }

# $1, $2: the version before, and this one, which gets what the operator added to that: a storage's library for the archive.
bring_along() {
  local brought=$opt/$1/share/stallwatch/packages added
  [ -e "$brought" ] && [ -x "$opt/$1/bin/python" ] || return 0
  added=$(packages "$1" | comm -23 - "$brought" | comm -23 - "$opt/$2/share/stallwatch/packages")
  [ -n "$added" ] || return 0
  local where=() each=()
  mapfile -t each <<< "$added"
  [ -z "${STALLWATCH_WHEELS:-}" ] || where=(--no-index --find-links "$STALLWATCH_WHEELS")
  say "and what was added to the version before:" "${each[@]}"
  "$opt/$2/bin/python" -m pip install -q "${where[@]}" "${each[@]}" ||
    say "not installed; by hand: /opt/stallwatch/bin/pip install" "${each[@]}"
}

install_version() {
  local python version name group before=
  python=$(find_python)
  version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' "$here/../monitor/stallwatch/__init__.py")
  name=stallwatch-$version-$(date +%Y%m%d%H%M%S%3N)
  mkdir -p "$opt"
  if [ -d "$opt/stallwatch" ] && [ ! -L "$opt/stallwatch" ]; then
    fail "/opt/stallwatch is a folder that this script did not make: move it away first"
  fi
  [ ! -L "$opt/stallwatch" ] || before=$(readlink "$opt/stallwatch")
  say "installing stallwatch $version with $("$python" --version) into /opt/$name"
  trap 'rm -rf "${opt:?}/$name"' ERR
  "$python" -m venv "$opt/$name"
  local what=("$here/..[daemon]")
  [ -z "${STALLWATCH_WHEELS:-}" ] || what=(--no-index --find-links "$STALLWATCH_WHEELS" "stallwatch[daemon]==$version")
  export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
  "$opt/$name/bin/python" -m pip install -q "${what[@]}"
  install -D -m 0644 -t "$opt/$name/share/stallwatch" "$here"/systemd/*
  packages "$name" > "$opt/$name/share/stallwatch/packages"
  [ -z "$before" ] || bring_along "$before" "$name"
  use "$name"
  trap - ERR
  group=$(sed -n 's/^stallwatch:[^:]*:\([0-9]*\):.*/\1/p' "/etc/group")
  install -d -m 0750 -g "$group" "/etc/stallwatch"
  [ -e "/etc/stallwatch/config.toml" ] ||
    install -m 0640 -g "$group" "$here/config.example.toml" "/etc/stallwatch/config.toml"
  [ -z "$before" ] || ln -sfn "$before" "$opt/stallwatch.before"
  local old
  for old in "$opt"/stallwatch-[0-9]*-[0-9]*/; do # the one before stays for --rollback
    case ${old%/} in "$opt/$name" | "$opt/$before") ;; *) rm -rf "${old%/}" ;; esac
  done
  start
  if [ -n "$before" ]; then
    say "done; incidents of /var/lib/stallwatch and what is in /etc/stallwatch were not touched"
  else
    say "done; next: stallwatch status, and usermod -aG stallwatch NAME for who may ask it; settings: /etc/stallwatch/config.toml"
  fi
}

rollback() {
  [ -L "$opt/stallwatch.before" ] || fail "there is no version before this one"
  local now before
  now=$(readlink "$opt/stallwatch") before=$(readlink "$opt/stallwatch.before")
  [ -d "$opt/$before" ] || fail "/opt/$before is gone"
  say "from $now back to $before"
  use "$before"
  ln -sfn "$now" "$opt/stallwatch.before"
  start
}

uninstall() {
  if runs && [ -e "/etc/systemd/system/stallwatch.service" ]; then systemctl stop $units || true; fi
  systemctl disable -q $units 2>/dev/null || true
  local unit
  for unit in $units; do rm -f "/etc/systemd/system/$unit"; done
  if runs; then systemctl daemon-reload; fi
  rm -f "/usr/lib/sysusers.d/stallwatch.conf" "/usr/lib/tmpfiles.d/stallwatch.conf" "/usr/local/bin/stallwatch"
  [ "$(readlink "$py_spy")" != /opt/stallwatch/bin/py-spy ] || rm -f "$py_spy"
  rm -f "$opt/stallwatch" "$opt/stallwatch.before"
  rm -rf "$opt"/stallwatch-[0-9]*-[0-9]*/
  if [ "$1" = --purge ]; then
    rm -rf "/etc/stallwatch" "/var/lib/stallwatch" "/run/stallwatch"
    say "gone; left: the users stallwatch and stallwatch-privileged (userdel), and their group where it has members (groupdel)"
  else
    say "gone; left: /etc/stallwatch (configuration, secrets), /var/lib/stallwatch (incidents), the two users"
  fi
}

case ${1:-} in
  "") install_version ;;
  --rollback) rollback ;;
  --uninstall | --purge) uninstall "$1" ;;
  *) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 64 ;;
esac
