"""How far a training log came: steps that it tells, and its end; whether what was raised before them ended nothing."""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from stallwatch.formats.log_prefix import Line, decoloured
from stallwatch.formats.log_time import LineTime, moment
from stallwatch.model.log_event import PROCESS_ENDS, LogEvent

# Steps of a training loop as loggers print them; that many after an exception are no left-over of a buffer.
_STEP: Final = re.compile(
    r"\b(?:[Ss]tep|[Ii]ter(?:ation)?|global_step|[Bb]atch)\b\W{0,12}(\d{1,12})\b"
    r"|\| (\d{1,12})/\d+ \[[\d:]+<[^\]]*\bloss\b"  # tqdm's bar of a loop that trains
)
_STEPS_AFTER: Final = 5
_LOGGED: Final = re.compile(r"\b(?:DEBUG|INFO|WARN|WARNING|ERROR)\b|\b\d\d:\d\d:\d\d\b|\d%\|")
_LONGEST_MARK: Final = 120
# How the ranks' meeting fails: at the store's address, or at each other's.
OF_MEETING: Final = frozenset(
    ("address_in_use", "store_unreachable", "name_unresolved", "gloo_connect", "init_timeout", "nccl_no_adapter")
)  # fmt: skip
_WAITS: Final = ("desync_absent", "init_waiting")
# What NCCL warns of as it looks which ways there are, and what ends a rank only where it raises then.
_WARNED: Final = frozenset(("cuda_error", "gpu_unreachable", "shared_memory", "nccl_connect", "nccl_no_interface"))
_WARNING: Final = "NCCL WARN"
# After these no call of CUDA succeeds in that process (CUDA's manual: it must be terminated and launched again).
_NO_MORE_CUDA: Final = re.compile(
    r"illegal (?:memory access|instruction)|launch timed out|unspecified launch failure|device-side assert|hardware"
    r"|misaligned address|invalid program counter|uncorrectable|GPU is lost"
)
_UNHANDLED: Final = "unhandled cuda error"
_OF_CUDA: Final = re.compile(r"nccl|cuda", re.IGNORECASE)
# An end only as the last line of a log: in its midst a part of the work may say so.
_LAST_WORD: Final = re.compile(
    r"^(?:\[?INFO\]?[\s:-]*)?All done[.!]*\s*$"
    r"|\b(?:[Jj]ob|[Rr]un|[Ss]cript|[Tt]raining)\b.*\b(?:finished|ended|exited|completed|done)\b.*\b(?:code|status) 0\b"
)
_FULL_BAR: Final = re.compile(r"^\s*100%\|[^|]*\| (\d{1,12})/\1 \[[\d:]+<0?0:00")
# torch's and NCCL's words at any process' end, and a launcher's on one of many: no end of the work.
_NOT_OF_WORK: Final = ("estroy", "exits successfully")
_GAVE_UP: Final = "ChildFailedError"
# A launcher's words as it starts ranks: torchrun's, DeepSpeed's.
_STARTS: Final = re.compile(
    r"Setting OMP_NUM_THREADS environment variable for each process|starting workers for entrypoint"
    r"|Starting elastic_operator with launch configs|\[(?:launch|runner)\.py:\d+:main\] (?:cmd = |WORLD INFO DICT)"
)
_OF_STARTS: Final = ("Setting OMP", "starting workers", "Starting elastic", ":main] ")
# Of two nodes' logs put one behind the other the second may tell of steps up to the failure, by a clock that differs.
_CLEARLY_LATER_SECONDS: Final = 30.0
_FAILED: Final = frozenset((*PROCESS_ENDS, "terminated", "killing", "cancelled"))


def is_of_a_log(text: str) -> bool:
    """Whether a line is one that programs print as they run: it tells a step, a level or the time of day."""
    return _STEP.search(text) is not None or _LOGGED.search(text, 0, _LONGEST_MARK) is not None


def ends_any_process(event: LogEvent) -> bool:
    """Whether a clean end is one of a process, however its work ended."""
    return any(words in event.text for words in _NOT_OF_WORK)


class _Step(NamedTuple):
    line: int
    rank: int | None
    at: LineTime | None


