"""Messages of several lines: a logger puts its mark before the first one only, and a traceback's lines are its writer's
all the same."""

from stallwatch.formats.log_prefix import Line
from stallwatch.formats.log_traceback import BODY, CHAINED, starts


class Messages:
    """Fed with every line of a log, in order."""

    def __init__(self) -> None:
        self._head: Line | None = None  # the first line of a message that is a traceback; None: none is open
        self._next = 0  # the number of the line that may continue it
        self._began = False
        self._raised = False  # its exception's line has come: only what is chained to it follows

    def feed(self, line: Line, number: int) -> Line:
        """Given the next line, with its number, return it as its writer's where it continues a marked traceback."""
        if line.rank is not None or line.writer:
            self._head = line if starts(line.text) else None
            self._next, self._began, self._raised = number + 1, False, False
            return line
        head = self._head
        if head is None:
            return line
        if number != self._next or not self._takes(line.text):
            self._head = None
            return line
        self._next = number + 1
        return head._replace(text=line.text, stamp=line.stamp)

    def _takes(self, text: str) -> bool:
        if not self._began:  # another process' lines may stand there
            self._began = BODY.match(text) is not None
            return self._began
        if not self._raised:
            self._raised = text[:1] not in ("", " ", "\t")
            return True
        if starts(text):
            self._raised = False
            return True
        return not text.strip() or CHAINED.match(text) is not None
