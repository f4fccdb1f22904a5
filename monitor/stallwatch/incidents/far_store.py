"""The incident store as the daemon uses it: files are read and written by children that may be lost to a dead disk."""

from collections.abc import Collection
from pathlib import Path

import msgspec

from stallwatch.bundle.writer import as_json
from stallwatch.incidents.incident_names import is_incident_id
from stallwatch.incidents.store import FILE, Left
from stallwatch.model.incident import Incident
from stallwatch.node.disk import Disk

_INCIDENT = msgspec.msgpack.Decoder(Incident | None)
_INCIDENTS = msgspec.msgpack.Decoder(tuple[Incident, ...])
_LEFT = msgspec.msgpack.Decoder(Left)
_NAMES = msgspec.msgpack.Decoder(tuple[str, ...])

# The loop waits this long for a disk, once; then it is known to hang.
LOOP_SECONDS = 2.0
_PEOPLE_SECONDS = 5.0  # who asks for past incidents may wait longer than the loop
_START_SECONDS = 15.0


class FarStore:
    """Satisfies loop.protocols.Store. The loop and people have a child each: neither waits for what the other reads."""

    def __init__(self, state_directory: Path) -> None:
        self._directory = str(state_directory)
        self.folder = state_directory / "incidents"
        self._disk = Disk(self._directory, LOOP_SECONDS)
        self._people = Disk(self._directory, _PEOPLE_SECONDS)

    def be_ready(self) -> None:
        """Have the child started that the loop's next call needs; does not wait."""
        self._disk.be_ready()

    def rest(self) -> None:
        """End children that are not used: nothing is written on a node without a job."""
        self._disk.rest()
        self._people.rest()

    def prepare(self) -> None:
        """Create the folder. Raise DiskHangs; OSError also when it is there and somebody else's."""
        self._disk.call("prepare", self._directory, seconds=_START_SECONDS)

    def save(self, incident: Incident) -> None:
        """Keep the state of an incident, atomically."""
        self._disk.write(self.folder / incident.incident_id / FILE, as_json(incident))

    def write(self, path: Path, data: bytes) -> None:
        """Write a file whole, or not at all."""
        self._disk.write(path, data)

    def append(self, path: Path, data: bytes) -> None:
        """Append to a file, in the child. Raise OSError, DiskHangs where no answer comes."""
        self._disk.call("append", str(path), data)

    def problem(self) -> str:
        """Why the disk does not answer; "" while it does."""
        return self._disk.problem()

    def left(self, past: int) -> Left:
        """What an earlier daemon left: open incidents, and so many past ones."""
        return _LEFT.decode(self._disk.call("left", self._directory, past, seconds=_START_SECONDS))

    def discard(self, incident_id: str) -> None:
        """Remove an incident with its bundle."""
        self._disk.call("discard", self._directory, incident_id)

    def take_in(self, bundle: Path) -> None:
        """Make a bundle that lies elsewhere one of the store's."""
        self._disk.call("take_in", self._directory, str(bundle))

    def take_in_all(self, spare: Path) -> tuple[str, ...]:
        """As IncidentStore does; `spare` is the directory that has a folder of incidents."""
        names = self._disk.call("take_in_all", self._directory, str(spare), seconds=_START_SECONDS)
        return _NAMES.decode(names)

    def retain(self, keep_bytes: int, oldest_wall_ns: int, keep: Collection[str]) -> tuple[str, ...]:
        """Remove what is older or beyond the size, but `keep`; return the ids that went."""
        return _NAMES.decode(self._disk.call("retain", self._directory, keep_bytes, oldest_wall_ns, sorted(keep)))

    def load(self, incident_id: str) -> Incident | None:
        """The incident of that id; None where none is kept."""
        if not is_incident_id(incident_id):
            return None
        incident: Incident | None = _INCIDENT.decode(self._for_people("load", self._directory, incident_id))
        return incident

    def newest(self, limit: int) -> tuple[Incident, ...]:
        """The incidents that began last, newest first."""
        return _INCIDENTS.decode(self._for_people("newest", self._directory, limit))

    def _for_people(self, name: str, *arguments: str | int) -> bytes:
        if self._people.pid is None:
            self._people.call("read", "/dev/null")  # its start has a time of its own
        return self._people.call(name, *arguments)

    def close(self) -> None:
        """End the children."""
        self._disk.close()
        self._people.close()
