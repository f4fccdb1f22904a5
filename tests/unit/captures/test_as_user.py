import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallwatch.captures.as_user import Request, Wanted, read_as_user
from tests.unit.sensors.records import start_ticks_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not below pytest's own, which other users cannot enter."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.fixture
def process(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    log = folder / "log"
    log.write_text("from the job\n")
    log.chmod(0o644)
    with log.open("a") as file:
        process = subprocess.Popen(
            ["/bin/cat"], stdin=-1, stdout=file, stderr=file, user=NOBODY, group=NOBODY, extra_groups=[]
        )
    yield process
    process.communicate(b"")


def test_files_are_read_as_the_ranks_own_user(process: "subprocess.Popen[bytes]", folder: Path) -> None:
    ours, theirs = folder / "ours.py", folder / "theirs.py"
    for path, mode in ((ours, 0o600), (theirs, 0o644)):
        path.write_text("secret = 1\n")
        path.chmod(mode)
    lines = ((str(ours), 1), (str(theirs), 1))
    wanted = Wanted(3, process.pid, start_ticks_of(process.pid), lines)
    (found,) = read_as_user(Request(NOBODY, NOBODY, (), (wanted,)), 20)
    assert found.rank == 3
    assert [line.file for line in found.sources] == [str(theirs)]
    assert found.log == ("from the job",)


def test_process_that_ended_is_said() -> None:
    (found,) = read_as_user(Request(NOBODY, NOBODY, (), (Wanted(3, 2**22 + 1, 5, ()),)), 20)
    assert found.log is None
    assert "has ended" in found.log_problem


def test_service_user_reads_no_more_than_others_may(folder: Path) -> None:
    """With CAP_DAC_READ_SEARCH and no way to become the user, the capability is given up first."""
    load = "from stallwatch.captures.as_user import become; "
    read = f"print(open({str(folder / 'private')!r}).read())"
    (folder / "private").write_text("x")
    (folder / "private").chmod(0o600)
    setpriv = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    setpriv += ["--inh-caps", "+dac_read_search,+dac_override", "--ambient-caps", "+dac_read_search,+dac_override"]
    python = [*setpriv, sys.executable, "-c"]
    before = subprocess.run([*python, load + read], capture_output=True, text=True, check=False)
    if before.returncode != 0:
        pytest.skip(f"setpriv cannot give capabilities here: {before.stderr[-200:]}")
    drop = "become(1234, 1234, ()); "
    after = subprocess.run([*python, load + drop + read], capture_output=True, text=True, check=False)
    assert "PermissionError" in after.stderr
    assert after.stdout == ""
