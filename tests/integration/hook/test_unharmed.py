"""Training ends with the very weights that it has without a hook, whatever happens to what the hook uses."""

import contextlib
import hashlib
import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stallwatch.hook import layout
from tests.integration.hook.programs import LAUNCHER, Program, others, running, script

# Steps for some of the hook's own looks (a quarter of a second each) after it has said "half".
TRAINS = """
import hashlib, random, sys, time

def train(step, steps, seconds=0.0, half=None):
    chance, weights = random.Random(7), [0.0] * 16
    for number in range(steps):
        if number == steps // 2 and half is not None:
            half()
        step()
        gradient = [chance.gauss(0, 1) + weight for weight in weights]
        weights = [weight - 0.01 * part for weight, part in zip(weights, gradient)]
        time.sleep(seconds)
    return hashlib.sha256(repr(weights).encode()).hexdigest()
"""
STEPS = 120
HOOKED = (
    TRAINS
    + f"""
import stallwatch
beat = stallwatch.attach()

def half():
    print("half")
    sys.stdin.readline()

def step():
    beat.step()
    with beat.phase("evaluation"):
        pass

print(train(step, {STEPS}, 0.01, half))
"""
)


def weights() -> str:
    scope: dict[str, Callable[..., str]] = {}
    exec(TRAINS, scope)
    return scope["train"](lambda: None, STEPS)


