"""How often the main thread of a process without a hook is woken while it trains, and how much it computes: its pace.

Short steps may take next to no processor time, a wait may poll (NCCL's with a time-out 100 times a second) or spin:
neither wakes nor processor time alone tell training from these. Both together, for some seconds, as they were before,
do: 16 to 40 wakes a second in training, and a poll that is woken as often computes far less, or more.
"""

import msgspec

from stallwatch.progress.thread_levels import SPINNING_WAKES

WINDOW_NS = 2_000_000_000
STANDS_NS = 5_000_000_000  # who was not seen at its pace for so long is not at it
_LIKE = 2.0  # times as much, or a part as large
_LEAST_SHARE = 0.25  # of the usual processor time: who trains alone for a while, or on less, is at its pace
_WINDOWS = 3  # in a row make a pace
_TICKS = 5  # at which it was seen to work, of these
_BACK = 3  # windows in a row: who stood goes on, and that is no blip
_AVERAGED = 16


class Level(msgspec.Struct, frozen=True):
    """What some windows in a row had in common."""

    wakes: float  # a second
    share: float  # of a core
    since_ns: int
    windows: int = 1
    worked: int = 0  # ticks at which it was seen to work

    def is_like(self, wakes: float, share: float) -> bool:
        """Whether so much is about as much."""
        computes = _LEAST_SHARE * self.share <= share <= _LIKE * self.share
        return computes and self.wakes <= _LIKE * wakes and wakes <= _LIKE * self.wakes

    def averaged(self, wakes: float, share: float, worked: int) -> "Level":
        """The same with one window more."""
        weight = 1 / (min(self.windows, _AVERAGED) + 1)
        return Level(
            self.wakes + (wakes - self.wakes) * weight,
            self.share + (share - self.share) * weight,
            self.since_ns,
            self.windows + 1,
            self.worked + worked,
        )

    @property
    def is_pace(self) -> bool:
        """Whether it lasted, and was more than a poll."""
        return self.windows >= _WINDOWS and self.worked >= _TICKS


class UsualPace(msgspec.Struct, frozen=True):
    """The pace of a main thread so far. Times are CLOCK_MONOTONIC nanoseconds."""

    usual: Level | None = None  # None: not known
    kept_ns: int = 0  # the end of the last window at it
    back: int = 0  # windows at it since it stood, while these are few
    other: Level | None = None  # what it does now instead
    window_ns: int = 0  # the window that is not over: how long so far, and what was counted
    wakes: int = 0
    run_ns: int = 0
    worked: int = 0

    def kept_since(self, at_ns: int) -> int | None:
        """The end of the last window at the pace that was its own before this time; None: nothing tells of one."""
        known = self.usual is not None and self.usual.since_ns + _WINDOWS * WINDOW_NS <= at_ns
        return self.kept_ns if known else None


def paced(before: UsualPace, wakes: int | None, run_ns: int, at_ns: int, passed_ns: int, *, works: bool) -> UsualPace:
    """Given what the main thread did in the time that has passed since the last tick, and whether anything else shows
    that it works (the pace of a poll is none of training), return its pace at this tick. `wakes` is None where nothing
    tells."""
    if wakes is None:
        return before
    seen = msgspec.structs.replace(
        before,
        window_ns=before.window_ns + passed_ns,
        wakes=before.wakes + wakes,
        run_ns=before.run_ns + run_ns,
        worked=before.worked + works,
    )
    return seen if seen.window_ns < WINDOW_NS else _at_end(seen, at_ns)


def _at_end(seen: UsualPace, at_ns: int) -> UsualPace:
    wakes, share = seen.wakes * 1e9 / seen.window_ns, seen.run_ns / seen.window_ns
    if seen.usual is not None and seen.usual.is_like(wakes, share):
        if at_ns - seen.kept_ns > STANDS_NS and seen.back + 1 < _BACK:
            return UsualPace(seen.usual, seen.kept_ns, seen.back + 1)
        return UsualPace(seen.usual.averaged(wakes, share, seen.worked), at_ns)
    if wakes <= SPINNING_WAKES:
        return UsualPace(seen.usual, seen.kept_ns)
    if seen.other is not None and seen.other.is_like(wakes, share):
        other = seen.other.averaged(wakes, share, seen.worked)
    else:
        other = Level(wakes, share, at_ns - seen.window_ns, 1, seen.worked)
    return UsualPace(other, at_ns) if other.is_pace else UsualPace(seen.usual, seen.kept_ns, 0, other)
