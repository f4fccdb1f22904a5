"""How a program ends, as its record tells it."""

from pathlib import Path

import pytest

from tests.integration.hook.programs import records, running, script

BEGIN = "import os, signal, sys, threading\nimport stallwatch\nbeat = stallwatch.attach()\n"


@pytest.mark.parametrize(
    ("statement", "status", "exit_code", "exception"),
    [
        ("pass", 0, 0, ""),
        ("sys.exit()", 0, 0, ""),
        ("sys.exit(3)", 3, 3, ""),
        ("sys.exit('a message')", 1, 1, ""),
        ("raise SystemExit(3)", 3, None, ""),  # nobody can see it coming: unknown, not 0
        ("try: sys.exit(3)\nexcept SystemExit: pass", 0, 0, ""),
        ("threading.Thread(target=sys.exit, args=(3,)).start()", 0, 0, ""),
        ("t = threading.Thread(target=sys.exit, args=(3,))\nt.start(); t.join()\nraise SystemExit(4)", 4, None, ""),
        ("raise ValueError", 1, 1, "ValueError"),
        ("raise KeyboardInterrupt", -2, 130, "KeyboardInterrupt"),
    ],
)
def test_an_orderly_end_is_marked_with_what_can_be_known(
    tmp_path: Path, directory: Path, statement: str, status: int, exit_code: int | None, exception: str
) -> None:
    with running(script(tmp_path, BEGIN + statement), directory) as program:
        assert program.end()[0] == status
    [record] = records(directory).values()
    assert record.ended
    assert record.ended_ns is not None
    assert (record.exit_code, record.exception) == (exit_code, exception)


@pytest.mark.parametrize(
    ("statement", "status"), [("os._exit(3)", 3), ("os.kill(os.getpid(), 9)", -9), ("signal.raise_signal(15)", -15)]
)
def test_an_end_that_is_not_orderly_leaves_no_mark(
    tmp_path: Path, directory: Path, statement: str, status: int
) -> None:
    with running(script(tmp_path, BEGIN + statement), directory) as program:
        assert program.end()[0] == status
    [record] = records(directory).values()
    assert (record.ended, record.exit_code) == (False, None)


def test_an_exception_is_known_while_the_teardown_hangs(tmp_path: Path, directory: Path) -> None:
    source = BEGIN + "threading.Thread(target=sys.stdin.readline).start()\nraise RuntimeError('broken')"
    with running(script(tmp_path, source), directory) as program:
        record = program.record(until=lambda record: record.exception != "")
        assert (record.exception, record.ended) == ("RuntimeError", False)
        assert program.end()[0] == 1
    [record] = records(directory).values()
    assert (record.ended, record.exit_code) == (True, 1)


def test_a_handler_at_exit_that_hangs_is_before_the_end(tmp_path: Path, directory: Path) -> None:
    source = BEGIN + "import atexit\natexit.register(lambda: (print('in handler'), sys.stdin.readline()))"
    with running(script(tmp_path, source), directory) as program:
        assert program.line() == "in handler"
        pulse = program.record().pulse_count
        assert not program.record(until=lambda record: record.pulse_count > pulse).ended
        program.end()
    [record] = records(directory).values()
    assert record.ended


def test_the_job_s_own_excepthook_and_exit_are_left_alone(tmp_path: Path, directory: Path) -> None:
    source = BEGIN + (
        "sys.excepthook = lambda kind, error, trace: print('hooked', kind.__name__)\n"
        "import atexit\natexit.register(lambda: print('handler'))\nraise ValueError"
    )
    with running(script(tmp_path, source), directory) as program:
        assert (program.line(), program.line()) == ("hooked ValueError", "handler")
        assert program.end()[0] == 1
    [record] = records(directory).values()
    assert (record.exit_code, record.exception) == (1, "ValueError")
