#!/usr/bin/env bash
# Sets everything up on a fresh machine and passes the tests. Arguments go to pytest: bash tests/run.sh tests/unit -k hook
case ${1:-} in -h | --help) sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/environment.sh"
need_torch
need_stallwatch daemon,dev
need_debian prometheus=prometheus prometheus-alertmanager=prometheus-alertmanager redis-server=redis-server
need_debian nginx-light=nginx || true # where it cannot be had, the test of deploy/proxy is skipped; so it is of this:
[ -e /usr/lib/apache2/modules/mod_auth_openidc.so ] || need_debian libapache2-mod-auth-openidc=mod_auth_openidc || true
cd "$root"
bin=$venv/bin
if [ $# -eq 0 ]; then
  say "lint"; "$bin/ruff" check . ; "$bin/ruff" format --check --quiet .
  say "types"; "$bin/mypy"
  say "layers"; "$bin/lint-imports" --no-cache >/dev/null || "$bin/lint-imports" --no-cache
  say "Python 3.9 syntax of what runs inside training"
  "$bin/vermin" --quiet --target=3.9- --eval-annotations --no-parse-comments monitor/stallwatch/__init__.py monitor/stallwatch/run.py monitor/stallwatch/cli/__init__.py monitor/stallwatch/hook monitor/stallwatch/selftest/rank.py monitor/stallwatch/selftest/worker
fi
say "tests"
if [ $# -gt 0 ]; then exec "$bin/python" -m pytest "$@"; fi
code=0
"$bin/python" -m pytest --numprocesses 2 --dist loadfile tests/unit || code=$?
# Half of what they do is waiting for jobs, daemons and Prometheus.
"$bin/python" -m pytest --numprocesses 4 --dist loadfile tests/integration tests/e2e || code=$((code | $?))
if [ $code -ne 1 ]; then exit $code; fi
# Live tests run real jobs against real clocks; where others use the machine one may lose its race. What fails twice fails.
say "once more, by themselves, the tests that failed above (each is a defect of the test or of what it tests: mend it)"
exec "$bin/python" -m pytest --last-failed --last-failed-no-failures none
