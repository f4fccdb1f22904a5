"""The outermost guard: what goes wrong in here stays in here, is counted, and is said once."""

import sys
from typing import Callable, Optional, TypeVar

T = TypeVar("T")

FAILURES_BEFORE_OFF = 3


class Guard:
    """Runs one part of the hook at a time. A part that fails FAILURES_BEFORE_OFF times in a row is switched off for
    the rest of the process; the others go on."""

    def __init__(self) -> None:
        self.errors = 0
        self.last = ""  # what went wrong last
        self._said = False
        self._failures: dict[str, int] = {}

    def run(self, part: str, function: "Callable[..., T]", *arguments: object) -> Optional[T]:
        """Return function(*arguments), or None when it failed or was switched off before."""
        if self._failures and self.is_off(part):
            return None
        try:
            result = function(*arguments)
        except Exception as error:
            self._failures[part] = self._failures.get(part, 0) + 1
            self.note(f"{part}: {type(error).__name__}: {error}")
            return None
        if self._failures:
            self._failures.pop(part, None)
        return result

    def is_off(self, part: str) -> bool:
        """Whether a part has failed so often without a success between that it is not tried any more."""
        return self._failures.get(part, 0) >= FAILURES_BEFORE_OFF

    def note(self, what: str) -> None:
        """Count a failure; the first of a process is written to stderr, the others only counted."""
        self.errors += 1
        self.last = what
        if not self._said:
            self._said = True
            say(what)


def say(what: str) -> None:
    """One line on stderr, whatever state stderr is in."""
    try:
        print(f"stallwatch: {what} (training goes on)", file=sys.stderr, flush=True)
    except Exception:
        pass
