"""Room on file systems: asked in a child, for one that does not answer (NFS) keeps its asker for ever."""

import os
import sys
import time

import msgspec

from stallwatch.doctor.check import Undetermined
from stallwatch.doctor.live.lost import Promise, run_child
from stallwatch.doctor.surroundings import Space
from stallwatch.encoding import json_of
from stallwatch.model.reading import Known, Unavailable

_SPACE = msgspec.json.Decoder(Space)

_BUSY_SECONDS = 1.0
_SECONDS = 3.0  # a new interpreter on a busy node needs some of it


class NodeDisks:
    """Raise Undetermined where this node is so busy that a child comes to no answer about any file system."""

    def __init__(self) -> None:
        self._busy: Promise[float] | None = None  # how long the same takes of one that always answers

    def space(self, path: str) -> Known[Space] | Unavailable:
        """Return the room on a path's file system; Unavailable where the path cannot be asked or does not answer within
        seconds."""
        busy = self._busy = self._busy or Promise(_seconds_of_proc, _SECONDS, "the node")
        reading = run_child(_asking(path), _SECONDS, what=f"the file system of {path}")
        if not isinstance(reading, Known):
            took = busy.get()
            if not isinstance(took, Known) or took.value > _BUSY_SECONDS:
                raise Undetermined(f"the node is too busy to tell whether {path} answers")
            return reading
        if reading.value.exit_code != 0:
            return Unavailable(reading.value.stderr.strip() or f"{path} cannot be asked", time.monotonic_ns())
        return Known(_SPACE.decode(reading.value.stdout), time.monotonic_ns())


def _asking(path: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "stallwatch.doctor.live.disks", path)


def _seconds_of_proc() -> float:
    began = time.monotonic()
    run_child(_asking("/proc"), _SECONDS)
    return time.monotonic() - began


def main(path: str) -> int:
    """Print a path's Space as JSON and return 0; write why not and return 1 where the kernel refuses."""
    try:
        room = os.statvfs(path)
        writable = os.access(path, os.W_OK | os.X_OK) and not room.f_flag & os.ST_RDONLY
    except OSError as error:
        sys.stderr.write(f"{path}: {error.strerror}")
        return 1
    space = Space(room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize, writable)
    sys.stdout.write(json_of(space).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
