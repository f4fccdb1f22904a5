"""Room on file systems: asked in a child, for one that does not answer (NFS) keeps its asker for ever."""

import os
import sys
import time

import msgspec

from stallwatch.doctor.live.lost import run_child
from stallwatch.doctor.surroundings import Space
from stallwatch.model.reading import Known, Unavailable

_SPACE = msgspec.json.Decoder(Space)

_SECONDS = 3.0  # a new interpreter on a busy node needs some of it


class NodeDisks:
    def space(self, path: str) -> Known[Space] | Unavailable:
        reading = run_child(
            (sys.executable, "-m", "stallwatch.doctor.live.disks", path), _SECONDS, what=f"the file system of {path}"
        )
        if not isinstance(reading, Known):
            return reading
        if reading.value.exit_code != 0:
            return Unavailable(reading.value.stderr.strip() or f"{path} cannot be asked", time.monotonic_ns())
        return Known(_SPACE.decode(reading.value.stdout), time.monotonic_ns())


def main(path: str) -> int:
    try:
        room = os.statvfs(path)
        writable = os.access(path, os.W_OK | os.X_OK) and not room.f_flag & os.ST_RDONLY
    except OSError as error:
        sys.stderr.write(f"{path}: {error.strerror}")
        return 1
    space = Space(room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize, writable)
    sys.stdout.write(msgspec.json.encode(space).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
