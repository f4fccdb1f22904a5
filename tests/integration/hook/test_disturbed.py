"""Training runs as well when the hook cannot."""

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stallwatch.hook import layout
from stallwatch.model.snapshot import Heartbeat
from tests.integration.hook.programs import LAUNCHER, eventually, running, script

# Trains until it is told to stop; says whether the hook works whenever it is asked.
LOOP = """
import select, sys
import stallwatch
beat = stallwatch.attach()
print(bool(beat))
while True:
    beat.step()
    with beat.phase("checkpoint"):
        pass
    if select.select([sys.stdin], [], [], 0)[0]:
        if sys.stdin.readline() == "stop\\n":
            break
        print(bool(beat))
"""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def has_moved_on_from(before: Heartbeat) -> Callable[[Heartbeat], bool]:
    return lambda record: record.step != before.step


def has_answered(request_id: int) -> Callable[[Heartbeat], bool]:
    return lambda record: record.answered_request == request_id


def test_a_record_that_is_unlinked_comes_back(tmp_path: Path, directory: Path) -> None:
    with running(script(tmp_path, LOOP), directory) as program:
        assert program.line() == "True"
        before = program.record()
        program.record_path().unlink()
        after = program.record(until=lambda record: record.pulse_ns > before.pulse_ns)
        assert (after.step or 0) > (before.step or 0)
        assert program.end("stop") == (0, "")


def test_a_record_that_is_truncated_under_a_stepping_job_is_whole_again(tmp_path: Path, directory: Path) -> None:
    with running(script(tmp_path, LOOP), directory) as program:
        assert program.line() == "True"
        path = program.record_path()
        for size in (0, 1, 4096, 0):
            before = program.record()
            os.truncate(path, size)
            program.record(until=has_moved_on_from(before))
        assert program.end("stop") == (0, "")


def test_a_missing_directory_is_said_once_and_found_when_it_comes(tmp_path: Path, directory: Path) -> None:
    directory.rmdir()
    with running(script(tmp_path, LOOP), directory) as program:
        assert program.line() == "False"
        directory.mkdir()
        program.record()
        # The record is there a moment before attach's object says so.
        answers = (program.ask() for _ in range(1000))
        assert "True" in answers
        status, errors = program.end("stop")
    assert status == 0
    assert errors.count("\n") == 1
    assert "No such file or directory" in errors


@as_root
@pytest.mark.skipif(not shutil.which("setpriv"), reason="needs util-linux")
def test_an_unwritable_directory_stops_nothing(tmp_path: Path, directory: Path) -> None:
    directory.chmod(0o755)
    os.chown(directory, 1001, 1001)
    plain_user = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"]
    with running([*plain_user, *script(tmp_path, LOOP)], directory) as program:
        assert program.line() == "False"
        status, errors = program.end("stop")
    assert status == 0
    assert "Permission denied" in errors
    assert list(directory.iterdir()) == []


@as_root
@pytest.mark.skipif(not shutil.which("unshare"), reason="needs util-linux")
@pytest.mark.parametrize("filled_later", [False, True])
def test_a_full_tmpfs_stops_nothing(tmp_path: Path, directory: Path, filled_later: bool) -> None:
    # Two pages are the record; the file system has eight, and the program fills it before or after it attaches.
    fill = f"""
import os
with open({str(directory / "fill")!r}, "wb", buffering=0) as file:
    try:
        while file.write(bytes(4096)):
            pass
    except OSError:
        print("full")
"""
    spoil = f"import os\nos.truncate([p.path for p in os.scandir({str(directory)!r}) if '.beat' in p.name][0], 0)\n"
    attach, loop = LOOP.split("print(bool(beat))\n", 1)
    source = attach + "print(bool(beat))\n" + spoil + fill + loop if filled_later else fill + LOOP
    command = script(tmp_path, source)
    mount = f'mount -t tmpfs -o size=32k none "{directory}" || exit 77; exec "$@"'
    with running(["unshare", "-m", "sh", "-c", mount, "sh", *command], directory) as program:
        said = program.line()
        if program.process.poll() == 77:
            pytest.skip("may not mount here")
        assert said == ("True" if filled_later else "full")
        assert program.line() == ("full" if filled_later else "False")
        while program.ask() != "False":  # the pulse finds out at its next write
            pass
        status, errors = program.end("stop")
    assert status == 0
    assert "No space left on device" in errors


@as_root
@pytest.mark.skipif(not shutil.which("unshare"), reason="needs util-linux")
def test_a_file_system_that_is_read_only_stops_nothing(tmp_path: Path, directory: Path) -> None:
    mount = f'mount -t tmpfs -o ro none "{directory}" || exit 77; exec "$@"'
    with running(["unshare", "-m", "sh", "-c", mount, "sh", *script(tmp_path, LOOP)], directory) as program:
        said = program.line()
        if program.process.poll() == 77:
            pytest.skip("may not mount here")
        assert said == "False"
        assert program.ask() == "False"
        status, errors = program.end("stop")
    assert status == 0
    assert "Read-only file system" in errors
    assert errors.count("\n") == 1


def test_rubbish_in_the_request_s_place_is_ignored(tmp_path: Path, directory: Path) -> None:
    (directory / ".daemon").mkdir()
    with running(script(tmp_path, LOOP), directory) as program:
        assert program.line() == "True"
        request = program.request_path()
        request.write_bytes(b"\xff{")
        assert program.record(until=lambda record: record.errors > 0).answered_request == -1
        part = request.with_suffix(".part")
        for request_id in (5, 6):
            part.write_text(f'{{"id": {request_id}, "rung": "active"}}')
            part.rename(request)
            assert program.record(until=has_answered(request_id)).dump_started_ns is None
        assert program.end("stop")[0] == 0


