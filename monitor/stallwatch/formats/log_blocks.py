"""What takes several lines in a log: NCCL's reason after an exception, the stack of a failed collective, the text of a
C++ exception, mpirun's and MPICH's reports of a process, counters of attempts."""

import re
from typing import Final

from msgspec.structs import replace

from stallwatch.formats.log_launcher import exit_of
from stallwatch.formats.log_prefix import Line
from stallwatch.formats.log_traceback import innermost_own
from stallwatch.model.evidence import CodeFrame
from stallwatch.model.log_event import LogEvent

_NCCL_ERROR: Final = re.compile(r"NCCL (?:error in: |Error \d+: )|ncclResult_t")
_NCCL_NAME: Final = re.compile(r"nccl\w+: ")
_LAST_ERROR: Final = re.compile(r"\s*Last error:\s*(?P<said>.*)$")
_STACK_FRAME: Final = re.compile(r"#\d+ (?P<name>.*?) from (?P<file>.+?):(?P<line>\d+)\s*$")
# faulthandler's: every thread, innermost frame first; the one that crashed is the "Current" one, and the last.
_THREAD: Final = re.compile(r"(?P<current>Current t|T)hread 0x\w+ .*\(most recent call first\):")
_CRASH_FRAME: Final = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+?)\s*$')
_WHAT: Final = re.compile(r"\s*what\(\): +(?P<said>.*)$")
_PROCESS_NAME: Final = re.compile(
    r"\s*Process name: \[\[[\w@.-]+,\d+\],(?P<rank>\d+)\]|\s*Process name: \[\S+,(?P<other>\d+)\]"
)
_HOW: Final = re.compile(  # Hydra's and PRRTE's next line
    r"=\s+KILLED BY SIGNAL: (?P<signal>\d+)|=\s+EXIT (?:CODE|STATUS): (?P<code>\d+)|signal (?P<next>\d+) \("
)
_EXIT_CODE: Final = re.compile(r"\s*Exit code:\s+(?P<code>\d+)")
# DDP's reducer ends its text on parameters without a gradient so: by the rank in its group.
_NO_GRADIENT: Final = re.compile(r"Parameter(?:s| indices) which did not receive grad for rank (?P<rank>\d+)")
_UNFINISHED: Final = "Expected to have finished reduction"
_MOST_LINES: Final = 12  # between NCCL's exception and its reason, or DDP's and its rank
_MOST_FRAMES: Final = 100


