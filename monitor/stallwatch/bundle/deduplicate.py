"""Which files belong to one incident: folders and looks may be of several, of former lives of the same job too."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from stallwatch.bundle.description import Description
from stallwatch.bundle.discovery import Found, readable

# What is read anew at each look, of the process that is the rank at that time.
OF_A_LOOK: Final = frozenset({"recorder", "stacks", "process", "profile", "usage", "heartbeat", "scene", "sources"})


class Parsed(msgspec.Struct):
    """A file that was read, with its value."""

    file: Found
    kind: str
    value: Any


def older_incidents(
    parts: Mapping[int, Mapping[str, object]], descriptions: Mapping[str, Description]
) -> list[tuple[str, list[str]]]:
    """Given the folders that tell of each rank, return those to drop because a newer one tells of the same rank, each
    with what to say of it. Loose files ("") belong to every folder."""
    ranks: dict[str, set[int]] = {}
    for rank, folders in parts.items():
        for folder in folders:
            ranks.setdefault(folder, set()).add(rank)

    def newest_first(folder: str) -> tuple[int, int, str]:
        captured = descriptions[folder].captured_at_ns.values() if folder in descriptions else ()
        return -max(captured, default=0), -len(ranks[folder]), folder

    kept: list[str] = []
    dropped = []
    for folder in sorted(ranks.keys() - {""}, key=newest_first):
        twice = {rank: other for other in kept for rank in ranks[other] & ranks[folder]}
        if not twice:
            kept.append(folder)
            continue
        told = [
            f"rank {rank} is in 2 of the given folders; {readable(other)}, the newer, is used and not "
            f"{readable(folder)}. Are these parts of one incident?"
            for rank, other in sorted(twice.items())
        ]
        dropped.append((folder, told))
    return dropped


def looks_of_former_lives(parts: Iterable[Parsed], pid: int | None) -> frozenset[int]:
    """Given a rank's files and its pid by the folder's description, return the looks at other processes."""
    seen: dict[int, tuple[int, int]] = {}  # look: when, which process
    for part in parts:
        if part.kind == "process" and part.value.pid is not None:
            seen[part.file.look] = part.value.at_ns or 0, part.value.pid
    own = pid if any(pid == other for _, other in seen.values()) else None
    if own is None and seen:
        _, own = max((at_ns, look) for look, (at_ns, _) in seen.items())
        own = seen[own][1]
    return frozenset(look for look, (_, other) in seen.items() if other != own)
