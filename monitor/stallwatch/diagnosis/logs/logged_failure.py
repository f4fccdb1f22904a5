"""One event of a log with what it is taken as."""

import re
from typing import Final, NamedTuple

from stallwatch.model.log_event import LogEvent


class LoggedFailure(NamedTuple):
    """One failure that logs tell."""

    event: LogEvent
    rank: int | None  # whose it is; None: not told
    kind: str  # what it is taken as: an exception may be an out_of_memory
    consequence: str = ""  # why it is no first cause; "": it may be one

    @property
    def is_consequence(self) -> bool:
        """Whether it only follows from something else."""
        return bool(self.consequence)

    @property
    def place(self) -> str:
        """ "train.log:12"."""
        return f"{self.event.source}:{self.event.line}" if self.event.source else f"line {self.event.line}"

    @property
    def source(self) -> str:
        """Where a fact comes from: the place, or whose log it is where the file has no name."""
        if self.event.source:
            return self.place
        return "log" if self.rank is None else f"log of rank {self.rank}"


_ASKED: Final = re.compile(r"(?P<said>Unexpected error from \w+\(\))\. Did you run .*\? (?P<reason>Error \d+: .*)")


def shown_message(event: LogEvent) -> str:
    """An exception's message as people read it: of NCCL's, the reason before the place in torch's source, and CUDA's
    before the question that torch asks."""
    message = event.message or ""
    if asked := _ASKED.fullmatch(message):
        return f"{asked['reason']} ({asked['said']})"
    before, mark, reason = message.partition("; last error: ")
    return f"{reason} ({before})" if mark else message
