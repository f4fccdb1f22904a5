"""Reads logs and sources in a process that reads no more than the rank's own user could:
`python -m stallwatch.captures.as_user`, request and answer as JSON on standard input and output."""

import contextlib
import ctypes
import os
import subprocess
import sys

import msgspec

from stallwatch.captures.folder import NotCaptured
from stallwatch.captures.log import read_tail
from stallwatch.captures.sources import read_lines
from stallwatch.model.evidence import SourceLine
from stallwatch.node.permission import Person
from stallwatch.node.procfs import ProcessDirectory

# linux/capability.h
_VERSION_3 = 0x20080522
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2


class Wanted(msgspec.Struct, frozen=True):
    rank: int
    pid: int
    start_ticks: int
    lines: tuple[tuple[str, int], ...]


class Request(msgspec.Struct, frozen=True):
    uid: int
    gid: int
    groups: tuple[int, ...]
    ranks: tuple[Wanted, ...]


class Found(msgspec.Struct, frozen=True):
    rank: int
    log: tuple[str, ...] | None = None
    log_problem: str = ""
    sources: tuple[SourceLine, ...] = ()
    sources_problem: str = ""


def read_as_user(request: Request, seconds: float) -> tuple[Found, ...]:
    """Ask such a process. Raise NotCaptured when it does not answer in time: a file may lie on a dead file system."""
    running = subprocess.Popen(
        [sys.executable, "-P", "-m", "stallwatch.captures.as_user"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        stdout, _ = running.communicate(msgspec.json.encode(request), timeout=seconds)
    except subprocess.TimeoutExpired as error:
        running.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.communicate(timeout=0.2)
        raise NotCaptured(f"logs and sources could not be read within {seconds:.0f} s") from error
    try:
        return msgspec.json.decode(stdout, type=tuple[Found, ...])
    except msgspec.MsgspecError as error:
        raise NotCaptured(f"the reader of logs and sources failed (exit code {running.returncode})") from error


def become(uid: int, gid: int, groups: tuple[int, ...]) -> Person | None:
    """Become that user where we may; as a service that may read over permissions, return whose rights each file must
    be checked for; else read as ourselves. Raise OSError when none works: nothing is read then."""
    if os.geteuid() == 0:
        if uid != 0:
            os.setgroups(groups)
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
        return None
    may_read_all = os.geteuid() != uid
    return Person(uid, frozenset((gid, *groups))) if _keep_read_capability(may_read_all) else None


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def _keep_read_capability(keep_search: bool) -> bool:
    """Give up what reads over permissions, CAP_DAC_READ_SEARCH only if we are not to keep it. Return whether we have
    it."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = _Header(_VERSION_3, 0), (_Data * 2)()
    if libc.capget(ctypes.byref(header), data) != 0:
        raise OSError(ctypes.get_errno(), "capget")
    search = 1 << _CAP_DAC_READ_SEARCH
    keep = ~((1 << _CAP_DAC_OVERRIDE) | (0 if keep_search else search)) & 0xFFFFFFFF
    data[0].effective &= keep
    data[0].permitted &= keep
    data[0].inheritable &= keep
    if libc.capset(ctypes.byref(header), data) != 0:
        raise OSError(ctypes.get_errno(), "capset")
    return bool(data[0].effective & search)


def _find(wanted: Wanted, person: Person | None) -> Found:
    log: tuple[str, ...] | None = None
    sources: tuple[SourceLine, ...] = ()
    log_problem = sources_problem = ""
    try:
        with ProcessDirectory(wanted.pid) as process:
            if process.stat().start_ticks != wanted.start_ticks:
                raise ProcessLookupError("its pid belongs to another process now")
            try:
                log = tuple(read_tail(process, person))
            except NotCaptured as error:
                log_problem = f"{error}. {error.help}"
            except OSError as error:
                log_problem = f"its log cannot be read as its own user: {error.strerror}"
            try:
                sources = tuple(read_lines(process, wanted.lines, person))
            except OSError as error:
                sources_problem = f"its files cannot be read as its own user: {error.strerror}"
    except (OSError, ValueError) as error:
        log_problem = sources_problem = f"the process has ended ({error})"
    return Found(wanted.rank, log, log_problem, sources, sources_problem)


def main() -> None:
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    person = become(request.uid, request.gid, request.groups)
    answer = msgspec.json.encode([_find(wanted, person) for wanted in request.ranks])
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        os._exit(0)  # the capture has ended; a traceback would tell nobody anything