class LogProgress:
    """Lines that show that training went on, and where."""

    def __init__(self) -> None:
        self._steps: list[_Step] = []  # that are later than the one before
        self._step = -1
        self._starts: list[tuple[int, LineTime | None]] = []  # lines with which a launcher starts ranks
        self._last: tuple[int, Line, str] | None = None  # that holds anything

    def feed(self, line: Line, raw: str, number: int, now: LineTime | None = None) -> None:
        """Given a log's next line, decoded and as it stood, with its number and the time by which it was written, note
        the step or the bar that it tells."""
        shown = decoloured(raw).rsplit("\r", 1)[-1]
        if match := _STEP.search(shown):
            step = int(match[1] or match[2])
            if step > self._step:
                self._steps.append(_Step(number, line.rank, now))
            self._step = step
        if any(words in line.text for words in _OF_STARTS) and _STARTS.search(line.text):
            self._starts.append((number, now))
        if line.text and not line.text.isspace():
            self._last = number, line, shown

    def last_word(self, events: Sequence[LogEvent]) -> list[LogEvent]:
        """The end that a log's last line tells, as an event. A bar that is full is one only behind failures, and where
        it counts the steps."""
        if self._last is None:
            return []
        number, line, shown = self._last
        bar = _FULL_BAR.match(shown) if any(event.kind == "exception" for event in events) else None
        over = _LAST_WORD.search(line.text) or (bar is not None and int(bar[1]) == self._step)
        if not over or any(event.line == number for event in events):
            return []
        return [LogEvent("clean_end", line.text, number, rank=line.rank, secondary=True)]

    @property
    def went_on_at(self) -> int:
        """The line up to which nothing ended training, for steps enough are told after it; 0 where they are not."""
        return self._steps[-_STEPS_AFTER].line if len(self._steps) >= _STEPS_AFTER else 0

    def began_again(self, events: Sequence[LogEvent]) -> list[LogEvent]:
        """Given a log's events, return what shows that ranks were started after one had failed: each line with which a
        launcher starts them after those before it had given up; and the steps, where ranks make steps after their agent
        had seen one fail and had not given up (it starts them again, whether or not it says so: torchrun does at INFO),
        or long after it had. Files put one behind the other tell of one run by times that do not go on. What is told
        within these steps may have ended the ranks: the last of them stood in a buffer then."""
        over = [e.line for e in events if e.kind == "launcher_failure" or _GAVE_UP in e.text]
        ended = [*over, *(e.line for e in events if e.kind == "cancelled")]  # which may have a grace to make steps in
        found = [
            LogEvent("restarting", "a launcher starts ranks", number, secondary=True)
            for number, at in self._starts
            if (last := max((line for line in ended if line < number), default=0))
            and _is_later(at, _latest(events, last), 0.0)
        ]
        failed = max((e.line for e in events if e.kind == "restarting" or "failed (exitcode:" in e.text), default=0)
        gave_up, began = max(over, default=0), found[-1].line if found else 0
        steps = LogEvent("steps_again", f"steps to {self._step}", self.went_on_at, secondary=True)
        if began and self.went_on_at <= began:
            found.append(LogEvent("steps_again", "their start", began + 1, secondary=True))
        elif began or (self.went_on_at > failed > gave_up):
            found.append(steps)
        elif self.went_on_at > gave_up > 0:
            at = self._steps[-_STEPS_AFTER].at
            found += [steps] if _is_later(at, _latest(events, gave_up), _CLEARLY_LATER_SECONDS) else []
        return found

    def went_on(self, event: LogEvent, events: Sequence[LogEvent], whose: int | None) -> bool:
        """Steps were told after this event of `whose` log: what was raised there ended no rank, for ranks wait for each
        other. A job whose ranks did not meet makes not even one; one that tells of its clean end raised no more."""
        waits = event.kind in OF_MEETING or event.kind in _WAITS  # nobody makes a step meanwhile
        warned = event.kind in _WARNED and _WARNING in event.text and not self._ends(event, events)
        if not (waits or warned or event.kind == "exception") or _ended_by(event, events):
            return False
        after = 1 if waits else _STEPS_AFTER
        if len(self._steps) >= after and self._steps[-after].line > event.line:
            return True
        step = next((s.line for s in self._steps if s.line > event.line and (whose is None or s.rank == whose)), None)
        if step is None or any(other.kind in _FAILED for other in events):
            return False
        return any(
            other.kind == "clean_end"
            and other.line > step
            and (whose is None or other.rank == whose)
            and not ends_any_process(other)
            for other in events
        )

    def _ends(self, warning: LogEvent, events: Sequence[LogEvent]) -> bool:
        """What NCCL warned of leaves its process without CUDA, or the rank raised it: before the steps that are told,
        which stood in a buffer then, or at any time as an error of CUDA of which NCCL had no more to say."""
        if _NO_MORE_CUDA.search(warning.text):
            return True
        later = [
            e for e in events if e.line > warning.line and (e.rank == warning.rank or None in (e.rank, warning.rank))
        ]
        said = min((e.line for e in later if _WARNING in e.text), default=None)
        return any(
            (e.line < self.went_on_at or (_UNHANDLED in (e.message or "") and (said is None or e.line < said)))
            and _OF_CUDA.search(f"{e.exception} {e.message}")
            for e in later
            if e.exception
        )


def _latest(events: Sequence[LogEvent], line: int) -> LineTime | None:
    """The latest time that is told up to this line."""
    until = [event for event in events if event.line <= line]
    told = [LineTime(e.at_seconds, e.utc) for e in until if e.at_seconds is not None]
    # Slurm says when it cancelled a job in the text, by the host's clock, which may not be that of the lines.
    told = told or [at for e in until if e.kind == "cancelled" and (at := moment(e.text))]
    return max(told, default=None)


def _is_later(at: LineTime | None, than: LineTime | None, by_seconds: float) -> bool:
    return at is not None and than is not None and at.utc == than.utc and at.seconds > than.seconds + by_seconds


def _ended_by(event: LogEvent, events: Sequence[LogEvent]) -> bool:
    """Whether a launcher saw the rank leave with an exit code, and this is the last that it raised: the steps behind it
    stand there because logs of several processes were put one behind the other."""
    if event.rank is None or not event.exception:
        return False
    later = (other for other in events if other.exception and other.rank == event.rank and other.line > event.line)
    left = any(other.kind in _FAILED and other.rank == event.rank and other.exit_code for other in events)
    return left and not any("ChildFailedError" not in (other.exception or "") for other in later)
