"""Runs checks at the same time, each in a thread that is given up at the deadline, and puts the findings in order."""

import time
from collections.abc import Sequence
from functools import partial

from stallwatch import __version__
from stallwatch.clock import Clock, iso
from stallwatch.doctor.check import Check, Inapplicable, Undetermined
from stallwatch.doctor.check_result import (
    SCHEMA_VERSION,
    SEVERITIES,
    CheckOutcome,
    CheckRecord,
    Examination,
    FindingRecord,
)
from stallwatch.doctor.surroundings import Surroundings
from stallwatch.node.aside import OneCallAtATime, Silent

DEADLINE_SECONDS = 4.0  # of all checks together; a whole run takes at most 5 s


def _result(check: Check, surroundings: Surroundings) -> tuple[CheckRecord, tuple[FindingRecord, ...]]:
    began = time.monotonic()
    findings: tuple[FindingRecord, ...] = ()
    outcome: CheckOutcome
    note = ""
    try:
        findings = check.look(surroundings)
        outcome = "found" if findings else "ok"
    except Inapplicable as reason:
        outcome, note = "skipped", str(reason)
    except Undetermined as reason:
        outcome, note = "unknown", str(reason)
    except Exception as error:  # noqa: BLE001 - the guard of checks: a broken one must not hide the others
        outcome, note = "unknown", f"own fault, please report: {type(error).__name__}: {error}"
    return CheckRecord(check.name, check.area, outcome, round(time.monotonic() - began, 4), note), findings


def examine(
    checks: Sequence[Check], surroundings: Surroundings, clock: Clock, deadline_seconds: float = DEADLINE_SECONDS
) -> Examination:
    """Return what all checks found; one that has not ended by the deadline is unknown, and says so."""
    began = time.monotonic()
    looks = [(check, OneCallAtATime[tuple[CheckRecord, tuple[FindingRecord, ...]]]()) for check in checks]
    for check, look in looks:
        look.begin(partial(_result, check, surroundings), name=f"doctor {check.name}")
    records: list[CheckRecord] = []
    findings: list[FindingRecord] = []
    for check, look in looks:
        try:
            record, found = look.answer(began + deadline_seconds - time.monotonic())
        except Silent:
            note = f"no answer within {deadline_seconds:.2g} s"
            record, found = CheckRecord(check.name, check.area, "unknown", deadline_seconds, note), ()
        records.append(record)
        findings += found
    return Examination(
        schema_version=SCHEMA_VERSION,
        tool_version=__version__,
        node=surroundings.host_name,
        examined_at=iso(clock.wall_ns(), "seconds"),
        seconds=round(time.monotonic() - began, 3),
        findings=tuple(sorted(findings, key=_order)),
        checks=tuple(records),
        verdicts=surroundings.question.report.verdicts if surroundings.question.report else (),
    )


def _order(finding: FindingRecord) -> tuple[bool, int]:
    """A failed run's own story first and in its own order; then the worst."""
    of_run = finding.area == "failed run"
    return not of_run, 0 if of_run else SEVERITIES.index(finding.severity)