@pytest.mark.parametrize(("variable", "value"), [("STALLWATCH_DISABLE", "1"), ("STALLWATCH_DISABLE", "true")])
def test_it_can_be_switched_off(tmp_path: Path, directory: Path, variable: str, value: str) -> None:
    with running(script(tmp_path, LOOP), directory, variables=LAUNCHER | {variable: value}) as program:
        assert program.line() == "False"
        assert program.end("stop") == (0, "")
    assert list(directory.iterdir()) == []


def test_a_job_that_closes_all_descriptors_keeps_its_files_to_itself(tmp_path: Path, directory: Path) -> None:
    source = f"""
import os, sys
import stallwatch
beat = stallwatch.attach()
os.closerange(3, 256)
with open({str(tmp_path / "model.bin")!r}, "w+b", buffering=0) as file:
    file.write(b"precious")
    print("open")
    sys.stdin.readline()
    file.seek(0)
    print(file.read())
"""
    with running(script(tmp_path, source), directory) as program:
        assert program.line() == "open"
        pulse = program.record().pulse_count
        program.record(until=lambda record: record.pulse_count > pulse)
        assert program.ask() == "b'precious'"


def test_a_stuck_main_thread_stops_the_step_and_not_the_pulse(tmp_path: Path, directory: Path) -> None:
    source = "import sys\nimport stallwatch\nbeat = stallwatch.attach()\nbeat.step()\nsys.stdin.readline()"
    with running(script(tmp_path, source), directory) as program:
        first = program.record(until=lambda record: record.step == 1)
        later = program.record(until=lambda record: record.pulse_count >= first.pulse_count + 1)
        assert (later.step, later.last_step_ns) == (1, first.last_step_ns)


def test_a_held_gil_stops_the_pulse_too(tmp_path: Path, directory: Path) -> None:
    source = """
import ctypes, sys
import stallwatch
beat = stallwatch.attach()
print("ready")
sys.stdin.readline()
print("holding")
ctypes.PyDLL(None).pause()  # until a signal; a PyDLL call keeps the GIL
"""
    with running(script(tmp_path, source), directory) as program:
        assert program.line() == "ready"
        program.ask()
        record = program.record_path()

        def stands_still() -> bool | None:
            before = record.stat().st_mtime_ns
            time.sleep(1.0)  # several of its periods
            return record.stat().st_mtime_ns == before or None

        eventually(stands_still)
        assert not program.record().ended


def test_python_without_site_packages_can_attach(directory: Path) -> None:
    root = Path(layout.__file__).parents[2]
    statement = f"import sys; sys.path.insert(0, {str(root)!r}); import stallwatch; print(bool(stallwatch.attach()))"
    with running([sys.executable, "-I", "-S", "-c", statement], directory) as program:
        assert program.line() == "True"
        assert program.end()[0] == 0


BROKEN = """
import sys, threading
import stallwatch
from stallwatch.hook import {module}
def broken(*arguments, **keywords):
    raise {error}
{module}.{name} = broken
beat = stallwatch.attach()
print(bool(beat))
for _ in range(3):
    beat.step()
    with beat.phase("checkpoint"):
        pass
sys.stdin.readline()
print(bool(beat))
"""


@pytest.mark.parametrize(
    ("module", "name", "error", "words"),
    [
        ("native", "_start_new_thread", "RuntimeError('no thread')", "could not attach"),
        ("attachment", "identity.this_process", "OSError('no proc')", "could not attach"),
        ("attachment", "Publication", "MemoryError()", "could not attach"),
    ],
)
def test_an_attach_that_fails_is_false_and_says_why(
    tmp_path: Path, directory: Path, module: str, name: str, error: str, words: str
) -> None:
    source = BROKEN.format(module=module, name=name, error=error)
    with running(script(tmp_path, source), directory) as program:
        assert program.line() == "False"
        status, errors = program.end()
    assert status == 0
    assert words in errors
    assert errors.count("\n") == 1
    assert list(directory.iterdir()) == []


def test_a_pulse_that_keeps_failing_takes_its_record_away(tmp_path: Path, directory: Path) -> None:
    source = BROKEN.format(module="publication", name="Publication.beat", error="ValueError('a bug of ours')")
    source = source.replace("beat = stallwatch.attach()\n", "").replace(
        "def broken", "beat = stallwatch.attach()\ndef broken"
    )
    with running(script(tmp_path, source), directory) as program:
        assert program.line() == "True"
        eventually(lambda: not list(directory.glob("*.beat")) or None)
        assert program.ask() == "False"
        status, errors = program.end()
    assert status == 0
    assert errors.count("\n") == 1


@pytest.mark.parametrize("name", ["recorder.group_counters", "facts.collect", "remove_stale_files"])
def test_one_part_that_fails_leaves_the_others(tmp_path: Path, directory: Path, name: str) -> None:
    with running(script(tmp_path, BROKEN.format(module="pulse", name=name, error="KeyError")), directory) as program:
        assert program.line() == "True"
        record = program.record(until=lambda record: record.errors > 0 and record.pulse_count >= 2)
        assert record.step == 3
        assert program.ask() == "True"
        assert program.end()[0] == 0


def test_a_module_of_the_job_s_that_ends_our_thread_takes_the_record_with_it(tmp_path: Path, directory: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('json.py is our launcher')")
    source = (
        "import sys, stallwatch\nbeat = stallwatch.attach()\nprint(bool(beat))\nsys.stdin.readline()\nprint(bool(beat))"
    )
    with running(script(tmp_path, source), directory) as program:
        assert program.line() == "True"
        eventually(lambda: not list(directory.glob("*.beat")) or None)
        assert program.ask() == "False"
        status, errors = program.end()
    assert status == 0
    assert "the pulse has ended: SystemExit" in errors
