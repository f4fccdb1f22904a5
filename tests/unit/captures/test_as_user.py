import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from stallwatch.captures.as_user import UserFiles, UserFilesRequest, Wanted, read_as_user
from tests.builders.records import start_ticks_of
from tests.programs.everybody import python_for_everybody

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
    (found,) = read_as_user(UserFilesRequest(NOBODY, NOBODY, (), (wanted,)), 20)
    assert found.rank == 3
    assert [line.file for line in found.sources] == [str(theirs)]
    assert found.log == ("from the job",)


def test_process_that_ended_is_said() -> None:
    (found,) = read_as_user(UserFilesRequest(NOBODY, NOBODY, (), (Wanted(3, 2**22 + 1, 5, ()),)), 20)
    assert found.log is None
    assert "has ended" in found.log_problem


SERVICE = 64201
SERVICE_PROGRAM = """
import sys
import msgspec
from stallwatch.captures.as_user import UserFilesRequest, read_as_user
request = msgspec.json.decode(sys.stdin.buffer.read(), type=UserFilesRequest)
sys.stdout.buffer.write(msgspec.json.encode(read_as_user(request, 20)))
"""


def found_by_service(request: UserFilesRequest, *capabilities: str) -> UserFiles:
    """What a service user of its own, with these capabilities and no way to become anybody, finds."""
    python = python_for_everybody() or pytest.skip("no Python here that another user may run")
    given = ",".join(f"+{name}" for name in capabilities)
    setpriv = ["setpriv", "--reuid", str(SERVICE), "--regid", str(SERVICE), "--clear-groups"]
    setpriv += ["--inh-caps", given, "--ambient-caps", given]
    run = [*setpriv, *python.command, "-c", SERVICE_PROGRAM]
    done = subprocess.run(
        run, input=msgspec.json.encode(request), capture_output=True, check=False, env=python.environment
    )
    if done.returncode != 0:
        pytest.fail(done.stderr.decode()[-2000:])
    (found,) = msgspec.json.decode(done.stdout, type=tuple[UserFiles, ...])
    return found


def test_service_that_may_read_all_passes_on_what_the_ranks_user_could_read(
    process: "subprocess.Popen[bytes]", folder: Path
) -> None:
    home = folder / "home"
    home.mkdir(mode=0o700)
    theirs, others, closed = home / "train.py", folder / "others.py", home / "closed" / "key.py"
    closed.parent.mkdir(mode=0o755)
    for path in (theirs, others, closed):
        path.write_text("here = 1\n")
        path.chmod(0o600)
    for path in (home, theirs, closed):
        os.chown(path, NOBODY, NOBODY)
    closed.parent.chmod(0o700)  # root's: the file in it is theirs, and they cannot reach it
    (home / "link.py").symlink_to(others)
    lines = tuple((str(path), 1) for path in (theirs, others, closed, home / "link.py"))
    request = UserFilesRequest(NOBODY, NOBODY, (), (Wanted(3, process.pid, start_ticks_of(process.pid), lines),))
    found = found_by_service(request, "dac_read_search", "sys_ptrace")
    assert [line.file for line in found.sources] == [str(theirs)]
    assert found.log == ("from the job",)


def test_log_that_the_ranks_user_may_only_write_is_not_read(process: "subprocess.Popen[bytes]", folder: Path) -> None:
    (folder / "log").chmod(0o622)
    request = UserFilesRequest(NOBODY, NOBODY, (), (Wanted(3, process.pid, start_ticks_of(process.pid), ()),))
    found = found_by_service(request, "dac_read_search", "sys_ptrace")
    assert found.log is None
    assert "not readable" in found.log_problem


def test_service_without_the_capability_reads_what_everybody_may(
    process: "subprocess.Popen[bytes]", folder: Path
) -> None:
    (folder / "closed.py").write_text("a = 1\n")
    (folder / "closed.py").chmod(0o600)
    (folder / "open.py").write_text("a = 1\n")
    (folder / "open.py").chmod(0o644)
    lines = ((str(folder / "closed.py"), 1), (str(folder / "open.py"), 1))
    request = UserFilesRequest(NOBODY, NOBODY, (), (Wanted(3, process.pid, start_ticks_of(process.pid), lines),))
    assert [line.file for line in found_by_service(request, "sys_ptrace").sources] == [str(folder / "open.py")]
