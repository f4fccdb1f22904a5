"""The tail of what a rank printed, where its output goes to a regular file."""

import contextlib
import os
import stat
from collections.abc import Iterable
from functools import partial

from stallwatch.captures.folder import NotCaptured
from stallwatch.formats.log_prefix import strip_colours
from stallwatch.formats.outside_text import line_of, name_of, path_bytes
from stallwatch.hook.secrets import scrubbed
from stallwatch.node import untrusted
from stallwatch.node.permission import Person, check_file, check_open_file
from stallwatch.node.procfs import ProcessDirectory

_TAIL_BYTES = 128 << 10
_LINE_CHARACTERS = 4000
_ANY_SIZE = 1 << 62  # only the end is read

FileId = tuple[int, int]  # device and inode


def read_tail(process: ProcessDirectory, person: Person | None = None) -> list[str]:
    """Return the last lines of stdout and stderr (one file once), without secrets. Raise NotCaptured when neither is a
    file (a pipe or a terminal belongs to whoever reads it), or when, given a person, it is not for him."""
    tails: list[str] = []
    seen: set[tuple[int, int]] = set()
    kinds = []
    for number in (1, 2):
        name = f"fd/{number}"
        try:
            status = os.stat(name, dir_fd=process.descriptor)
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(status.st_mode):
            kinds.append(_kind(status.st_mode))
        elif (status.st_dev, status.st_ino) not in seen:
            seen.add((status.st_dev, status.st_ino))
            tails += _tail(process, name, person)
    if not seen:
        what = " and ".join(dict.fromkeys(kinds)) or "closed"
        raise NotCaptured(
            f"its output is no file ({what})", "`torchrun --log-dir D --redirects 3` keeps one file a rank."
        )
    return tails


def read_tail_of_ended(
    paths: Iterable[str], person: Person | None = None, root: int | None = None, *, uid: int
) -> tuple[list[str], list[FileId]]:
    """Given the paths of an ended process' output (`path_of`), the root directory that it had where that is not
    ours, and whose it was, return the last lines of the files, and which files those are. Raise NotCaptured when none
    can be read."""
    tails: list[str] = []
    files: list[FileId] = []
    problem = "its output went to no file"
    root = os.dup(root) if root is not None else os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for path in map(os.fsdecode, map(path_bytes, paths)):
            check = None if person is None else partial(check_file, person, root, path)
            try:
                descriptor = untrusted.open_in_root(root, path, _ANY_SIZE, check, users=(uid,))
            except (OSError, untrusted.FileRefused) as error:
                problem = f"its log cannot be read: {name_of(str(error))}"
                continue
            status = os.fstat(descriptor)
            if (status.st_dev, status.st_ino) in files:
                os.close(descriptor)
                continue
            files.append((status.st_dev, status.st_ino))
            tails += _lines(descriptor)
    finally:
        os.close(root)
    if not files:
        raise NotCaptured(problem, "`torchrun --log-dir D --redirects 3` keeps one file a rank.")
    return tails, files


def files_of(process: ProcessDirectory) -> list[FileId]:
    """Which files its standard output and error are."""
    found = []
    for number in (1, 2):
        with contextlib.suppress(OSError):
            status = os.stat(f"fd/{number}", dir_fd=process.descriptor)
            if stat.S_ISREG(status.st_mode):
                found.append((status.st_dev, status.st_ino))
    return list(dict.fromkeys(found))


def _tail(process: ProcessDirectory, name: str, person: Person | None) -> list[str]:
    check = None if person is None else partial(check_open_file, person, name)
    try:
        descriptor = untrusted.open_held(process.descriptor, name, _ANY_SIZE, check)
    except untrusted.FileRefused as error:
        raise NotCaptured(f"its log is not readable for its own user ({error})") from error
    return _lines(descriptor)


def _lines(descriptor: int) -> list[str]:
    """Whole lines at the end of an open file, without secrets; closes it."""
    try:
        size = os.fstat(descriptor).st_size
        start = max(0, size - _TAIL_BYTES)
        text = os.pread(descriptor, _TAIL_BYTES, start).decode("utf-8", "surrogateescape")
    finally:
        os.close(descriptor)
    lines = scrubbed(text).splitlines()
    return [line_of(strip_colours(line))[:_LINE_CHARACTERS] for line in (lines[1:] if start else lines)]


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISCHR, "a terminal or device"), (stat.S_ISSOCK, "a socket"))
    return next((name for test, name in kinds if test(mode)), "something else")
