import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from stallwatch.node import run_once as module
from stallwatch.node.run_once import RunOnce, run_once

ECHO = "import sys; data = sys.stdin.buffer.read(); sys.stdout.buffer.write(data[::-1])"
HANGS = "import time; time.sleep(600)"


def python(program: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-c", program, *arguments)


def test_the_answer_comes_with_the_exit_code_and_the_last_words() -> None:
    ended = run_once(python(f"{ECHO}; sys.stderr.write('first\\nlast\\n'); sys.exit(3)"), 30, b"abc")
    assert ended is not None
    assert (ended.code, ended.output, ended.last_words) == (3, b"cba", "last")


def test_a_child_that_says_much_does_not_wait_for_who_polls() -> None:
    run = RunOnce(python("import sys; sys.stdout.write('x' * (8 << 20)); sys.stderr.write('y' * (1 << 20))"))
    run.wait(30)
    ended = run.poll()
    assert ended is not None
    assert (len(ended.output), len(ended.errors)) == (8 << 20, 1 << 20)
    assert run.poll() == ended


def test_of_an_answer_without_end_the_beginning_is_read() -> None:
    run = RunOnce(python("import sys; sys.stdout.write('x' * 1000)"), limit_bytes=10)
    ended = run.finish(30)
    assert ended is not None
    assert ended.output == b"x" * 10


@pytest.mark.parametrize("stream", ["1", "2"])
def test_one_that_says_without_end_is_ended_by_what_it_says_and_not_by_its_deadline(stream: str) -> None:
    run = RunOnce(("sh", "-c", f"exec yes >&{stream}"), limit_bytes=1 << 20)
    ended = run.finish(3600)
    assert ended is not None
    assert ended.said_too_much
    assert len(ended.output) + len(ended.errors) == 1 << 20


def test_a_request_may_come_later() -> None:
    run = RunOnce(python(ECHO), None)
    assert run.poll() is None
    run.give(b"abc")
    ended = run.finish(30)
    assert ended is not None
    assert ended.output == b"cba"


def test_one_that_ended_before_its_request_came_is_said() -> None:
    run = RunOnce(python("import sys; sys.exit('no room')"), None)
    run.wait(30)
    run.give(b"abc")
    ended = run.poll()
    assert ended is not None
    assert (ended.code, ended.last_words) == (1, "no room")


def test_one_past_its_deadline_is_ended_with_what_it_started(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    program = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(path)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    run = RunOnce(python(program))
    deadline = time.monotonic() + 30
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert run.finish(0.0) is None
    grandchild = int(path.read_text())
    while Path(f"/proc/{grandchild}").exists() and "Z" not in Path(f"/proc/{grandchild}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_that_leads_no_group_is_in_ours_and_ended_alone() -> None:
    run = RunOnce(python(HANGS), leads_group=False)
    assert os.getpgid(run.pid) == os.getpgid(0)
    run.end()
    ended = run.poll()
    assert ended is not None
    assert ended.code == -signal.SIGKILL


def test_it_can_be_ended_from_another_thread_while_one_waits() -> None:
    run = RunOnce(python(HANGS))
    threading.Thread(target=run.kill).start()
    ended = run.finish(30)
    assert ended is not None
    assert ended.code == -signal.SIGKILL


def test_its_memory_can_be_bounded() -> None:
    run = RunOnce(python("import sys; sys.stdin.read(); bytearray(1 << 30)"), None, memory_bytes=512 << 20)
    run.give(b"")
    ended = run.finish(30)
    assert ended is not None
    assert ended.last_words == "MemoryError"


def test_what_cannot_be_started_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        RunOnce(("/nonexistent/program",))


def test_one_that_dies_by_a_signal_says_which() -> None:
    ended = run_once(python("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"), 30)
    assert ended is not None
    assert ended.code == -signal.SIGSEGV
    assert ended.last_words == ""


def test_last_words_may_be_any_bytes() -> None:
    ended = run_once(python("import sys; sys.stderr.buffer.write(b'caf\\xe9 \\xff\\n'); sys.exit(2)"), 30)
    assert ended is not None
    assert ended.last_words == "caf\N{REPLACEMENT CHARACTER} \N{REPLACEMENT CHARACTER}"


def test_one_that_cannot_be_killed_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the kernel's hands (D): the signal is sent and nothing comes of it."""
    monkeypatch.setattr(module, "_LEFT_BEHIND", [])
    monkeypatch.setattr(module, "_END_SECONDS", 0.0)
    run = RunOnce(python(HANGS))
    real = run.kill
    monkeypatch.setattr(run, "kill", lambda: None)
    try:
        assert run.finish(0.0) is None
        assert [child.pid for child in module._LEFT_BEHIND] == [run.pid]
        assert run.alive
    finally:
        real()
        run.wait(30)
    ended = run.poll()
    assert ended is not None
    assert (ended.code, ended.output) == (-signal.SIGKILL, b"")
