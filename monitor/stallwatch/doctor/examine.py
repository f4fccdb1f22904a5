"""Runs checks at the same time, each in a thread that is given up at the deadline, and puts the findings in order."""

import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from stallwatch import __version__
from stallwatch.clock import Clock
from stallwatch.doctor.check import Check, Inapplicable, Undetermined
from stallwatch.doctor.finding import (
    SCHEMA_VERSION,
    SEVERITIES,
    CheckRecord,
    Examination,
    FindingRecord,
    Outcome,
)
from stallwatch.doctor.surroundings import Surroundings

DEADLINE_SECONDS = 4.0  # of all checks together; a whole run takes at most 5 s


class _Look:
    """One check at work."""

    def __init__(self, check: Check, surroundings: Surroundings) -> None:
        self.check = check
        self.findings: tuple[FindingRecord, ...] = ()
        self.outcome: Outcome | None = None
        self.note = ""
        self.seconds = 0.0
        self._surroundings = surroundings
        self.thread = threading.Thread(target=self._run, name=f"doctor {check.name}", daemon=True)

    def _run(self) -> None:
        began = time.monotonic()
        outcome: Outcome = "ok"
        try:
            self.findings = self.check.look(self._surroundings)
            outcome = "found" if self.findings else "ok"
        except Inapplicable as reason:
            outcome, self.note = "skipped", str(reason)
        except Undetermined as reason:
            outcome, self.note = "unknown", str(reason)
        except Exception as error:  # noqa: BLE001 - the guard of checks: a broken one must not hide the others
            outcome, self.note = "unknown", f"own fault, please report: {type(error).__name__}: {error}"
        self.seconds = time.monotonic() - began
        self.outcome = outcome  # last: tells that all is there


def examine(
    checks: Sequence[Check], surroundings: Surroundings, clock: Clock, deadline_seconds: float = DEADLINE_SECONDS
) -> Examination:
    """Return what all checks found; one that has not ended by the deadline is unknown, and says so."""
    began = time.monotonic()
    looks = [_Look(check, surroundings) for check in checks]
    for look in looks:
        look.thread.start()
    for look in looks:
        look.thread.join(max(0.0, began + deadline_seconds - time.monotonic()))
    records: list[CheckRecord] = []
    findings: list[FindingRecord] = []
    for look in looks:
        if look.outcome is None:
            note = f"no answer within {deadline_seconds:.2g} s"
            records.append(CheckRecord(look.check.name, look.check.area, "unknown", deadline_seconds, note))
            continue
        findings += look.findings
        records.append(CheckRecord(look.check.name, look.check.area, look.outcome, round(look.seconds, 4), look.note))
    return Examination(
        schema_version=SCHEMA_VERSION,
        tool_version=__version__,
        node=surroundings.host_name,
        examined_at=_iso(clock.wall_ns()),
        seconds=round(time.monotonic() - began, 3),
        findings=tuple(sorted(findings, key=_order)),
        checks=tuple(records),
        verdicts=surroundings.question.report.verdicts if surroundings.question.report else (),
    )


def _order(finding: FindingRecord) -> tuple[bool, int]:
    """A failed run's own story first and in its own order; then the worst."""
    of_run = finding.area == "failed run"
    return not of_run, 0 if of_run else SEVERITIES.index(finding.severity)


def _iso(wall_ns: int) -> str:
    return datetime.fromtimestamp(wall_ns / 1e9, UTC).isoformat(timespec="seconds")
