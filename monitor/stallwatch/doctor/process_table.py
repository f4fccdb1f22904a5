"""Processes by /proc: commands, states, parents, sockets held, environments. A fake /proc serves as well."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from stallwatch.hook.secrets import scrubbed_argv
from stallwatch.node.procfs import Stat, parse_stat

_LIMIT_BYTES = 1 << 20


class SocketHolder(NamedTuple):
    """A process that has a socket open."""

    pid: int
    command: str
    state: str
    parent_pid: int
    uid: int | None
    environment: dict[str, str]  # empty when it is not ours to read


def read(path: Path) -> bytes | None:
    """Return the first MiB of a file, None where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(_LIMIT_BYTES)
    except OSError:
        return None


def pids(proc: Path) -> tuple[int, ...]:
    """Return the ids of all processes, in order; empty where /proc cannot be listed."""
    try:
        return tuple(sorted(int(name) for name in os.listdir(proc) if name.isdigit()))
    except OSError:
        return ()


def stat_of(proc: Path, pid: int) -> Stat | None:
    """Return a process' stat, None where it is gone or its text is not understood."""
    data = read(proc / str(pid) / "stat")
    try:
        return parse_stat(data) if data else None
    except ValueError:
        return None


def process_state(proc: Path, pid: int) -> str:
    """R, S, D, T, Z …; "" when there is no such process."""
    stat = stat_of(proc, pid)
    return stat.state if stat else ""


def command_of(proc: Path, pid: int) -> str:
    """The command line for people, without secrets; a zombie has none but its name."""
    data = read(proc / str(pid) / "cmdline")
    if data:
        return " ".join(scrubbed_argv([part.decode("utf-8", "replace") for part in data.split(b"\0") if part]))
    stat = stat_of(proc, pid)
    return f"[{stat.command}]" if stat else ""


def environment_of(proc: Path, pid: int) -> dict[str, str]:
    """Variables at the start of a process; empty when they are not ours to read."""
    values = {}
    for entry in (read(proc / str(pid) / "environ") or b"").split(b"\0"):
        name, separator, value = entry.partition(b"=")
        if separator:
            values[name.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
    return values


def open_files(proc: Path, pid: int) -> Iterator[str]:
    """Targets of a process' descriptors ("socket:[123]", paths). The leader of a process whose main thread has ended is
    a zombie without descriptors: its other threads have them."""
    for folder in (proc / str(pid) / "fd", *_thread_folders(proc, pid)):
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            try:
                yield os.readlink(folder / name)
            except OSError:
                continue


def _thread_folders(proc: Path, pid: int) -> list[Path]:
    if process_state(proc, pid) != "Z":
        return []
    try:
        return [proc / str(pid) / "task" / tid / "fd" for tid in os.listdir(proc / str(pid) / "task")]
    except OSError:
        return []


def holders_of(proc: Path, inodes: set[int]) -> tuple[SocketHolder, ...]:
    """Every process that holds one of these sockets, as far as we may look."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    found = []
    for pid in pids(proc):
        if any(target in wanted for target in open_files(proc, pid)):
            stat = stat_of(proc, pid)
            found.append(
                SocketHolder(
                    pid=pid,
                    command=command_of(proc, pid),
                    state=stat.state if stat else "",
                    parent_pid=stat.parent_pid if stat else 0,
                    uid=uid_of(proc, pid),
                    environment=environment_of(proc, pid),
                )
            )
    return tuple(found)


def uid_of(proc: Path, pid: int) -> int | None:
    """Owner of a process (its effective user); None when it is gone."""
    try:
        return os.stat(proc / str(pid)).st_uid
    except OSError:
        return None


def ancestors(proc: Path, pid: int) -> tuple[int, ...]:
    """Parents of a process, the nearest first."""
    found: list[int] = []
    while (stat := stat_of(proc, pid)) and stat.parent_pid > 0 and stat.parent_pid not in found:
        pid = stat.parent_pid
        found.append(pid)
    return tuple(found)
