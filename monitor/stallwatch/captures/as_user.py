"""Reads logs and sources in a process that reads no more than the rank's own user could:
`python -m stallwatch.captures.as_user`, request and answer as JSON on standard input and output."""

import contextlib
import os
import sys
from collections.abc import Mapping

import msgspec

from stallwatch.captures.folder import NotCaptured
from stallwatch.captures.rank_log import files_of, read_tail, read_tail_of_ended
from stallwatch.captures.sources import read_lines
from stallwatch.encoding import json_of
from stallwatch.formats.outside_text import name_of
from stallwatch.formats.tolerant import NOT_JSON
from stallwatch.model.evidence import SourceLine
from stallwatch.node import capabilities
from stallwatch.node.children import module_of_ours
from stallwatch.node.framing import as_child
from stallwatch.node.mount_roots import open_root_in
from stallwatch.node.permission import Person
from stallwatch.node.procfs import ProcessDirectory
from stallwatch.node.run_once import run_once


class Wanted(msgspec.Struct, frozen=True):
    """What is asked of one rank's files, to be read as its own user."""

    rank: int
    pid: int
    start_ticks: int
    lines: tuple[tuple[str, int], ...]
    ended_outputs: tuple[str, ...] | None = None  # of a process that is gone: where its output went
    mount_namespace: str = ""  # that these paths mean


class UserFilesRequest(msgspec.Struct, frozen=True):
    """What is asked of the files of one user."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    ranks: tuple[Wanted, ...]
    living: tuple[int, ...] = ()  # processes of this user, some of which may see the files of those that are gone


class UserFiles(msgspec.Struct, frozen=True):
    """What a user may read of one rank's files, or why not."""

    rank: int
    log: tuple[str, ...] | None = None
    log_problem: str = ""
    log_files: tuple[tuple[int, int], ...] = ()  # device and inode
    sources: tuple[SourceLine, ...] = ()
    sources_problem: str = ""


_FOUND = msgspec.json.Decoder(tuple[UserFiles, ...])


def read_as_user(request: UserFilesRequest, seconds: float) -> tuple[UserFiles, ...]:
    """Ask such a process. Raise NotCaptured when it does not answer in time: a file may lie on a dead file system."""
    command = module_of_ours("stallwatch.captures.as_user")
    ended = run_once(command, seconds, json_of(request), leads_group=False)
    if ended is None:
        raise NotCaptured(f"logs and sources could not be read within {seconds:.0f} s")
    try:
        return _FOUND.decode(ended.output)
    except NOT_JSON as error:
        raise NotCaptured(f"the reader of logs and sources failed (exit code {ended.code})") from error


def become(uid: int, gid: int, groups: tuple[int, ...]) -> Person | None:
    """Become that user where we may; as a service that may read over permissions, return whose rights each file must
    be checked for; else read as ourselves. Raise OSError when none works: nothing is read then."""
    if os.geteuid() == 0:
        if uid != 0:
            os.setgroups(groups)
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
        return None
    capabilities.drop(capabilities.DAC_OVERRIDE)
    if os.geteuid() == uid:
        capabilities.drop(capabilities.DAC_READ_SEARCH)
    return Person(uid, frozenset((gid, *groups))) if capabilities.has(capabilities.DAC_READ_SEARCH) else None


def _find(wanted: Wanted, person: Person | None, roots: Mapping[str, int], uid: int) -> UserFiles:
    if wanted.ended_outputs is not None:
        root = roots.get(wanted.mount_namespace)
        if root is None:
            return UserFiles(wanted.rank, log_problem="its log lies where nobody lives any more: its container is gone")
        try:
            lines, files = read_tail_of_ended(wanted.ended_outputs, person, root, uid=uid)
        except (NotCaptured, OSError) as error:
            return UserFiles(wanted.rank, log_problem=name_of(str(error)))
        return UserFiles(wanted.rank, tuple(lines), log_files=tuple(files))
    log_files: tuple[tuple[int, int], ...] = ()
    log: tuple[str, ...] | None = None
    sources: tuple[SourceLine, ...] = ()
    log_problem = sources_problem = ""
    try:
        with ProcessDirectory(wanted.pid) as process:
            if process.stat().start_ticks != wanted.start_ticks:
                raise ProcessLookupError("its pid belongs to another process now")
            try:
                log = tuple(read_tail(process, person))
                log_files = tuple(files_of(process))
            except NotCaptured as error:
                log_problem = name_of(f"{error}. {error.help}")
            except OSError as error:
                log_problem = f"its log cannot be read as its own user: {error.strerror}"
            try:
                sources = tuple(read_lines(process, wanted.lines, person, uid=uid))
            except OSError as error:
                sources_problem = f"its files cannot be read as its own user: {error.strerror}"
    except (OSError, ValueError) as error:
        log_problem = sources_problem = name_of(f"the process has ended ({error})")
    return UserFiles(wanted.rank, log, log_problem, log_files, sources, sources_problem)


def main() -> None:
    """Read a request from standard input and write what was found, one rank a line, as the user that the starter made
    us."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=UserFilesRequest)
    roots: dict[str, int] = {}  # opened before: to be led there takes rights that this user has not
    for wanted in request.ranks:
        if wanted.ended_outputs is not None and wanted.mount_namespace not in roots:
            with contextlib.suppress(OSError):
                roots[wanted.mount_namespace] = open_root_in(wanted.mount_namespace, request.living)
    person = become(request.uid, request.gid, request.groups)
    answer = json_of([_find(wanted, person, roots, request.uid) for wanted in request.ranks])
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    as_child(main)
