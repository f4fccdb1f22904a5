"""How Slurm's sacct, scontrol and seff tell the state in which a job ended, and of how many jobs they tell."""

import re
from collections.abc import Sequence
from typing import Final

from stallwatch.model.log_event import LogEvent

# "91234", "91234_7" of an array, "91234.batch" of a step, "91234+0" of a job of several parts.
_ROW: Final = r"^(?P<{}>\d+(?:_\d+)?)(?:[+.]\w+)*\s(?:.*\s)?"
_CODE_BEHIND: Final = r"(?=[A-Z_]+\+?[^A-Za-z]*\s\d+:\d+\s*$)"  # whichever other columns were asked for
STATE_OF_A_JOB: Final = (  # what stands before the state
    rf"(?:{_ROW.format('_row')}{_CODE_BEHIND}|\bJobState=|^State: (?=[A-Z_]+\s*(?:\(exit code|$)))"
)
_LISTED: Final = re.compile(rf"{_ROW.format('row')}{_CODE_BEHIND}|^\s*(?:JobId=|Job ID: )(?P<named>\d+)")
_STATE: Final = re.compile(STATE_OF_A_JOB)
_LONGEST_ROW: Final = 1_000


class JobStates:
    """Fed with every line that was looked at."""

    def __init__(self) -> None:
        self._jobs: set[str] = set()

    def feed(self, text: str) -> None:
        """Take which job a line tells the state of."""
        may_tell = text[:1].isdigit() or "JobId=" in text or "Job ID: " in text
        if may_tell and len(text) <= _LONGEST_ROW and (match := _LISTED.match(text)):
            self._jobs.add(match["row"] or match["named"])

    def of_one_job(self, events: Sequence[LogEvent]) -> Sequence[LogEvent]:
        """Given events, return them without the states of jobs where several are listed: somebody's jobs of a week do
        not tell which of them the logs are of."""
        return events if len(self._jobs) < 2 else [event for event in events if not _STATE.search(event.text)]