class Blocks:
    """Fed with every line and with the events made of it; completes the event that a block belongs to."""

    def __init__(self, events: list[LogEvent]) -> None:
        self._events = events
        self._reasons: dict[tuple[int | None, str], list[int]] = {}  # of a writer: event, lines left, reason is next
        self._stacks: dict[tuple[int | None, str], tuple[int, list[CodeFrame]]] = {}
        self._crashes: dict[tuple[int | None, str], tuple[int, list[CodeFrame] | None]] = {}  # None: another thread
        self._terminate: dict[tuple[int | None, str], int] = {}
        self._unfinished: dict[tuple[int | None, str], tuple[int, int]] = {}  # of a writer: event, and its line
        self._stalled: tuple[str, int] | None = None  # Horovod's coordinator lists ranks next: its mark, the event
        self._mpi_rank: int | None = None
        self._unended: int | None = None  # event of a process whose end the next line tells

    def begin(self, place: int, line: Line) -> None:
        """An event was made of this line."""
        writer, event = (line.rank, line.writer), self._events[place]
        if event.kind == "exception" and _NCCL_ERROR.search(event.message or ""):
            self._reasons[writer] = [place, _MOST_LINES, 0]
        elif event.kind == "exception" and (event.message or "").startswith(_UNFINISHED):
            self._unfinished[writer] = place, event.line
        elif event.kind == "desync_absent" and not event.ranks:
            self._stalled = line.writer, place
        elif event.kind == "failed_stack":
            self._stacks[writer] = place, []
        elif event.kind == "native_crash":
            self._crashes[writer] = place, None
        elif event.kind == "native_exception":
            self._terminate[writer] = place
        elif event.kind == "process_failed" and ("RUNNING AT" in event.text or event.text.endswith("exited on")):
            self._unended = place

    def feed(self, line: Line, number: int) -> bool:
        """Return True when the line is a part of a block, and no event of its own."""
        writer = line.rank, line.writer
        if self._stalled is not None and self._is_of_stalled(line):
            return True
        if writer in self._stacks and self._stack(writer, line.text):
            return True
        if writer in self._crashes and self._crash(writer, line.text):
            return True
        if writer in self._reasons and self._reason(writer, line.text):
            return True
        if writer in self._terminate and (match := _WHAT.match(line.text)):
            place = self._terminate.pop(writer)
            self._events[place] = replace(self._events[place], message=match["said"] or None)
            return False  # it may be an event of its own
        if writer in self._unfinished and (match := _NO_GRADIENT.match(line.text)):
            place, began = self._unfinished.pop(writer)
            if number <= began + _MOST_LINES and line.rank is None:
                self._events[place] = replace(self._events[place], group_rank=int(match["rank"]))
            return True
        if self._unended is not None and (match := _HOW.match(line.text)):
            code, ended_by = (
                exit_of(int(match["code"])) if match["code"] else (None, int(match["signal"] or match["next"]))
            )
            self._events[self._unended] = replace(self._events[self._unended], exit_code=code, exit_signal=ended_by)
            self._unended = None
            return True
        return self._mpirun(line, number)

    def _is_of_stalled(self, line: Line) -> bool:
        """Horovod's list "Stalled ranks:", then "6: [horovod_allreduce.0, …]", where the number looks like a task's."""
        mark, place = self._stalled or ("", 0)
        if line.text.startswith("Stalled ranks:"):
            return True
        if line.task is None or line.writer != f"{mark}{line.task}" or not line.text.startswith("["):
            self._stalled = None
            return False
        event = self._events[place]
        self._events[place] = replace(event, ranks=tuple(sorted({*event.ranks, line.task})))
        return True

    def _stack(self, writer: tuple[int | None, str], text: str) -> bool:
        place, frames = self._stacks[writer]
        match = _STACK_FRAME.match(text)
        if match is None or len(frames) >= _MOST_FRAMES:
            del self._stacks[writer]
            return False
        frames.append(CodeFrame(match["name"], match["file"], int(match["line"])))
        # Innermost first, as the recorder keeps them.
        self._events[place] = replace(self._events[place], frame=innermost_own(frames[::-1]))
        return True

    def _crash(self, writer: tuple[int | None, str], text: str) -> bool:
        place, frames = self._crashes[writer]
        if match := _THREAD.match(text):
            self._crashes[writer] = place, [] if match["current"] == "Current t" else None
            return True
        if match := _CRASH_FRAME.match(text):
            if frames is not None and len(frames) < _MOST_FRAMES:
                frames.append(CodeFrame(match["name"], match["file"], int(match["line"])))
                self._events[place] = replace(self._events[place], frame=innermost_own(frames[::-1]))
            return True
        if frames or text:
            del self._crashes[writer]
        return False

    def _reason(self, writer: tuple[int | None, str], text: str) -> bool:
        state = self._reasons[writer]
        place, left, next_is_reason = state
        state[1] = left - 1
        if match := _LAST_ERROR.match(text):
            state[2] = 1
            text = match["said"]
            if not text:
                return True
            next_is_reason = 1
        if next_is_reason and text.strip():
            del self._reasons[writer]
            event = self._events[place]
            self._events[place] = replace(event, message=f"{event.message or ''}; last error: {text.strip()}")
            return True
        if _NCCL_NAME.match(text):
            event = self._events[place]
            self._events[place] = replace(event, message=f"{event.message or ''}; {text.strip()}")
            return True
        if left <= 1:
            del self._reasons[writer]
        return False

    def _mpirun(self, line: Line, number: int) -> bool:
        if match := _PROCESS_NAME.match(line.text):
            self._mpi_rank = int(match["rank"] or match["other"])
            return True
        if self._mpi_rank is not None and (match := _EXIT_CODE.match(line.text)):
            rank, self._mpi_rank = self._mpi_rank, None
            self._events.append(
                LogEvent(
                    kind="launcher_failure",
                    text=f"mpirun: rank {rank} exit code {match['code']}",
                    line=number,
                    rank=rank,
                    exit_code=int(match["code"]),
                    first=True,
                )
            )
            return True
        return False
