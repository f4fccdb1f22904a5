"""The text of the source lines that stacks name, as the rank's own user can read them."""

import os
import re
from collections.abc import Iterable
from functools import partial
from typing import Any

from msgspec.structs import replace

from stallwatch.captures.source_blocks import blocks_around, communicates_each_round, given_before
from stallwatch.formats.outside_text import line_of
from stallwatch.formats.tolerant import integer, items, mapping, text
from stallwatch.hook.secrets import scrubbed
from stallwatch.model.evidence import SourceLine
from stallwatch.node import untrusted
from stallwatch.node.permission import Person, check_file
from stallwatch.node.procfs import ProcessDirectory

_MOST_LINES = 600
_FILE_LIMIT_BYTES = 8 << 20
_LINE_CHARACTERS = 400
_INSTALLED = re.compile(r"/(?:site|dist)-packages/|/lib/python3")  # nobody asks in which loop of torch a rank stands


def lines_of_stacks(threads: Iterable[Any]) -> list[tuple[str, int]]:
    """Given py-spy's threads, return the distinct (file, line) of their frames in Python files, main thread's first."""
    wanted: dict[tuple[str, int], None] = {}
    for thread in sorted(threads, key=_is_another):
        for said in items(thread.get("frames")):
            frame = mapping(said)
            file, line = text(frame.get("filename")), integer(frame.get("line"))
            if file is not None and line is not None and file.endswith(".py") and line > 0:
                wanted[file, line] = None
    return list(wanted)[:_MOST_LINES]


def _is_another(thread: Any) -> bool:
    """Than the main one, whose id in a PID namespace of its own is not the process' pid here."""
    return bool(thread.get("os_thread_id") != thread.get("pid") and thread.get("thread_name") != "MainThread")


def read_lines(
    process: ProcessDirectory, wanted: Iterable[tuple[str, int]], person: Person | None = None, *, uid: int
) -> list[SourceLine]:
    """Return the lines that could be read, in the process' own root; a file that cannot be read is left out. Given a
    person, so is one that is not for him. `uid`: whose process it is.

    Raise OSError when the process' root is closed to us.
    """
    by_file: dict[str, list[int]] = {}
    for file, line in wanted:
        by_file.setdefault(file, []).append(line)
    found = []
    root = os.open("root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=process.descriptor)
    try:
        working_directory = os.readlink("cwd", dir_fd=process.descriptor)
        for file, numbers in by_file.items():
            path = os.path.normpath(os.path.join(working_directory, file))
            try:
                source = _read(root, path, person, uid)
            except (OSError, untrusted.FileRefused):
                continue
            lines = source.splitlines()
            found += [_line(file, lines, number) for number in numbers if number <= len(lines)]
    finally:
        os.close(root)
    return found


def _line(file: str, lines: list[str], number: int) -> SourceLine:
    line = line_of(scrubbed(lines[number - 1].strip()))[:_LINE_CHARACTERS]
    if _INSTALLED.search(file):
        return SourceLine(file, number, line)
    blocks = (replace(block, text=line_of(scrubbed(block.text))) for block in blocks_around(lines, number))
    given = (line_of(scrubbed(text)) for text in given_before(lines, number))
    calls = line_of(scrubbed(communicates_each_round(lines, number)))
    return SourceLine(file, number, line, tuple(blocks), tuple(given), calls)


def _read(root: int, path: str, person: Person | None, uid: int) -> str:
    if not path.endswith(".py"):
        raise untrusted.FileRefused(f"{path}: no Python source")
    check = None if person is None else partial(check_file, person, root, path)
    descriptor = untrusted.open_in_root(root, path, _FILE_LIMIT_BYTES, check, users=(uid,))
    try:
        return untrusted.read_bounded(descriptor, _FILE_LIMIT_BYTES).decode("utf-8", "surrogateescape")
    finally:
        os.close(descriptor)
