"""What a bundle tells of its own past: the timeline around the incident, the configuration that was in force, and the
incident as the daemon kept it. Anybody may have written it: it is read as all of a bundle is, by children."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from stallwatch.bundle.child import OpenFile
from stallwatch.bundle.description import Description
from stallwatch.bundle.discovery import Found, readable
from stallwatch.bundle.file_kinds import KINDS, Snapshots
from stallwatch.bundle.reader import opener
from stallwatch.bundle.workers import DEFAULT_LIMITS, FileTask, Limits, Task, parse_all
from stallwatch.formats.tolerant import NOT_JSON
from stallwatch.model.evidence import Attempt
from stallwatch.model.incident import Incident
from stallwatch.model.snapshot import NodeSnapshot

_FILES: Final = (
    ("snapshots", "timeline.jsonl"),
    ("configuration", "config.json"),
    ("incident", "incident.json"),
    ("description", "bundle.json"),
)
_MOST_RANKS: Final = 512  # whose attempts are read: each of them is asked at every look


class History(msgspec.Struct, frozen=True):
    """What a bundle holds of the time around its incident: snapshots and the configuration in force."""

    snapshots: tuple[NodeSnapshot, ...]  # oldest first; none where there is no timeline
    configuration: Mapping[str, Mapping[str, Any]] | None  # by section and key, as some version wrote it
    incident: Incident | None
    description: Description
    attempts: tuple[Attempt, ...]  # of some ranks, and of the node: when looks were taken
    caveats: tuple[str, ...]


def read_history(folder: Path, limits: Limits = DEFAULT_LIMITS) -> History:
    """Given a bundle's folder, return what it tells of its past; what cannot be read is a caveat, and absent here."""
    said: dict[str, list[Any]] = {}
    caveats: list[str] = []
    paths = [(kind, folder / name) for kind, name in _FILES]
    paths += [("attempts", path) for path in sorted(folder.glob("ranks/*/attempts.json"))[:_MOST_RANKS]]
    paths += [("attempts", path) for path in sorted(folder.glob("nodes/*/attempts.json"))[:_MOST_RANKS]]
    tasks = []
    for kind, path in paths:
        try:
            size_bytes = path.lstat().st_size
        except OSError:
            continue  # whoever needs it says that it is not there
        file = Found(kind, path, readable(str(path.relative_to(folder))), str(folder), None, None, 1, size_bytes)
        done = partial(_done, file, said, caveats)
        tasks.append(Task([FileTask(OpenFile(kind, file.source, 1), size_bytes, opener(file), done)]))
    parse_all(tasks, limits)
    timeline: Snapshots = next(iter(said.get("snapshots", ())), Snapshots(()))
    if timeline.unreadable:
        lines = "1 line" if timeline.unreadable == 1 else f"{timeline.unreadable} lines"
        caveats.append(f"timeline.jsonl: {lines} of it cannot be used: no snapshot, or not later than the one before")
    return History(
        timeline.snapshots,
        next(iter(said.get("configuration", ())), None),
        next(iter(said.get("incident", ())), None),
        next(iter(said.get("description", ())), Description()),
        tuple(attempt for attempts in said.get("attempts", ()) for attempt in attempts),
        tuple(sorted(caveats)),
    )


def _done(file: Found, said: dict[str, list[Any]], caveats: list[str], value: msgspec.Raw | None, clause: str) -> None:
    if value is None:
        caveats.append(f"{file.source}: {clause}")
        return
    try:
        said.setdefault(file.kind, []).append(msgspec.msgpack.decode(value, type=KINDS[file.kind].result))
    except NOT_JSON as error:
        caveats.append(f"{file.source}: the process that read it answered nonsense ({error})")
