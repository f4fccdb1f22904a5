"""The meeting places of simulated stories: in memory, in a directory, or a redis-server whose clock is ours."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stallwatch.fleet.directory_place import DirectoryPlace
from stallwatch.fleet.place import MeetingPlace
from tests.unit.fleet.memory_place import MemoryPlace

PlaceKind = Literal["memory", "directory", "redis"]


@dataclass
class Places:
    """How a node opens the meeting place, how the place forgets all, and how it is told the time."""

    of_node: Callable[[int, str], MeetingPlace]  # given the node, and which key it signs with
    wipe: Callable[[], None]
    set_time: Callable[[float], None] = lambda now: None


# Given the clock of a story, in seconds.
MakePlaces = Callable[[Callable[[], float]], Places]


def in_memory(clock: Callable[[], float]) -> Places:
    """One that does what the real ones promise (tests/unit/fleet/test_place.py)."""
    memory = MemoryPlace(clock)
    return Places(lambda number, key: memory.of_key(key), memory.lose_everything)


@contextlib.contextmanager
def places_of(kind: PlaceKind) -> Iterator[MakePlaces]:
    """What makes the places of a story. Raise FileNotFoundError for what this machine lacks."""
    with tempfile.TemporaryDirectory() as name:
        if kind == "redis":
            from tests.chaos.redis_in_time import redis_in_time

            with redis_in_time(Path(name)) as server:
                yield lambda clock: server.places()
        elif kind == "directory":
            yield lambda clock: _in_directory(Path(tempfile.mkdtemp(dir=name)), clock)
        else:
            yield in_memory


def _in_directory(root: Path, clock: Callable[[], float]) -> Places:
    """Each node's own view of it; its files are never lost."""
    return Places(lambda number, key: DirectoryPlace(root, clock, key), lambda: None)
