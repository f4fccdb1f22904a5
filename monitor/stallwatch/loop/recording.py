"""The timeline of each incident: what came before it, and how it went on, for as long as something is noted of it."""

from stallwatch.bundle.bounds import LONGEST_TIMELINE_BYTES
from stallwatch.bundle.writer import BundleWriter
from stallwatch.loop.ring import SnapshotRing

_MOST_BYTES = LONGEST_TIMELINE_BYTES // 2  # what is longer than that tells nothing new of a job that stands


class Recording:
    """Writes the snapshots around an incident into its bundle, each once."""

    def __init__(self, ring: SnapshotRing) -> None:
        self._ring = ring
        self._written: dict[str, tuple[int, int]] = {}  # by folder: CLOCK_MONOTONIC of the last snapshot, bytes

    def write(self, writer: BundleWriter) -> None:
        """Write all that the ring holds, or what has come since the last time: what was written of the time before an
        incident stays, however long that lasts. Raise OSError."""
        last_ns, size = self._written.get(str(writer.folder), (None, 0))
        snapshots = [one for one in self._ring.all() if last_ns is None or one.at_ns > last_ns]
        if not snapshots or size > _MOST_BYTES:
            return
        self.end(writer)  # unless it succeeds: then the whole is written the next time
        size += writer.write_timeline(snapshots, goes_on=last_ns is not None)
        self._written[str(writer.folder)] = snapshots[-1].at_ns, size

    def has_begun(self, writer: BundleWriter) -> bool:
        """Whether the bundle has any."""
        return str(writer.folder) in self._written

    def end(self, writer: BundleWriter) -> None:
        """Nothing more is to come."""
        self._written.pop(str(writer.folder), None)
