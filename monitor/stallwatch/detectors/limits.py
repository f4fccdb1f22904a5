"""How long a rank may stand still before we look: learned from its own past, by quantiles that no outlier moves."""

import math
from functools import cached_property

import msgspec

from stallwatch.clock import SECOND_NS

_KEPT = 128  # recent times: two minutes of one-second steps, and a sort that costs microseconds
_KEPT_LONG = 8
_LEARNED_AFTER = 6  # fewer say nothing about a tail
_LONG = 4.0  # times the median: a step of another kind (evaluation, checkpoint), kept apart
_LONG_EXTRA_SECONDS = 5.0
_HABIT_CAP_SECONDS = 60.0  # looking is cheap: a rare long step makes us blind for a minute at most


class Times(msgspec.Struct, frozen=True, dict=True):
    """Durations of one kind, nanoseconds, newest last; `long` holds those of a second mode."""

    recent: tuple[int, ...] = ()
    long: tuple[int, ...] = ()

    @property
    def learned(self) -> bool:
        """Whether enough was seen to set a limit by."""
        return len(self.recent) >= _LEARNED_AFTER

    def quantile(self, share: float) -> int:
        """Return the nearest-rank quantile of the recent ones; of few never the largest, which may be the one
        outlier."""
        place = math.ceil(share * len(self._ordered)) - 1
        if share > 0.5 and len(self._ordered) > 1:
            place = min(place, len(self._ordered) - 2)
        return self._ordered[max(place, 0)]

    @cached_property  # what sets a limit at this tick is what the next tick's steps are measured by
    def _ordered(self) -> list[int]:
        return sorted(self.recent)

    @cached_property  # asked by who looks for stalls and by who shows ranks, of the same times
    def limits(self) -> "dict[tuple[str, float], Limit | None]":
        """What `limit_of` has said of these times, by the words and the floor that it was asked with."""
        return {}


class Limit(msgspec.Struct, frozen=True):
    """How long is too long, and why. Put into words when somebody asks: most limits are only compared."""

    seconds: float
    why: str  # with places for what it is made of: "4 × the 95th percentile of {}, {:.2f} s"
    of: tuple[str | float, ...] = ()
    learned: bool = True

    @property
    def reason(self) -> str:
        """ "4 × the 95th percentile of the step, 2.05 s"."""
        return self.why.format(*self.of)


def learn(times: Times, durations_ns: tuple[int, ...]) -> Times:
    """Given new durations, oldest first, return the times with them."""
    if not durations_ns:
        return times
    long = times.long
    if times.learned:
        bar = _LONG * times.quantile(0.5)
        long = (*long, *(d for d in durations_ns if d > bar))[-_KEPT_LONG:]
    return Times((*times.recent, *durations_ns)[-_KEPT:], long)


def limit_of(times: Times, what: str, floor_seconds: float) -> Limit | None:
    """Return the limit that `times` teach, None before enough were seen.

    Four times the 95th percentile covers jitter of short steps; for long ones, which vary less, half as much again and
    some seconds do, so that a job with steps of a minute is looked at within two.
    """
    asked = what, floor_seconds
    if asked not in times.limits:
        times.limits[asked] = _limit_of(times, what, floor_seconds)
    return times.limits[asked]


def _limit_of(times: Times, what: str, floor_seconds: float) -> Limit | None:
    if not times.learned:
        return None
    tail = times.quantile(0.95) / SECOND_NS
    seconds, why, of = 4 * tail, "4 × the 95th percentile of {}, {:.2f} s", (what, tail)
    if 1.5 * tail + _LONG_EXTRA_SECONDS < seconds:
        seconds = 1.5 * tail + _LONG_EXTRA_SECONDS
        why = f"{_LONG_EXTRA_SECONDS:.0f} s and 1.5 × the 95th percentile of {{}}, {{:.1f}} s"
    if len(times.long) > 1:  # once is an outlier, twice a habit
        habit = sorted(times.long)[-2] / SECOND_NS
        longest = min(2 * habit, max(_HABIT_CAP_SECONDS, seconds))
        if longest > seconds:
            seconds, why, of = longest, "2 × the {1:.1f} s seen more than once for {0}", (what, habit)
    if seconds < floor_seconds:
        seconds, why = floor_seconds, "the floor; " + why
    return Limit(seconds, why, of)
