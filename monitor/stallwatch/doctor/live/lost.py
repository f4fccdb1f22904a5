"""Work that may never come back: children and threads that we are willing to lose."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from stallwatch.doctor.surroundings import CommandResult
from stallwatch.model.reading import Known, Unavailable
from stallwatch.node.aside import OneCallAtATime, Silent
from stallwatch.node.run_once import run_once

T = TypeVar("T")

_MAXIMUM_OUTPUT_BYTES = 4 << 20


def run_child(
    argv: Sequence[str], seconds: float, *, environment: Mapping[str, str] | None = None, what: str = ""
) -> Known[CommandResult] | Unavailable:
    """Run a command without input. One that does not end in time is killed and, when even that does not end it (a wait
    in the driver), left behind."""
    what = what or argv[0]
    try:
        ended = run_once(argv, seconds, environment=environment)
    except OSError as error:
        return Unavailable(f"{what}: {error.strerror}", time.monotonic_ns())
    if ended is None:
        return Unavailable(f"{what} has not answered for {seconds:g} s", time.monotonic_ns())
    texts = (part[:_MAXIMUM_OUTPUT_BYTES].decode("utf-8", "replace") for part in (ended.output, ended.errors))
    return Known(CommandResult(ended.code, *texts), time.monotonic_ns())


class Promise(Generic[T]):
    """A function that runs in a thread of its own from now on; everybody who asks gets its one answer, or
    Unavailable once `seconds` have passed since the start."""

    def __init__(self, function: Callable[[], T], seconds: float, what: str) -> None:
        self._seconds, self._what = seconds, what
        self._until = time.monotonic() + seconds
        self._aside = OneCallAtATime[Known[T]]()
        self._aside.begin(lambda: Known(function(), time.monotonic_ns()), name=what)

    def get(self) -> Known[T] | Unavailable:
        """Wait for the answer until the deadline; Unavailable, with the reason, where it is late or the function
        raised."""
        try:
            return self._aside.answer(self._until - time.monotonic())
        except Silent:
            reason = f"{self._what} has not answered for {self._seconds:g} s"
        except Exception as error:  # noqa: BLE001 - the guard of lost work: what it raises is its answer
            reason = f"{self._what}: {type(error).__name__}: {error}"
        return Unavailable(reason, time.monotonic_ns())
