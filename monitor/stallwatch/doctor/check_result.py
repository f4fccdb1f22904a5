"""What a check says: the record of one finding, and the report of a whole examination (`doctor --json`)."""

from typing import Any, Literal

import msgspec

from stallwatch.model.verdict import Verdict

SCHEMA_VERSION = 1

Severity = Literal["error", "warning", "info"]
Area = Literal["environment", "gpu", "network", "host", "frameworks", "advice", "failed run"]
# "unknown": the check could not look, which is not "nothing wrong"; "skipped": there is nothing here to look at.
CheckOutcome = Literal["ok", "found", "skipped", "unknown"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")  # worst first


class FindingRecord(msgspec.Struct, frozen=True):
    """One thing to mend. Every text is a sentence or a command that a person can use as it stands."""

    check: str
    area: Area
    severity: Severity
    subject: str  # where: "this shell", "rank 3 (pid 812)", "/etc/nccl.conf", "GPU 2", a file
    seen: str  # what was read
    why: str  # why it matters
    remedy: str  # exactly what to do
    source: str = ""  # who says so: a document, an issue, a release


class CheckRecord(msgspec.Struct, frozen=True):
    """How one check of an examination ended, and in how many seconds."""

    check: str
    area: Area
    outcome: CheckOutcome
    seconds: float
    note: str = ""  # why it was skipped, or why the outcome is unknown


class Examination(msgspec.Struct, frozen=True):
    """`doctor --json`. Findings are ordered: of a failed run first, then by severity."""

    schema_version: int
    tool_version: str
    node: str
    examined_at: str  # ISO 8601, UTC
    seconds: float
    findings: tuple[FindingRecord, ...]
    checks: tuple[CheckRecord, ...]
    verdicts: tuple[Verdict, ...] = ()  # of the logs that --log named: the very ones of `analyze`

    def worst(self) -> Severity | None:
        """Return the highest severity of all findings, None without any."""
        found = {finding.severity for finding in self.findings}
        return next((severity for severity in SEVERITIES if severity in found), None)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of `doctor --json`."""
    return msgspec.json.schema(Examination)


def count(number: float, noun: str) -> str:
    """A number with its noun: "1 rank", "2 ranks", "3 processes"."""
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number:g} {noun if number == 1 else plural}"
