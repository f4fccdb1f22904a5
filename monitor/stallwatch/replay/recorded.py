"""A witness of an incident that was recorded: the looks that its bundle holds, judged anew."""

from pathlib import Path
from typing import NamedTuple

import msgspec

from stallwatch.bundle.past import History
from stallwatch.bundle.reader import load
from stallwatch.bundle.report import make_report
from stallwatch.clock import SECOND_NS
from stallwatch.errors import StallwatchError
from stallwatch.incidents.messages import Captured, Judged
from stallwatch.incidents.store import looks_in
from stallwatch.model.incident import Incident
from stallwatch.model.verdict import Report

_JUDGING_NS = SECOND_NS  # what a judgement takes on a busy node, with its child started before
_LOOK_NS = SECOND_NS  # and a look whose times are not known
_SAME_NS = 2 * SECOND_NS
_LATE_START_NS = 5 * SECOND_NS  # what the start of a look may take on a busy node
_NEAR_NS = 15 * SECOND_NS
_OLD_SECONDS = 15.0


class RecordedLook(NamedTuple):
    """A look that the bundle holds."""

    number: int
    begun_ns: int | None  # CLOCK_MONOTONIC; None: the bundle does not say
    done_ns: int | None

    @property
    def takes_ns(self) -> int:
        """How long it took; a usual time where the bundle does not say."""
        return _LOOK_NS if self.begun_ns is None or self.done_ns is None else self.done_ns - self.begun_ns


class JudgedLook(msgspec.Struct, frozen=True):
    """What the evidence up to a recorded look says: the report, or why there is none."""

    look: int
    report: Report | None
    problem: str = ""


def recorded_looks(bundle: Path, history: History) -> tuple[RecordedLook, ...]:
    """Return the looks that the bundle holds, the first first."""
    times: dict[int, list[int]] = {}
    for attempt in history.attempts:
        times.setdefault(attempt.look, [])
        if attempt.asked_at_ns is not None:
            times[attempt.look].append(attempt.asked_at_ns)
    if not times and not any(bundle.glob("ranks/*/*")):
        return ()
    numbers = sorted(times) or range(1, looks_in(bundle) + 1)
    return tuple(
        RecordedLook(number, min(at, default=None), max(at, default=None))
        for number in numbers
        for at in (times.get(number, []),)
    )


class RecordedWitness:
    """Satisfies playing.Witness. A look of the replay is answered by the one that was taken by then. Of other incidents
    the bundle knows nothing: looks at them never come back."""

    def __init__(self, bundle: Path, looks: tuple[RecordedLook, ...], recorded: Incident | None) -> None:
        """`recorded`: the incident as the daemon of then kept it, where the bundle holds it."""
        self._bundle = bundle
        self._looks = looks
        self._recorded = recorded
        self._answered: dict[tuple[str, int], RecordedLook] = {}
        self._judged: dict[int, JudgedLook] = {}
        self.caveats: dict[str, None] = {}

    def captured(self, incident: Incident, look: int, at_ns: int) -> tuple[int, Captured] | None:
        """Given a look that was begun, return when it was complete and what it had, as the bundle tells; None: it holds
        no such look."""
        recorded = self._answer(incident, look, at_ns)
        if recorded is None:
            return None
        self._answered[incident.incident_id, look] = recorded
        late_ns = 0 if recorded.begun_ns is None else recorded.begun_ns - at_ns
        begun_ns = at_ns + late_ns if 0 < late_ns <= _LATE_START_NS else at_ns
        return begun_ns + recorded.takes_ns, Captured(incident.incident_id, look, complete=True, done=True)

    def judged(self, incident: Incident, look: int, at_ns: int) -> tuple[int, Judged] | None:
        """Given a look that was taken, return when its verdict is there and what it is; None where it was not taken."""
        recorded = self._answered.get((incident.incident_id, look))
        if recorded is None:
            return None
        said = self.judge(recorded.number)
        return at_ns + _JUDGING_NS, Judged(incident.incident_id, look, said.report, said.problem)

    def judge(self, number: int) -> JudgedLook:
        """Judge what there was when this recorded look was done."""
        if number not in self._judged:
            try:
                report = make_report(load([self._bundle], up_to_look=number))
                self._judged[number] = JudgedLook(number, report)
            except StallwatchError as error:
                self._judged[number] = JudgedLook(number, None, str(error))
        return self._judged[number]

    @property
    def judged_looks(self) -> tuple[JudgedLook, ...]:
        """Those that were judged so far, the first first."""
        return tuple(self._judged[number] for number in sorted(self._judged))

    def _answer(self, incident: Incident, look: int, at_ns: int) -> RecordedLook | None:
        taken = [one for one in self._looks if one.begun_ns is None or one.begun_ns <= at_ns + _SAME_NS]
        if not taken and not (self._looks and self._is_recorded(incident, at_ns)):
            self._say(
                f"{incident.incident_id} ({'; '.join(f.detector for f in incident.findings)}) is another incident than "
                "the bundle's, which holds no look at it: it is not judged here"
            )
            return None
        recorded = max(taken, key=lambda one: one.number) if taken else self._looks[0]
        if recorded.begun_ns is not None:
            apart = (at_ns - recorded.begun_ns) / SECOND_NS
            if -apart * SECOND_NS > _LATE_START_NS:
                self._say(f"look {look} is begun {-apart:.0f} s before any that was recorded: the first one answers it")
            elif apart > _OLD_SECONDS:
                self._say(
                    f"look {look} is answered by what was seen {apart:.0f} s before: the bundle holds no later look"
                )
        return recorded

    def _is_recorded(self, incident: Incident, at_ns: int) -> bool:
        """Whether this is the incident of the bundle: what stands stands since the same moment under any limits; when
        a slow rank is noticed is a matter of limits."""
        families = {finding.family for finding in incident.findings}
        if self._recorded is None or families == {"slow"}:
            begun_ns = self._looks[0].begun_ns
            return begun_ns is not None and begun_ns - at_ns <= _NEAR_NS
        return abs(incident.since_ns - self._recorded.since_ns) <= _SAME_NS

    def _say(self, caveat: str) -> None:
        self.caveats[caveat] = None