def replaced(make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Each record of the directory exchanged for something else of its name."""

    def disturb(directory: Path) -> None:
        for path in directory.glob("*.beat"):
            path.unlink()
            make(path)

    return disturb


def asked(make: Callable[[Path], object]) -> Callable[[Path], None]:
    """A request of who plays the daemon."""

    def disturb(directory: Path) -> None:
        (directory / layout.REQUESTS).mkdir()
        for path in directory.glob("*.beat"):
            key = layout.parse_record_name(path.name)
            assert key is not None
            make(Path(layout.request_path(str(directory), *key)))

    return disturb


def elsewhere(directory: Path) -> None:
    directory.rename(directory.with_name(f"{directory.name}.before"))
    directory.mkdir()


def deleted(directory: Path) -> None:
    """Gone, though those that step put files into it meanwhile."""
    while directory.exists():
        with contextlib.suppress(OSError):
            shutil.rmtree(directory)


def a_file(directory: Path) -> None:
    deleted(directory)
    directory.write_text("no directory")


def a_loop(directory: Path) -> None:
    deleted(directory)
    directory.symlink_to(directory)


_LATE = '{"id": 1, "rung": "active", "at_ns": 9223372036854775807}'


def truncate(directory: Path) -> None:
    for path in directory.glob("*.beat"):
        os.truncate(path, 7)


def a_gigabyte(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 30)


DISTURBANCES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda directory: None,
    "deleted": deleted,
    "another directory": elsewhere,
    "a file in its place": a_file,
    "a link to itself": a_loop,
    "closed": lambda directory: directory.chmod(0),
    "truncated records": truncate,
    "records that are FIFOs": replaced(os.mkfifo),
    "records that are folders": replaced(os.mkdir),
    "records that are links": replaced(lambda path: path.symlink_to("/dev/full")),
    "a request that is a FIFO": asked(os.mkfifo),
    "a request that is a folder": asked(os.mkdir),
    "a request without an end": asked(lambda path: path.symlink_to("/dev/zero")),
    "a request of a gigabyte": asked(a_gigabyte),
    "a request that is nonsense": asked(lambda path: path.write_text('{"id": [1], "rung": {"a": null}, "at_ns": "x"}')),
    "a request for the year 3000": asked(lambda path: path.write_text(_LATE)),
    "requests nested without end": asked(lambda path: path.write_text("[" * 100_000)),
}


def test_whatever_happens_to_the_directory_the_weights_are_the_same(tmp_path: Path) -> None:
    expected = weights()
    command = script(tmp_path, HOOKED)
    with contextlib.ExitStack() as programs:
        started: dict[str, Program] = {}
        for number, name in enumerate(DISTURBANCES):
            directory = tmp_path / f"ranks-{number}"
            directory.mkdir(mode=0o700)
            started[name] = programs.enter_context(running(command, directory))
        for name, program in started.items():
            assert program.line() == "half", name
            program.record_path()
            DISTURBANCES[name](program.directory)
        wrong = {}
        for name, program in started.items():
            said = program.ask()
            status, errors = program.end()
            if (said, status) != (expected, 0) or "Traceback" in errors:
                wrong[name] = (said, status, errors)
        assert not wrong


def test_under_every_other_python_the_weights_are_the_same(tmp_path: Path) -> None:
    """Its record truncated, then the directory deleted, while it trains."""
    expected, (_, path) = weights(), script(tmp_path, HOOKED)
    with contextlib.ExitStack() as programs:
        started: dict[str, Program] = {}
        for number, interpreter in enumerate(others()):
            directory = tmp_path / f"ranks-{number}"
            directory.mkdir(mode=0o700)
            variables = LAUNCHER | {"PYTHONPATH": str(Path(layout.__file__).parents[2])}
            started[interpreter] = programs.enter_context(running([interpreter, path], directory, variables=variables))
        for interpreter, program in started.items():
            assert program.line() == "half", interpreter
            program.record_path()
            truncate(program.directory)
            deleted(program.directory)
        ends = {interpreter: (program.ask(), *program.end()) for interpreter, program in started.items()}
    assert {interpreter: said for interpreter, (said, _, _) in ends.items()} == dict.fromkeys(started, expected)
    assert {status for _, status, _ in ends.values()} <= {0}
    assert not [errors for _, _, errors in ends.values() if "Traceback" in errors]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_every_start_method_compute_as_without_a_hook(tmp_path: Path, directory: Path, method: str) -> None:
    source = f"""
import multiprocessing, sys
import stallwatch

def square(number):
    return number * number

if __name__ == "__main__":
    beat = stallwatch.attach()
    assert beat
    with multiprocessing.get_context({method!r}).Pool(2) as pool:
        for step in range(3):
            beat.step()
            print(sum(pool.map(square, range(50))))
    sys.stdin.readline()
"""
    with running([sys.executable, "-W", "ignore", script(tmp_path, source)[-1]], directory) as program:
        assert [program.line() for _ in range(3)] == [str(sum(n * n for n in range(50)))] * 3
        assert program.record(until=lambda record: record.step == 3).is_child is False
        assert program.end() == (0, "")


def test_a_storm_of_signals_disturbs_neither(tmp_path: Path, directory: Path) -> None:
    source = (
        HOOKED.replace("import stallwatch\n", "import signal, stallwatch\n", 1)
        .replace(
            "beat = stallwatch.attach()\n",
            "beat = stallwatch.attach()\nheard = []\n"
            "signal.signal(signal.SIGALRM, lambda *_: heard.append(1))\n"
            "signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\n",
        )
        .replace("print(train(", "said = train(")
        .replace("half))", "half)\nsignal.setitimer(signal.ITIMER_REAL, 0)\nprint(said, len(heard) > 20)")
    )
    with running(script(tmp_path, source), directory) as program:
        assert program.line() == "half"
        assert program.ask() == f"{weights()} True"
        assert program.end() == (0, "")


def test_threads_that_step_into_the_interpreters_end_raise_nothing(tmp_path: Path, directory: Path) -> None:
    source = """
import threading, time
import stallwatch
beat = stallwatch.attach()
assert beat
def forever():
    while True:
        beat.step()
        with beat.phase("data"):
            pass
for daemon in (True, True, True):
    threading.Thread(target=forever, daemon=daemon).start()
print("end")
"""
    for _ in range(3):
        with running(script(tmp_path, source), directory, variables=LAUNCHER) as program:
            assert program.line() == "end"
            assert program.end() == (0, "")


def test_the_weights_are_those_of_the_formula() -> None:
    chance, found = random.Random(7), [0.0] * 16
    for _ in range(STEPS):
        gradient = [chance.gauss(0, 1) + weight for weight in found]
        found = [weight - 0.01 * part for weight, part in zip(found, gradient, strict=True)]
    assert hashlib.sha256(repr(found).encode()).hexdigest() == weights()
