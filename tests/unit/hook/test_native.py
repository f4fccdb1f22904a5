"""A library that replaces threads by greenlets, before our import or after it, meets threads of the system's own."""

import subprocess
import sys
import textwrap
import threading
import types
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import pytest

from stallwatch.hook import native

ROOT = Path(__file__).parents[3]


def test_a_flag_is_waited_for_and_taken_back() -> None:
    flag = native.Flag()
    assert not flag.wait(0.0)
    flag.set()
    flag.set()
    assert flag.is_set()
    assert flag.wait(10.0)
    assert flag.wait(10.0), "for all who wait"
    flag.clear()
    flag.clear()
    assert not flag.is_set()
    assert not flag.wait(0.01)


def test_setting_a_flag_ends_a_wait() -> None:
    flag, seen = native.Flag(), []
    thread = threading.Thread(target=lambda: seen.append(flag.wait(60.0)))
    thread.start()
    flag.set()
    thread.join(30.0)
    assert seen == [True]


def test_a_thread_runs_is_joined_and_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[int] = []

    def run(number: int) -> None:
        seen.append(number)
        raise ValueError("whatever")

    thread = native.Thread(run, 7)
    thread.start()
    began = monotonic()
    thread.join(30.0)
    assert seen == [7]
    assert monotonic() - began < 30.0
    assert capfd.readouterr().err == ""


def originals_of(name: str, function: str, returned: object) -> types.ModuleType:
    module = types.ModuleType(name)
    setattr(module, function, returned)
    return module


def get_original(module: str, name: str) -> str:
    return f"original {module}.{name}"


@pytest.mark.parametrize(
    ("name", "function", "original"),
    [
        ("gevent.monkey", "get_original", get_original),
        ("eventlet.patcher", "original", lambda module: types.SimpleNamespace(RLock=f"original {module}.RLock")),
    ],
)
def test_who_patched_before_us_is_asked_for_the_original(
    monkeypatch: pytest.MonkeyPatch, name: str, function: str, original: Callable[..., object]
) -> None:
    monkeypatch.setitem(sys.modules, name, originals_of(name, function, original))
    assert native._original("RLock") == "original _thread.RLock"


def test_a_patcher_that_does_not_know_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gevent.monkey", originals_of("gevent.monkey", "another", None))
    assert native._original("get_ident") is threading.get_ident


# As gevent's patch_all() leaves it: what is asked of `threading` afterwards is a greenlet's.
PATCHED = """
import sys, time
sys.path.insert(0, "monitor")
import stallwatch
beat = stallwatch.attach()
assert beat
import os, struct, threading

def never(*arguments, **keywords):
    raise AssertionError("the hook asked for a greenlet")

real = threading.get_ident, threading._start_new_thread
threading.get_ident = lambda: 7  # a greenlet's, which no thread has
threading._start_new_thread = never
from stallwatch.hook import layout

def pulses():
    (name,) = [name for name in os.listdir(os.environ["STALLWATCH_DIR"]) if name.endswith(".beat")]
    with open(os.path.join(os.environ["STALLWATCH_DIR"], name), "rb") as file:
        return struct.unpack_from("<q", file.read(), layout.WORD["pulse_count"] * 8)[0]

def goes_on():
    before, end = pulses(), time.monotonic() + 20
    while pulses() <= before:
        assert time.monotonic() < end, "the pulse stands"
        time.sleep(0.01)

goes_on()
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)  # our thread ended before the fork, and began again
goes_on()
threading.get_ident, threading._start_new_thread = real  # gevent sees to the end of `threading` itself
print("ended", flush=True)
"""


def test_a_process_that_is_patched_after_attach_pulses_forks_and_ends_in_silence(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PATCHED)],
        cwd=ROOT,
        env={"STALLWATCH_DIR": str(tmp_path), "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "ended\n", "")


LATE_GEVENT = """
import os, sys, time
sys.path.insert(0, "monitor")
import stallwatch
beat = stallwatch.attach()
assert beat
import gevent.monkey
gevent.monkey.patch_all()
for _ in range(20):
    beat.step()
    time.sleep(0.05)
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
time.sleep(0.5)
print(bool(beat), flush=True)
"""


def test_gevent_that_patches_after_attach_hears_nothing_of_us(tmp_path: Path) -> None:
    pytest.importorskip("gevent")
    run = subprocess.run(
        [sys.executable, "-c", LATE_GEVENT],
        cwd=ROOT,
        env={"STALLWATCH_DIR": str(tmp_path), "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "True\n", "")
