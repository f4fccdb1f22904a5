"""An incident's timeline.jsonl as the page draws it: what each rank and each GPU did, look by look."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from stallwatch.clock import iso
from stallwatch.formats.tolerant import NOT_JSON
from stallwatch.model.gpu import Gpu
from stallwatch.model.snapshot import GroupCounter, JobKey
from stallwatch.progress.tick_states import TickState, tick_states

_LARGEST_BYTES = 64 << 20
_MOST_LOOKS = 240
_LETTERS: dict[TickState, str] = {
    "stepped": "s", "in_phase": "p", "pending": "w", "idle": "n", "starting": "b", "hook_stands": "h", "ended": "x",
    "unknown": "?",
}  # fmt: skip

# Only what is drawn: a whole snapshot takes four times as long to decode. Field names are those of model.snapshot.


class _Beat(msgspec.Struct, frozen=True):
    step: int | None = None
    phase: str = ""
    pulse_count: int = 0
    dump_started_ns: int | None = None
    groups: tuple[GroupCounter, ...] = ()


class _HeartbeatReading(msgspec.Struct, frozen=True):
    type: str
    value: _Beat | None = None


class _Rank(msgspec.Struct, frozen=True):
    job: JobKey
    rank: int
    heartbeat: _HeartbeatReading
    end: object = None


class _GpuReading(msgspec.Struct, frozen=True):
    type: str
    value: tuple[Gpu, ...] = ()


class _Tick(msgspec.Struct, frozen=True):
    wall_ns: int
    ranks: tuple[_Rank, ...]
    gpus: _GpuReading


class RankBand(msgspec.Struct, frozen=True):
    """One letter a look: s made a step, p in a phase, w stood in a collective, n neither (no step, nothing pending),
    b has not made its first step, h its hook stood still too, x had ended, ? unknown or not there."""

    rank: int
    looks: str


class GpuCurve(msgspec.Struct, frozen=True):
    """A GPU over the time of an incident."""

    index: int
    uuid: str
    busy: tuple[float | None, ...]  # 0 to 1; None: unknown
    power_watts: tuple[float | None, ...]


class TimelineDocument(msgspec.Struct, frozen=True):
    """The time around an incident as the API shows it."""

    schema_version: int
    incident_id: str
    at: tuple[str, ...]
    ranks: tuple[RankBand, ...]
    gpus: tuple[GpuCurve, ...]


def read_timeline(incident_id: str, job: JobKey, bundle: str) -> TimelineDocument:
    """Given an incident's folder, return its timeline; an absent one is empty, of a huge one the end is drawn."""
    try:
        lines = _tail(Path(bundle) / "timeline.jsonl") if bundle else []
    except OSError:
        lines = []
    return drawn(incident_id, job, lines)


def _tail(path: Path) -> list[bytes]:
    with path.open("rb") as file:
        beginning = max(file.seek(0, 2) - _LARGEST_BYTES, 0)
        file.seek(beginning)
        lines = file.read(_LARGEST_BYTES).splitlines()
    return lines[1 if beginning else 0 :][-_MOST_LOOKS:]


def drawn(incident_id: str, job: JobKey, lines: Iterable[bytes]) -> TimelineDocument:
    """Given the lines of a timeline.jsonl, oldest first, return what to draw of one job. A line that is cut, or of a
    time that no calendar has, is left out."""
    looks, at = [], []
    for line in lines:
        try:
            look = _LINE.decode(line)
            at.append(iso(look.wall_ns))
        except (*NOT_JSON, OverflowError, ValueError, OSError):
            continue
        looks.append(look)
    of_rank = [{rank.rank: rank for rank in look.ranks if rank.job == job} for look in looks]
    ranks = sorted({rank for look in of_rank for rank in look})
    of_gpu = [{gpu.uuid: gpu for gpu in look.gpus.value} for look in looks]
    gpus = sorted({gpu.index: gpu for look in of_gpu for gpu in look.values()}.items())
    return TimelineDocument(
        1,
        incident_id,
        tuple(at),
        tuple(
            RankBand(rank, _band([look.get(rank) for look in of_rank], [look.wall_ns for look in looks]))
            for rank in ranks
        ),
        tuple(
            GpuCurve(
                gpu.index,
                gpu.uuid,
                tuple(_share(look.get(gpu.uuid)) for look in of_gpu),
                tuple(one.power_watts if (one := look.get(gpu.uuid)) else None for look in of_gpu),
            )
            for _, gpu in gpus
        ),
    )


def _band(looks: list[_Rank | None], at_ns: list[int]) -> str:
    beats = [look.heartbeat.value if look else None for look in looks]
    ended = [look is not None and look.end is not None for look in looks]
    return "".join(_LETTERS[state] for state in tick_states(beats, ended, at_ns))


def _share(gpu: Gpu | None) -> float | None:
    return gpu.utilization_percent / 100 if gpu and gpu.utilization_percent is not None else None


_LINE = msgspec.json.Decoder(_Tick)
