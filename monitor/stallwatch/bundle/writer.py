"""Writes an incident bundle: every file whole or not there, so that a bundle is readable at every moment."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stallwatch.encoding import json_of
from stallwatch.model.evidence import ProcessLook
from stallwatch.model.process import STOPPED
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import NodeSnapshot, RankSample
from stallwatch.model.verdict import Report
from stallwatch.node.atomic_file import write_atomically

if TYPE_CHECKING:
    from stallwatch.config import Config

SCHEMA_VERSION = 1
# Of a timeline at a time: on its way to the disk's child it is held six times over, and that of a node with 50 ranks
# has 10 MB. Whole, each incident took 70 MB for a moment, of which malloc kept what lay below anything newer.
_PIECE_BYTES = 2 << 20


def append_to(path: Path, data: bytes) -> None:
    """Add `data` to the end of a file that is there. Raise OSError; its last line may be cut then."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def write_json(path: Path, value: Any) -> None:
    """Write what msgspec can encode, indented for the person who opens it."""
    write_atomically(path, as_json(value))


def as_json(value: Any) -> bytes:
    """A value as indented JSON with a newline at its end."""
    return msgspec.json.format(json_of(value), indent=1) + b"\n"


def _pieces(snapshots: Sequence[NodeSnapshot]) -> Iterator[bytes]:
    """Their lines, some together."""
    piece: list[bytes] = []
    for snapshot in snapshots:
        piece.append(json_of(snapshot) + b"\n")
        if sum(map(len, piece)) >= _PIECE_BYTES:
            yield b"".join(piece)
            piece = []
    if piece:
        yield b"".join(piece)


class BundleWriter:
    """The daemon's half of a bundle; the files below ranks/ and nodes/ are the captures'."""

    def __init__(
        self,
        folder: Path,
        node: str,
        write: Callable[[Path, bytes], None] = write_atomically,
        append: Callable[[Path, bytes], None] = append_to,
    ) -> None:
        """`write` makes folders that are missing (0700: stacks and logs of other people's jobs). It, `append` and so
        every method here may raise OSError."""
        self._append = append
        self.folder = folder
        self._node = node
        self._write = write

    def _write_json(self, name: str, value: Any) -> None:
        self._write(self.folder / name, as_json(value))

    def write_description(
        self,
        ranks: Sequence[RankSample],
        *,
        incident_id: str,
        wall_ns: int,
    ) -> None:
        """Write bundle.json for the ranks of one job that this node sees; again at every look."""
        heartbeats = {r.rank: r.heartbeat.value for r in ranks if hasattr(r.heartbeat, "value")}
        recorders = {g.recorder for h in heartbeats.values() for g in h.groups if g.enqueued > 0}
        description = {
            "schema_version": SCHEMA_VERSION,
            "incident_id": incident_id,
            "training_job": ranks[0].job.training_job if ranks else None,
            "epoch": ranks[0].job.epoch if ranks else None,
            "owner": ranks[0].job.owner if ranks else None,
            "world_size": max((r.world_size for r in ranks), default=None),
            # A job with both has its gradients in NCCL.
            "backend": "nccl" if "nccl" in recorders else "gloo" if "gloo" in recorders else None,
            "nodes": {self._node: sorted({r.rank for r in ranks})},
            "pids": {str(r.rank): r.pid for r in ranks},
            "captured_at_ns": {str(r.rank): wall_ns for r in ranks},
            "last_step": {str(rank): h.step for rank, h in heartbeats.items() if h.step is not None},
        }
        self._write_json("bundle.json", description)

    def write_stopped(self, ranks: Sequence[RankSample]) -> None:
        """Write the process.json of each rank that is stopped, as the sensor saw it, before the first look: a stop is
        judged when no child of ours may have come to anything yet. The look's own takes its place."""
        for rank in ranks:
            if isinstance(rank.process, Known) and rank.process.value.state in STOPPED:
                seen = rank.process.value
                look = ProcessLook(
                    source=f"/proc/{seen.pid}",
                    look=1,
                    pid=seen.pid,
                    state=seen.state,
                    exit_code=None,
                    exit_signal=None,
                    wchan=seen.wchan,
                    cpu_ticks=seen.cpu_ticks,
                    threads=(),
                    tracer_pid=seen.tracer_pid,
                    at_ns=rank.process.at_ns,
                )
                self.write_process(rank.rank, look)

    def write_process(self, rank: int, look: ProcessLook, name: str = "process.json") -> None:
        """Write what is known of a rank's process without a look of the captures."""
        self._write_json(f"ranks/{rank}/{name}", look)

    def write_timeline(self, snapshots: Sequence[NodeSnapshot], *, goes_on: bool = False) -> int:
        """Write timeline.jsonl: the snapshots around the incident, oldest first, one a line; what `goes_on` is added to
        what is there. Return its bytes."""
        size, put = 0, self._append if goes_on else self._write
        for piece in _pieces(snapshots):
            put(self.folder / "timeline.jsonl", piece)
            size, put = size + len(piece), self._append
        return size

    def write_config(self, config: "Config") -> None:
        """Write config.json, the effective configuration without its secrets."""
        from stallwatch.config import without_secrets  # 1.3 MiB that the disk's child need not hold

        self._write_json("config.json", without_secrets(config))

    def write_verdict(self, report: Report) -> None:
        """Write verdict.json. Last: who sees it finds everything else in place."""
        self._write_json("verdict.json", report)
