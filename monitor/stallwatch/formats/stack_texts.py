"""Stacks as people take them: `py-spy dump` without --json, and what Python's faulthandler prints.

py-spy shortens a path to what lies below the search path ("threading.py", "torch/_tensor.py"): of Python's own modules
the version that it names tells the folder.
"""

import re
import sys
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from stallwatch.formats.outside_text import line_of
from stallwatch.formats.unreadable import Unreadable
from stallwatch.model.evidence import CodeFrame, Stacks, ThreadStack

_MOST_LINES: Final = 200_000
_MAXIMUM_THREADS: Final = 4_096
_MAXIMUM_FRAMES: Final = 1_024
# "Process 4002: python -u train.py" and "Python v3.10.14 (/opt/conda/bin/python3.10)"; --subprocesses has several.
_PROCESS: Final = re.compile(r"Process (?P<pid>\d{1,10}): \S")
_VERSION: Final = re.compile(r"Python v(?P<version>\d+\.\d+)[.\w+]* \(")
_THREAD: Final = re.compile(
    r"Thread (?P<id>0x[0-9A-Fa-f]+|\d{1,10}) \((?P<state>(?:idle|active)(?:\+gil)?)\)(?:: \"(?P<name>.*)\")?\s*$"
)
_FRAME: Final = re.compile(r"    (?P<name>\S.*?) \((?P<file>[^()]+?)(?::(?P<line>\d{1,9}))?\)\s*$")
# faulthandler: threads in the order in which they began, newest first; the "Current" one is where a signal came.
_FAULT_BEGINS: Final = re.compile(r"Timeout \(\d+:\d\d:\d\d(?:\.\d+)?\)!\s*$")
_FAULT_THREAD: Final = re.compile(
    r"(?P<current>Current t|T)hread (?P<id>0x[0-9A-Fa-f]+)(?: \[(?P<name>.*)\])? \(most recent call first\):\s*$"
)
_FAULT_FRAME: Final = re.compile(r'  File "(?P<file>[^"]*)", line (?P<line>\d{1,9}) in (?P<name>.+?)\s*$')
_OF_FAULTS: Final = re.compile(  # a line of its output
    r"Timeout \(\d+:|(?:Current t|T)hread 0x[0-9A-Fa-f]+ .*\(most recent call first\):|  File \"[^\"]*\", line \d+ in "
    r"|  (?:\.\.\.|<no Python frame>)\s*$|Extension modules: "
)
_LINES: Final = (_PROCESS, _VERSION, _THREAD, _FRAME, _FAULT_BEGINS, _FAULT_THREAD, _FAULT_FRAME)
# What a job may call its own files, too.
_ALSO_A_JOB_S: Final = frozenset(("code", "test", "profile", "statistics", "platform", "types", "calendar", "this"))
_OF_PYTHON: Final = frozenset(sys.stdlib_module_names) - _ALSO_A_JOB_S
_MAIN: Final = "MainThread"


def is_stacks(data: bytes) -> bool:
    """Whether a text is nothing but stacks of one of these forms, by its first lines."""
    first = [line.rstrip() for line in data[:65_536].decode("utf-8", "replace").splitlines() if line.strip()][:2]
    if not first:
        return False
    if _THREAD.match(first[0]) or _FAULT_THREAD.match(first[0]):
        return True
    second = first[1] if len(first) > 1 else ""
    return bool(
        (_PROCESS.match(first[0]) and _VERSION.match(second))
        or (_FAULT_BEGINS.match(first[0]) and _FAULT_THREAD.match(second))
    )


def is_line(line: str) -> bool:
    """Whether a line is one of stacks of either form."""
    return any(form.match(line) for form in _LINES)


def begins_process(line: str) -> bool:
    """Whether py-spy's stacks of a process begin with it."""
    return _PROCESS.match(line) is not None


def parse(data: bytes, source: str, look: int = 1) -> Stacks:
    """Given such a text, return its stacks: of several dumps of faulthandler the last. Raise Unreadable."""
    lines = [
        line_of(line) for line in data[-(16 << 20) :].decode("utf-8", "surrogateescape").splitlines()[:_MOST_LINES]
    ]
    reading = _Reading()
    for line in lines:
        reading.feed(line)
    threads = reading.threads()
    if not threads:
        raise Unreadable("no stack of it could be read")
    return Stacks(source, look, threads[0].pid, threads)


def at_end(lines: Sequence[str], source: str, *, aborted: bool = False) -> Stacks | None:
    """The stacks with which a process' own log ends, as faulthandler writes them; None where it ends in something
    else, or in those of a crash. `aborted`: nothing tells of a failure of its own, so that a SIGABRT came from outside,
    or from its watchdog, and found it where it stood."""
    start = len(lines)
    while start and (not lines[start - 1].strip() or _OF_FAULTS.match(lines[start - 1])):
        start -= 1
    before = lines[start - 1] if start else ""
    if before.startswith("Fatal Python error") and not (aborted and before.startswith("Fatal Python error: Aborted")):
        return None
    reading = _Reading()
    for line in lines[start:]:
        reading.feed(line)
    threads = reading.threads()
    return Stacks(source, 1, None, threads) if threads else None


class _Reading:
    def __init__(self) -> None:
        self._pid: int | None = None
        self._version = ""
        self._found: list[tuple[ThreadStack, list[CodeFrame]]] = []
        self._of_faults = False
        self._has_current = False

    def feed(self, line: str) -> None:
        if match := _PROCESS.match(line):
            self._pid = int(match["pid"])
        elif match := _VERSION.match(line):
            self._version = match["version"]
        elif match := _THREAD.match(line):
            self._begin(match["id"], match["name"] or "", match["state"])
        elif match := _FAULT_THREAD.match(line):
            if self._has_current:  # it was the last of its dump
                self._found.clear()
            self._of_faults, self._has_current = True, match["current"] == "Current t"
            self._begin(match["id"], match["name"] or "", "current" if self._has_current else "idle")
        elif _FAULT_BEGINS.match(line):
            self._found.clear()
            self._has_current = False
        elif self._found and (match := _FRAME.match(line) or _FAULT_FRAME.match(line)):
            frames = self._found[-1][1]
            if len(frames) < _MAXIMUM_FRAMES:
                frames.append(CodeFrame(match["name"], self._place(match["file"]), int(match["line"] or 0)))

    def _begin(self, number: str, name: str, state: str) -> None:
        if len(self._found) >= _MAXIMUM_THREADS:
            return
        is_hexadecimal = number.startswith("0x")
        thread = ThreadStack(
            name=_MAIN if state == "current" else name,
            os_thread_id=None if is_hexadecimal else int(number),
            active=state.startswith("active"),
            owns_gil=state.endswith("+gil"),
            frames=(),
            pid=self._pid,
            ident=int(number, 16) if is_hexadecimal else None,
        )
        self._found.append((thread, []))

    def threads(self) -> tuple[ThreadStack, ...]:
        """Those that have Python frames."""
        threads = [replace(thread, frames=tuple(frames)) for thread, frames in self._found if frames]
        if self._of_faults and threads and not any(thread.name == _MAIN for thread in threads):
            threads[-1] = replace(threads[-1], name=_MAIN)  # the oldest thread is printed last
        return tuple(threads)

    def _place(self, path: str) -> str:
        top = path.partition("/")[0].removesuffix(".py")
        if path.startswith(("/", "<")) or top not in _OF_PYTHON:
            return path
        return f"/usr/lib/python{self._version or '3'}/{path}"
