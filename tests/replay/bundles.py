"""Whether the timelines of incident bundles replay to what was found when they were written.

    python -m tests.replay.bundles BUNDLE…

Each is replayed as `stallwatch replay` does it, with its own configuration; what incident.json says was found must be
found again, at the same ranks and since the same moment. Exit code 0 when all agree.
"""

import sys
from pathlib import Path

import msgspec

from stallwatch.model.finding import Finding
from stallwatch.model.incident import Incident
from stallwatch.replay.document import replay_bundle

# What a timeline cannot show, for it began before: a look of the samplers, minutes of step times.
_NEEDS_MORE_PAST = ("slow", "slow_job", "drift")


def missing(bundle: Path) -> list[Finding]:
    """Return the findings of a bundle's incident that its timeline does not give again."""
    incident = msgspec.json.decode((bundle / "incident.json").read_bytes(), type=Incident)
    again = {_decision(finding) for decision in replay_bundle(bundle).detection for finding in decision.findings}
    return [finding for finding in incident.findings if _decision(finding) not in again]


def _decision(finding: Finding) -> tuple[object, ...]:
    return finding.job, finding.detector, finding.stage, finding.ranks, finding.since_ns, finding.resolvable


def main() -> int:
    wrong = 0
    for bundle in map(Path, sys.argv[1:]):
        lost = missing(bundle)
        unexpected = [finding for finding in lost if finding.detector not in _NEEDS_MORE_PAST]
        wrong += bool(unexpected)
        said = "; ".join(f"{finding.detector} {finding.stage} {list(finding.ranks)}" for finding in lost)
        print(f"{bundle.name:40} {'the same' if not lost else f'NOT AGAIN: {said}'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
