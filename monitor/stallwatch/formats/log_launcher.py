"""torchrun's summary of failures: blocks of fields, the root cause (first observed failure) last."""

import re
import signal
from typing import Final

from msgspec.structs import replace

from stallwatch.formats.log_traceback import Traceback, starts
from stallwatch.model.log_event import LogEvent

START: Final = re.compile(r"^(?:.*\.)?ChildFailedError:|^Failures:\s*$|^Root Cause \(first observed failure\) ?:")
_ROOT: Final = re.compile(r"^Root Cause \(first observed failure\) ?:")
# A block whose line breaks were lost on a page, or on a picture that was read.
_FLAT: Final = re.compile(
    r"(?P<root>Root Cause \(first observed failure\) ?:.*?)?"
    r"\brank ?:? ?(?P<rank>\d{1,6}) \(local[_ ]rank: ?(?P<local>\d{1,6})\),? *"
    r"exitcode ?: ?(?P<code>-?\d{1,10}) \(pid: ?(?P<pid>\d{1,10})\)"
)
_BLOCK: Final = re.compile(r"^\[(\d+)\]:\s*$")
_FIELD: Final = re.compile(r"^\s{1,8}(time|host|rank|exitcode|error_file|traceback)\s*: (.*)$")
_RANK: Final = re.compile(r"(\d+) \(local_rank: (\d+)\)")
_EXIT: Final = re.compile(r"(-?\d+) \(pid: (\d+)\)")


def exit_of(code: int) -> tuple[int | None, int | None]:
    """(exit code, signal): launchers write a signal as a negative code, shells as 128 and more."""
    if code < 0:
        return None, -code
    if 128 < code < 128 + signal.NSIG:
        return None, code - 128
    return code, None


class Summary:
    """Fed line by line; `events` are one for each failed process."""

    def __init__(self) -> None:
        self.events: list[LogEvent] = []
        self._root = False
        self._fields: dict[str, str] = {}
        self._line = 0
        self._traceback: Traceback | None = None  # of the block, where main is decorated with @record
        self._raised_at = 0
        self._table: int | None = None  # the line of the open table's head; None: it is lost

    def feed(self, text: str, line: int) -> bool:
        """Return True when the line is a part of a summary."""
        if self._traceback is not None and not self._traceback.done and text.startswith("  "):
            self._traceback.feed(text[2:])  # all but its first line are indented
            self._raised_at = line
            return True
        if "exitcode" in text and (blocks := list(_FLAT.finditer(text))):
            self._close()
            self._root = self._root and START.match(text) is None
            for block in blocks:
                self._root = self._root or block["root"] is not None
                fields = {"rank": f"{block['rank']} (local_rank: {block['local']})"}
                self._fields, self._line = fields | {"exitcode": f"{block['code']} (pid: {block['pid']})"}, line
                self._close()
            return True
        if START.match(text):
            self._close()
            self._root = _ROOT.match(text) is not None
            if text.startswith("Failures:"):
                self._end_table()
                self._table = line
            return True
        if _BLOCK.match(text):
            self._close()
            self._line = line
            return True
        match = _FIELD.match(text)
        if match and not self._line and match[1] == "rank" and _RANK.match(match[2]):
            self._line = line  # the log was cut within a block
        if self._line and match:
            self._fields.setdefault(match[1], match[2].strip())
            if match[1] == "traceback" and starts(match[2]):
                self._traceback = Traceback()
            return True
        if text.startswith("====") and self._fields:
            self._close()
            self._root = False
        return False

    def close(self) -> None:
        """The log has ended: take what was begun."""
        self._close()
        self._end_table()

    def _end_table(self) -> None:
        """Of a table of which the log has lost the end, which names the first failure, none is that one."""
        listed = [e for e in self.events if self._table is not None and e.line > self._table]
        if not any(event.first for event in listed):
            others = [event for event in listed if event.kind == "launcher_failure"]
            self.events = [replace(event, secondary=True) if event in others else event for event in self.events]

    def _close(self) -> None:
        fields, line, raised = self._fields, self._line, self._traceback
        self._fields, self._line, self._traceback = {}, 0, None
        rank, code = _RANK.match(fields.get("rank", "")), _EXIT.match(fields.get("exitcode", ""))
        if not rank or not code:
            return
        exit_code, exit_signal = exit_of(int(code[1]))
        event = LogEvent(
            kind="launcher_failure",
            text=f"rank {rank[1]} exitcode {code[1]} (pid: {code[2]})",
            line=line,
            rank=int(rank[1]),
            local_rank=int(rank[2]),
            pid=int(code[2]),
            exit_code=exit_code,
            exit_signal=exit_signal,
            host=fields.get("host"),
            at=fields.get("time"),
            message=fields.get("traceback"),
            first=self._root,
        )
        # The root cause repeats a block of the list, when it is not the only one.
        self.events = [e for e in self.events if not (event.first and (e.rank, e.pid) == (event.rank, event.pid))]
        self.events.append(event)
        if raised is not None and raised.exception:
            self.events.append(
                LogEvent(
                    kind="exception",
                    text=f"{raised.exception}: {raised.message or ''}",
                    line=self._raised_at,
                    rank=event.rank,
                    local_rank=event.local_rank,
                    pid=event.pid,
                    exception=raised.exception,
                    message=raised.message,
                    frame=raised.frame,
                    first=self._root,
                )
            )
