"""One event of a log with what it is taken as."""

from typing import NamedTuple

from stallwatch.model.evidence import LogEvent


class Told(NamedTuple):
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


def shown_message(event: LogEvent) -> str:
    """An exception's message as people read it: of NCCL's, the reason before the place in torch's source."""
    message = event.message or ""
    before, mark, reason = message.partition("; last error: ")
    return f"{reason} ({before})" if mark else message
