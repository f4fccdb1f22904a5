"""How a process ended that is not our child: the kernel first, then what the process and its launcher left behind."""

import contextlib
import fcntl
import json
import os
import struct
from functools import partial
from signal import SIGKILL
from typing import NamedTuple

from stallwatch.formats.outside_text import path_of
from stallwatch.model.process import ENDED
from stallwatch.model.snapshot import Heartbeat, Outputs, ProcessEnd
from stallwatch.node import untrusted
from stallwatch.node.aside import OneCallAtATime
from stallwatch.node.cgroups import events_file, memory_group, out_of_memory_kills
from stallwatch.node.mount_roots import mount_namespace, open_root_in
from stallwatch.node.procfs import wait_status
from stallwatch.sensors.processes import ProcessWatch

# linux/pidfd.h since 6.15: PIDFD_GET_INFO with PIDFD_INFO_EXIT tells the exit of a process that was reaped already.
_PIDFD_GET_INFO = 0xC040FF0B
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_INFO = struct.Struct("QQ11Ii")
_ERROR_FILE_LIMIT_BYTES = 1 << 20
# Where it lies is the job's to say, a dead file server among others: what does not answer costs no other rank's end.
_error_files = OneCallAtATime[bool]()
_ERROR_FILE_SECONDS = 1.0


class Traces(NamedTuple):
    """What has to be noted while a process lives, to explain its end."""

    error_file: str  # TORCHELASTIC_ERROR_FILE, "" when it has none
    memory_events: str  # cgroup file that counts out-of-memory kills, "" when there is none
    out_of_memory_kills: int | None
    outputs: Outputs | None = None
    mount_namespace: str = ""  # where the paths lead
    uid: int | None = None  # whose process it was


def note_traces(watch: ProcessWatch, cgroups: str = "/sys/fs/cgroup") -> Traces:
    """Note where a process' end will leave its traces; nothing here can fail. Its error file becomes known later."""
    memory_events = _memory_events(watch, cgroups)
    namespace = ""
    with contextlib.suppress(OSError):
        namespace = mount_namespace(watch.directory)
    uid = None
    with contextlib.suppress(OSError, ValueError):
        uid = watch.directory.status().uids[0]
    return Traces("", memory_events, _kills(memory_events), _outputs(watch), namespace, uid)


def _outputs(watch: ProcessWatch) -> Outputs | None:
    """By the links alone: the files may lie on a file system that does not answer."""
    paths: dict[str, None] = {}
    directory = watch.directory
    try:
        status = directory.status()
        namespace = mount_namespace(directory)
        for number in (1, 2):
            path = os.readlink(f"fd/{number}", dir_fd=directory.descriptor)
            if path.startswith("/") and not path.startswith("/dev/") and not path.endswith(" (deleted)"):
                paths[path_of(path)] = None
    except (OSError, ValueError):
        return None
    return Outputs(tuple(paths), status.uids[0], status.gids[0], status.groups, namespace) if paths else None


def explain(
    watch: ProcessWatch, pidfd: int | None, traces: Traces, heartbeat: Heartbeat | None, at_ns: int
) -> ProcessEnd:
    """Return the end of a process as the best witness tells it: the zombie's own status, the pidfd of a reaped one,
    the hook's last words, torchrun's error file, the cgroup's count of kills; else unknown, which is not 0."""
    code, signal, source = _kernel(watch, pidfd)
    if source == "unknown" and heartbeat is not None and heartbeat.ended:
        code, source = heartbeat.exit_code, "hook"
    kills = _kills(traces.memory_events)
    killed = None if kills is None or traces.out_of_memory_kills is None else kills > traces.out_of_memory_kills
    if source == "unknown" and _error_files.call(partial(_raised, traces), _ERROR_FILE_SECONDS, False):
        code, source = 1, "torchrun error file"
    if source == "unknown" and killed:
        signal, source = int(SIGKILL), "cgroup"
    # Somebody else's kill in the same cgroup says nothing about a process that ended by itself.
    out_of_memory = killed if signal == SIGKILL else None if source == "unknown" else False
    return ProcessEnd(at_ns=at_ns, exit_code=code, exit_signal=signal, source=source, out_of_memory=out_of_memory)


def _kernel(watch: ProcessWatch, pidfd: int | None) -> tuple[int | None, int | None, str]:
    try:
        stat = watch.directory.stat()
        # Without ptrace access the kernel writes 0, which would read as a clean exit.
        # "X": its parent is about to have reaped it. The kernel tells how it ended by its pidfd a moment later.
        if stat.state in ENDED and (stat.exit_status or watch.may_inspect()):
            return *wait_status(stat.exit_status), "zombie"
    except (OSError, ValueError):
        pass  # reaped between the wake-up and the read
    if pidfd is not None:
        answer = bytearray(_PIDFD_INFO.pack(_PIDFD_INFO_EXIT, *([0] * 13)))
        try:
            fcntl.ioctl(pidfd, _PIDFD_GET_INFO, answer)
        except OSError:
            return None, None, "unknown"
        mask, *_, status = _PIDFD_INFO.unpack(answer)
        if mask & _PIDFD_INFO_EXIT:
            return *wait_status(status), "pidfd"
    return None, None, "unknown"


def _raised(traces: Traces) -> bool:
    """Whether torchrun's @record left an exception of this user there: a JSON object with a message. Another's file may
    lie where our rights reach and the rank's do not."""
    if not traces.error_file.startswith("/"):
        return False
    users = () if traces.uid is None else (traces.uid,)
    try:
        root = open_root_in(traces.mount_namespace)
        try:
            descriptor = untrusted.open_in_root(root, traces.error_file, _ERROR_FILE_LIMIT_BYTES, users=users)
        finally:
            os.close(root)
        with open(descriptor, "rb") as file:
            is_own = os.fstat(descriptor).st_uid == traces.uid
            return is_own and "message" in json.loads(file.read(_ERROR_FILE_LIMIT_BYTES))
    except (OSError, untrusted.FileRefused, ValueError, TypeError, RecursionError):
        return False


def _memory_events(watch: ProcessWatch, cgroups: str) -> str:
    """The file of the process' own cgroup that counts kills, "" when there is none."""
    try:
        group = memory_group(os.fsdecode(watch.directory.read("cgroup")), cgroups)
    except OSError:
        return ""
    events = "" if group is None else events_file(group)
    return events if _kills(events) is not None else ""


def _kills(memory_events: str) -> int | None:
    return out_of_memory_kills(memory_events) if memory_events else None
