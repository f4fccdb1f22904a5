"""Children that parse, and one that was started before there was anything to parse."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from stallwatch.bundle import workers
from stallwatch.bundle.child import OpenFile
from stallwatch.bundle.workers import FileTask, Limits, Task, parse_all, start_ahead
from stallwatch.node.worker import Worker


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """When each child was started."""
    found: list[str] = []
    one = workers._worker

    def counted(limits: Limits, when: str = "now") -> Worker:
        found.append(when)
        return one(limits, when)

    monkeypatch.setattr(workers, "_worker", counted)
    monkeypatch.setattr(workers, "_ahead", [])
    return found


def parsed(path: Path, limits: Limits = workers.DEFAULT_LIMITS) -> list[bytes | str]:
    said: list[bytes | str] = []

    def done(value: msgspec.Raw | None, clause: str) -> None:
        said.append(clause if value is None else bytes(value))

    part = OpenFile("usage", "usage.json", 1)
    parse_all([Task([FileTask(part, 0, lambda: os.open(path, os.O_RDONLY), done)])], limits)
    return said


def test_a_child_that_was_started_ahead_takes_the_next_files_and_no_others(tmp_path: Path, started: list[str]) -> None:
    path = tmp_path / "usage.json"
    path.write_text("[")
    start_ahead()
    (said,) = parsed(path)
    assert "form that stallwatch writes" in str(said)
    assert started == ["ahead"]
    assert workers._ahead == []
    assert parsed(path) == [said]
    assert started == ["ahead", "now"]


def test_one_with_other_limits_is_not_taken(tmp_path: Path, started: list[str]) -> None:
    path = tmp_path / "usage.json"
    path.write_text("[")
    start_ahead()
    parsed(path, Limits(seconds=19.0))
    assert started == ["ahead", "now"]
    ((_, worker),) = workers._ahead
    worker.end()


def test_one_that_has_died_meanwhile_costs_no_file(tmp_path: Path, started: list[str]) -> None:
    path = tmp_path / "usage.json"
    path.write_text("[")
    start_ahead()
    ((_, worker),) = workers._ahead
    assert worker.pid is not None
    os.kill(worker.pid, 9)
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    (said,) = parsed(path)
    assert "form that stallwatch writes" in str(said)


# Nothing but a fork can start a child there; what parsing is told says who did it.
FORKS = """
import json, os, sys, threading
from stallwatch.bundle import workers
from stallwatch.bundle.child import OpenFile
from stallwatch.bundle.workers import FileTask, Limits, Task, parse_all

def other(*arguments, **options):
    raise OSError("another interpreter")

def seen(*arguments, **options):
    started = fork(*arguments, **options)
    parsers.append(started.child.pid)
    return started

workers.start_own, said, parsers, groups = other, [], [], set()
fork, workers.OwnFork = workers.OwnFork, seen

def parsed(paths, limits=workers.DEFAULT_LIMITS):
    said.clear()
    def done(value, clause):
        said.append(clause or "read")
        if not clause:
            groups.add(os.getpgid(parsers[-1]) == os.getpgid(0))
    tasks = [
        Task([FileTask(OpenFile(kind, path, 1), 0, lambda path=path: os.open(path, os.O_RDONLY), done)])
        for path in paths for kind in [os.path.basename(path)]
    ]
    parse_all(tasks, limits, forks=True)
    return list(said)
"""


def printed(program: str, *arguments: str) -> object:
    command = [sys.executable, "-c", FORKS + program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return json.loads(done.stdout)


def test_where_there_is_one_thread_a_copy_of_this_process_parses_and_is_lost_alone(tmp_path: Path) -> None:
    good, starving = tmp_path / "configuration", tmp_path / "recorder"
    good.write_text('{"capture": {"seconds": 2.0}}')
    starving.write_bytes(b"\x80\x02" + b"]" * 3_000_000)
    told = printed(
        """
paths = [sys.argv[1], sys.argv[2], sys.argv[1]]
little = Limits(address_space_bytes=200 << 20)
said_of = [parsed(paths[:1]), parsed(paths, little)]
print(json.dumps([*said_of, list(groups), [pid for pid in parsers if os.path.exists(f"/proc/{pid}")]]))
""",
        str(good),
        str(starving),
    )
    assert isinstance(told, list)
    whole, (before, starved, after), are_of_our_group, remaining = told
    assert whole == [before] == [after] == ["read"]
    assert starved.startswith("reading it takes more memory ")  # how far it came, and whether it could still say so
    assert are_of_our_group == [True]  # who ends us ends them
    assert not remaining


def test_where_there_are_threads_nothing_is_forked(tmp_path: Path) -> None:
    path = tmp_path / "configuration"
    path.write_text("{}")
    told = printed(
        """
threading.Thread(target=threading.Event().wait, daemon=True).start()
try:
    parsed(sys.argv[1:])
except OSError as error:
    print(json.dumps([str(error), parsers]))
""",
        str(path),
    )
    assert told == ["another interpreter", []]
