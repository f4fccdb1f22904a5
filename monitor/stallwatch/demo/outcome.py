"""What came of one fault: the daemon's verdict beside the truth."""

import msgspec

from stallwatch.model.verdict import Verdict
from stallwatch.outputs.documents import IncidentDocument


class Said(msgspec.Struct, frozen=True):
    """What the daemon said, and how long after the fault."""

    seconds: float
    cause: str
    culprits: tuple[int, ...]


class DemoOutcome(msgspec.Struct, frozen=True):
    """What was expected of the daemon for one fault, what it said, and whether the two agree."""

    fault: str
    seed: int
    ranks: int
    agrees: bool
    expected_causes: tuple[str, ...]
    expected_culprits: tuple[int, ...]
    seconds_to_verdict: float | None  # None: no verdict, which is right for a job with nothing wrong
    said: tuple[Said, ...]  # every different thing, oldest first
    incident: IncidentDocument | None
    page_url: str | None
    problem: str = ""  # why there is no outcome to judge

    @property
    def verdict(self) -> Verdict | None:
        """The first verdict of the incident, None where there is none."""
        return self.incident.verdicts[0] if self.incident and self.incident.verdicts else None
