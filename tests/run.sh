#!/usr/bin/env bash
# Sets everything up on a fresh machine and passes the tests. Arguments go to pytest: bash tests/run.sh tests/unit -k hook
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/environment.sh"
need_python daemon,dev
need_torch
need_debian prometheus=prometheus prometheus-alertmanager=prometheus-alertmanager
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
exec "$bin/python" -m pytest "$@"
