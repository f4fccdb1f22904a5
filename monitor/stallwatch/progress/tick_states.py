"""What a rank did at each tick of a timeline, by the words of its hook's record."""

from collections.abc import Sequence
from typing import Literal, Protocol

from stallwatch.model.snapshot import GroupCounter
from stallwatch.progress.ticks import counts_steps, pulse_stands

TickState = Literal[
    "stepped",
    "in_phase",
    "hook_stands",
    "pending",  # it has operations pending
    "idle",  # it stepped before, and has nothing pending
    "starting",  # it has not made its first step
    "ended",
    "unknown",
]
_STANDING: frozenset[TickState] = frozenset({"pending", "idle", "starting"})


class Beat(Protocol):
    """A record at a tick, as in model.snapshot.Heartbeat."""

    @property
    def step(self) -> int | None:
        """Its step; None: nobody counts steps."""

    @property
    def phase(self) -> str:
        """The phase that its job told; "" outside of any."""
        ...

    @property
    def pulse_count(self) -> int:
        """How often the hook's own thread has beaten."""
        ...

    @property
    def dump_started_ns(self) -> int | None:
        """When a dump began that is under way."""

    @property
    def groups(self) -> Sequence[GroupCounter]:
        """Its counters."""
        ...


def tick_states(beats: Sequence[Beat | None], ended: Sequence[bool], at_ns: Sequence[int]) -> list[TickState]:
    """Given a rank's record at each tick (None: it was not read), whether its process had ended, and the times of the
    ticks, return what it did at each. A first record has nothing before it that its step could differ from: who goes
    on to do something else did that already."""
    states: list[TickState] = []
    first_ticks = []
    before: Beat | None = None
    pulsed_ns = 0  # when the pulse was last seen to change
    for beat, is_over, now_ns in zip(beats, ended, at_ns, strict=True):
        if before is None or beat is None or beat.pulse_count != before.pulse_count:
            pulsed_ns = now_ns
        if before is None and beat is not None:
            first_ticks.append(len(states))
        states.append("ended" if is_over else _state(beat, before, pulsed_ns, now_ns))
        before = beat
    for first in first_ticks:
        following = states[first + 1 : first + 2]
        if states[first] in _STANDING and following and following[0] not in ("unknown", "ended"):
            states[first] = following[0]
    return states


def _state(beat: Beat | None, before: Beat | None, pulsed_ns: int, now_ns: int) -> TickState:
    if beat is None:
        return "unknown"
    if before is not None and beat.step != before.step:
        return "stepped"
    if beat.phase:
        return "in_phase"
    if pulse_stands(pulsed_ns, now_ns, beat.dump_started_ns):
        return "hook_stands"
    if any(group.pending for group in beat.groups):
        return "pending"
    return "idle" if counts_steps(beat) else "starting"
