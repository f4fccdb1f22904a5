"""The hook under every other Python that this machine has."""

from pathlib import Path

import pytest

import stallwatch
from tests.integration.hook.programs import LAUNCHER, others, records, running, script

ROOT = Path(stallwatch.__file__).parents[1]
SOURCE = """
import os, sys
import stallwatch
beat = stallwatch.attach(auto=True)
assert beat and stallwatch.attach() is beat
for _ in range(70):
    beat.step()
if os.fork() == 0:
    beat.step()
    os._exit(1 if beat else 0)
assert os.wait()[1] == 0
with beat.phase("checkpoint"):
    print("ready")
    sys.stdin.readline()
sys.exit(3)
"""


@pytest.mark.parametrize("interpreter", others() or [pytest.param("", marks=pytest.mark.skip("only one Python here"))])
@pytest.mark.parametrize("watched", [False, True])
def test_another_python_attaches(tmp_path: Path, directory: Path, interpreter: str, watched: bool) -> None:
    _, path = script(tmp_path, SOURCE)
    # From 3.12 on Python counts threads after its parent-side hooks ran, ours among them, and warns.
    command = [interpreter, "-W", "ignore::DeprecationWarning", *(["-m", "stallwatch.run"] if watched else []), path]
    with running(command, directory, variables=LAUNCHER | {"PYTHONPATH": str(ROOT)}) as program:
        assert program.line() == "ready"
        record = program.record(until=lambda record: record.phase == "checkpoint")
        assert (record.rank, record.step, len(record.step_durations_ns)) == (3, 70, 62)
        status, errors = program.end()
    assert (status, errors) == (3, "")
    [record] = records(directory).values()
    assert (record.ended, record.exit_code, record.errors) == (True, 3, 0)
