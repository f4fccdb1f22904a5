"""What the privileged side may be asked for, and what of a request is passed on: words that are checked here. Standard
library only."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

MOST_RANKS = 1024
_MOST_PIDS = 1 << 22  # PID_MAX_LIMIT
_MOST_PROFILE_SECONDS = 12  # of a look, which has 25 s for all that it does


class Verb(NamedTuple):
    """Something that the privileged side may be asked for."""

    module: str  # its `main` is given the arguments
    most: int  # of them alive at a time
    words: Callable[[Mapping[str, Any]], dict[str, Any]] | None  # what of a request is passed on, checked
    part: str  # of the settings, which its child is given
    seconds: str = ""  # the key of `part` with its deadline; none: it lives as long as the connection


class NotAllowed(ValueError):
    """A request that no verb allows."""


def number_of(request: Mapping[str, Any], key: str, low: int, high: int) -> int:
    """A whole number of a request within bounds; raise NotAllowed."""
    value = request.get(key)
    if type(value) is not int or not low <= value <= high:
        raise NotAllowed(f"{key} is no number from {low} to {high}")
    return value


def _ranks(request: Mapping[str, Any]) -> list[tuple[int, int]]:
    ranks = request.get("ranks")
    if not isinstance(ranks, list) or not 1 <= len(ranks) <= MOST_RANKS:
        raise NotAllowed(f"ranks are no list of 1 to {MOST_RANKS}")
    found = []
    for rank in ranks:
        if not isinstance(rank, list) or len(rank) != 2 or any(type(part) is not int for part in rank):
            raise NotAllowed("a rank is a pid and start ticks")
        pid, ticks = rank
        if not (1 <= pid <= _MOST_PIDS and 0 <= ticks < 1 << 63):
            raise NotAllowed("a rank is a pid and start ticks")
        found.append((pid, ticks))
    return found


def _look(request: Mapping[str, Any]) -> dict[str, Any]:
    seconds = number_of({"profile_seconds": 0, **request}, "profile_seconds", 0, _MOST_PROFILE_SECONDS)
    sites = number_of({"call_sites": 0, **request}, "call_sites", 0, 1)
    look = number_of(request, "look", 1, 1000)
    return {"look": look, "ranks": _ranks(request), "profile_seconds": seconds, "call_sites": sites}


def _sample(request: Mapping[str, Any]) -> dict[str, Any]:
    at_ns = number_of(request, "at_ns", 0, (1 << 63) - 1)
    return {"kind": "sample", "at_ns": at_ns, "ranks": _ranks(request)}


# Each sensor of our own settings, by its name. The driver's asks for no capability: it has its devices here, and who
# talks to the network then needs none.
SENSOR = Verb("stallwatch.sensors.child", 2, None, "sensors")
VERBS = {
    "look": Verb("stallwatch.captures.child", 32, _look, "captures", "seconds"),
    "sample": Verb("stallwatch.captures.child", 32, _sample, "captures", "sample_seconds"),
}
