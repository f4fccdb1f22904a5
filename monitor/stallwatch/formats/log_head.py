"""What stands in a log before its watchdogs' first words: something else, nothing, or the rest of what one wrote."""

import re
from collections.abc import Sequence
from typing import Final

from stallwatch.model.log_event import BeforeWatchdogs, LogEvent

# Kinds of what a watchdog writes as it finds that its rank waits in vain.
WATCHDOGS_WORDS = (
    "collective_timeout", "group_status", "watchdog_end", "recorder_disabled", "failed_stack", "dump_signal",
)  # fmt: skip

# Torch's lines as its C++ writes them, and those of the stacks below them.
_OF_TORCH: Final = re.compile(r"\[E(?:\d{3,4} [\d:.]+)? ?(?:ProcessGroup|Work)\w+\.[ch]pp:\d+\] ")
_OF_STACK: Final = re.compile(
    r"frame #\d+: |.*\+ 0x[0-9a-f]+ \(0x[0-9a-f]+ in |Exception raised from .* \(most recent call first\):"
    r"|terminate called after throwing| +what\(\): "
)
_SAYS: Final = re.compile(r"\w")  # not a page's fence, nor what separates
_DIGITS: Final = re.compile(r"\d+")
_ALIKE: Final = 12  # characters at the end of two lines that one kind of them has
_MOST_COMPARED: Final = 1_000


class LogHead:
    """Fed with the lines of a log in their order."""

    def __init__(self) -> None:
        self._first: str | None = None  # the line that begins the text, where it is none of torch's by its form
        self._half = False  # it is the end of one of torch's
        self._begun = self._at_once = False  # a watchdog has spoken; in the first line
        self._other = self._rest = False
        self._compared = 0

    def feed(self, text: str, events: Sequence[LogEvent]) -> None:
        """Given a line without what launchers put before it, and the events in it, take what it is."""
        if self._other or self._half or (self._begun and self._first is None):
            return
        of_stack = _OF_STACK.match(text) is not None
        of_torch = of_stack or _OF_TORCH.match(text) is not None
        if self._first is not None and of_torch and self._compared < _MOST_COMPARED:
            self._compared += 1
            self._half = _is_end_of(self._first, text)
        if self._begun:
            return
        kind = next((event.kind for event in events if event.kind in WATCHDOGS_WORDS), None)
        if kind is not None:
            self._begun = True
            if self._first is None and not of_torch:
                self._first, self._at_once = text, True
            self._rest |= of_stack or kind != "collective_timeout"  # which is the first word of each
        elif of_torch:
            self._rest = True
        elif _SAYS.search(text):
            self._other = self._first is not None or self._rest
            self._first = text if self._first is None else self._first

    @property
    def before(self) -> BeforeWatchdogs:
        """What stands before the watchdogs' words. Of a text that begins within them others' words may be lost."""
        if self._other or not self._begun:
            return "other"
        if self._first is not None and not self._at_once:
            return "rest" if self._half else "other"
        return "rest" if self._rest or self._half else "nothing"


def _is_end_of(text: str, line: str) -> bool:
    """Whether a text may be the end of such a line: both end alike, but for their numbers."""
    end, whole = _DIGITS.sub("0", text.rstrip()), _DIGITS.sub("0", line.rstrip())
    return whole.endswith(end[-_ALIKE:])
