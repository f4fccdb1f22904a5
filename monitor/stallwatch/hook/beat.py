"""What attach() returns: the step counter, the phases, and the object that does nothing.

`step()` is two stores into a list that nothing outside this process sees: ring slot, then counter; where the pulse has
asked for it, it notes its thread as well. Measured in times of an empty call and a clock read by
tests/bench/bench_step.py; stores into a memoryview cast to "q" cost half as much again. It has no guard: nothing in it
can fail.
"""

import os
from _thread import get_ident, get_native_id
from collections.abc import Sequence
from time import monotonic_ns
from types import TracebackType
from typing import TYPE_CHECKING, Callable, Optional

from stallwatch.hook.layout import RING_SLOTS

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

Step = Callable[..., None]  # a method of what attach() returns, and the same function by itself
# (steps, CLOCK_MONOTONIC nanoseconds of those after the given number, oldest first and as far as the ring has them);
# without a number no times.
ReadSteps = Callable[..., "tuple[int, Sequence[int]]"]


def step_counter() -> "tuple[Step, ReadSteps, Callable[[], tuple[int, int]]]":
    """Return step(), a function that returns steps and times as they belong together, and one that returns Python's
    ident and the kernel's id of the thread that stepped when this was asked before, zeros before the first step."""
    ring = [0] * RING_SLOTS
    mask = RING_SLOTS - 1
    count = 0
    now = monotonic_ns
    thread = 0, 0
    is_asked = True

    def step(beat: object = None) -> None:
        nonlocal count, thread, is_asked
        number = count + 1
        ring[number & mask] = now()
        count = number
        if is_asked:
            is_asked = False
            thread = get_ident(), get_native_id()

    def read(after: Optional[int] = None) -> "tuple[int, Sequence[int]]":
        # One slot less than there are is copied, so one step in between does no harm; more steps than that in the few
        # microseconds of a copy happen only in a loop that does nothing else.
        if after is None or after >= count:
            return count, ()
        for _ in range(8):
            before = count
            start, end = max(after + 1, before - mask + 1) & mask, (before & mask) + 1
            times = ring[start:end] if start < end else ring[start:] + ring[:end]
            if count - before <= 1:
                break
        return before, times

    def stepper() -> "tuple[int, int]":
        nonlocal is_asked
        is_asked = True  # of the next step: a job may begin to step in another thread
        return thread

    return step, read, stepper


class Phases:
    """The phases that are open now, across threads: the newest counts, and closing removes just its own. Without a
    lock, since a signal handler may open a phase while the thread it interrupts is opening one; list operations are
    atomic."""

    def __init__(self, attached_ns: int) -> None:
        self._open: list[_Phase] = []
        self._idle_since_ns = attached_ns

    def current(self) -> "tuple[str, int]":
        """Name and CLOCK_MONOTONIC nanoseconds since when; "" outside every phase."""
        for newest in self._open[-1:]:  # at once, and without an exception where there is none
            return newest.name, newest.since_ns
        return "", self._idle_since_ns

    def enter(self, phase: "_Phase") -> None:
        """Note that the phase begins now; it is the current one until it is left or another begins."""
        phase.since_ns = monotonic_ns()
        self._open.append(phase)

    def leave(self, phase: "_Phase") -> None:
        """Note that the phase ends now; raise ValueError where it is not open."""
        self._idle_since_ns = monotonic_ns()
        self._open.remove(phase)


class _Phase:
    def __init__(self, phases: Phases, name: str) -> None:
        self._phases = phases
        self.name = name
        self.since_ns = 0

    def __enter__(self) -> None:
        self._phases.enter(self)

    def __exit__(
        self,
        kind: "Optional[type[BaseException]]",
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        try:
            self._phases.leave(self)
        except ValueError:  # left twice: a misuse that must not reach the training
            pass


class _NoPhase:
    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: "Optional[type[BaseException]]",
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        pass


class Beat:
    """The job's end of the hook. True while a record is being published; false when it is not, and then (a missing
    directory, a full disk) it keeps counting and tries again, so it may become true later."""

    __slots__ = ("_describe", "_is_working", "_phases")

    def __new__(cls, step: Step, *_: object) -> "Beat":
        """Give each a class of its own with this function as method: CPython calls a method at once, while a function
        that lies in the object is looked up anew for each call, which takes 15 % of a step (50 ns, Python 3.11)."""
        own = {"__slots__": (), "__doc__": cls.__doc__, "__module__": __name__, "step": step}
        return object.__new__(type("Beat", (cls,), own))

    def __init__(
        self,
        step: Step,
        phases: Optional[Phases],
        is_working: "Callable[[], bool]",
        describe: "Optional[Callable[[], str]]" = None,
    ) -> None:
        self._phases = phases
        self._is_working = is_working
        self._describe = describe

    def __bool__(self) -> bool:
        return self._is_working()

    def __repr__(self) -> str:
        """Where the record is, and whether a daemon reads it: for a person who prints what attach() gave him."""
        try:
            return f"<stallwatch: {self._describe()}>" if self._describe else "<stallwatch: off>"
        except Exception as error:
            return f"<stallwatch: {type(error).__name__}: {error}>"

    def __reduce__(self) -> "tuple[Callable[[], Beat], tuple[()]]":
        return _off, ()  # whatever it was pickled with ends up in a process that is no rank

    def __copy__(self) -> "Beat":
        return self

    def __deepcopy__(self, memo: object) -> "Beat":
        return self

    if TYPE_CHECKING:

        def step(self) -> None: ...

    def phase(self, name: str) -> "AbstractContextManager[None]":
        """`with beat.phase("checkpoint"): …` says what the steps wait for; it may take longer than a step."""
        if self._phases is None:
            return _NoPhase()
        return _Phase(self._phases, str(name))


def _nothing(beat: object = None) -> None:
    pass


def _never() -> bool:
    return False


def _off() -> Beat:
    return OFF


def _why_off() -> str:
    value = os.environ.get("STALLWATCH_DISABLE", "")
    return f"off: STALLWATCH_DISABLE={value}" if value else "off in this process; its first line on stderr says why"


OFF = Beat(_nothing, None, _never, _why_off)
