"""How children are started."""

import ast
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import stallwatch
from stallwatch.node.children import start_logged

PACKAGE = Path(stallwatch.__file__).parent
STARTS = {f"subprocess.{name}" for name in ("Popen", "run", "call", "check_call", "check_output")} | {
    f"os.{name}" for name in ("fork", "posix_spawn", "posix_spawnp", "system", "popen")
}


def starts(source: str) -> list[str]:
    """What it calls, and may only be called by node/children.py."""
    calls = [node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [name for name in map(ast.unparse, calls) if name in STARTS]


def test_one_module_alone_starts_processes() -> None:
    sources = {path: path.read_text() for path in PACKAGE.rglob("*.py")}
    ours = {path: text for path, text in sources.items() if "programs" not in path.parts}  # else training jobs
    named = [path for path, text in ours.items() if any(name in text for name in STARTS)]
    assert [path.relative_to(PACKAGE).as_posix() for path in named if starts(ours[path])] == ["node/children.py"]
    assert starts("process = subprocess.Popen(command)")


def test_what_a_logged_program_says_is_in_its_log_and_its_environment_is_the_given_one(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        child = start_logged(["sh", "-c", 'echo "$TOLD"; echo lost >&2; exit 3'], log, {"TOLD": "it is so"})
    assert child.wait(60) == 3
    assert (tmp_path / "log").read_text() == "it is so\nlost\n"


# One thread, handlers and descriptors of its own: as the privileged side. What it prints is tested.
FORKS = """
import json, os, signal, subprocess, sys, time
from functools import partial
from stallwatch.node.children import OwnFork, imported

NAME = (sys.executable, "-P", "-m", "shown.as", "this")
wakeup, write = os.pipe()
os.set_blocking(write, False)
signal.set_wakeup_fd(write, warn_on_full_buffer=False)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
    signal.signal(number, lambda *_: None)


def tell(value):
    os.write(1, json.dumps(value).encode())


def looks_at_itself(lent):
    handlers = {number.name: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT)}
    tell({
        "descriptors": [one for one in range(100) if os.path.exists(f"/proc/self/fd/{one}")],
        "lent": os.pread(lent, 100, 0).decode(),
        "leads": os.getpid() == os.getsid(0) == os.getpgid(0),
        "default": [name for name, handler in handlers.items() if handler == signal.SIG_DFL],
        "interrupts": handlers["SIGINT"] == signal.default_int_handler,
        "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "shown": open("/proc/self/cmdline").read().rstrip("\\0").split("\\0") == list(NAME),
        "heard": os.read(0, 100).decode(),
    })


def starts_another():
    other = subprocess.Popen(["sleep", "600"])
    tell(other.pid)
    time.sleep(600)


def raises():
    raise ValueError("it is broken")


def fork(main, *lends):
    return OwnFork(main, NAME, lends)
"""


def printed(program: str) -> tuple[Any, str]:
    command = [sys.executable, "-c", FORKS + program, "some", "room", "for", "a", "command", "line", "of", "another"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_who_is_forked_has_nothing_of_its_parent_but_what_it_is_lent() -> None:
    told, _ = printed("""
lent = os.memfd_create("lent")
os.write(lent, b"this")
one = fork(partial(looks_at_itself, lent), lent)
one.channel.sendall(b"hello")
print(json.dumps([lent, json.loads(one.channel.recv(1 << 16)), one.child.wait(), one.child.poll()]))
""")
    lent, seen, code, again = told
    assert seen == {
        "descriptors": [0, 1, 2, lent],
        "lent": "this",
        "leads": True,
        "default": ["SIGTERM", "SIGCHLD"],
        "interrupts": True,
        "blocked": 0,
        "shown": True,
        "heard": "hello",
    }
    assert code == again == 0


def test_a_signal_that_comes_before_who_is_forked_has_its_own_handlers_ends_it() -> None:
    told, _ = printed("""
codes = []
for _ in range(20):
    one = fork(signal.pause)
    one.child.terminate()
    codes.append(one.child.wait(30))
    one.channel.close()
print(json.dumps([codes, signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL, len(signal.pthread_sigmask(0, ()))]))
""")
    assert told == [[-signal.SIGTERM] * 20, True, 0]


def test_who_is_forked_is_killed_with_what_it_started_and_waited_for_no_longer_than_told() -> None:
    told, _ = printed("""
one = fork(starts_another)
other = os.pidfd_open(int(one.channel.recv(100)))
try:
    late = one.child.wait(0.01)
except subprocess.TimeoutExpired:
    late = "late"
running = one.child.poll()
one.child.kill()
code = one.child.wait(30)
import select
print(json.dumps([late, running, code, bool(select.select([other], [], [], 30)[0])]))
one.child.kill()
""")
    assert told == ["late", None, -signal.SIGKILL, True]


def test_who_is_forked_and_raises_says_what_and_its_parent_goes_on() -> None:
    told, said = printed("""
one = fork(raises)
print(json.dumps([one.child.wait(30), one.channel.recv(100).decode()]))
""")
    assert told == [1, ""], "and its end of the socket is closed"
    assert "ValueError: it is broken" in said


def test_what_cannot_be_imported_is_left_out() -> None:
    told, _ = printed("""
print(json.dumps(sorted(imported(["stallwatch.sensors.child", "stallwatch.no_such", "stallwatch.node.children"]))))
""")
    assert told == ["stallwatch.sensors.child"], "the second is not there, the third has no main"
