#!/usr/bin/env bash
# Branch coverage of what decides, by its unit tests: fails where diagnosis, progress or detectors have less than 95 %.
#   .venv/bin/pip install coverage; bash tests/coverage.sh          (a quarter of an hour on two cores)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}
package=monitor/stallwatch
COVERAGE_FILE=$(mktemp -d)/coverage
export COVERAGE_FILE
"$python" -m coverage run --branch --source="$package/diagnosis,$package/progress,$package/detectors" -m pytest \
  tests/unit/{diagnosis,progress,detectors,incidents,replay,fleet,loop}
code=0
for part in diagnosis progress detectors; do
  echo "$part:"
  "$python" -m coverage report --skip-covered --sort=cover --fail-under=95 --include="*/$part/*" || code=1
done
exit $code
