"""Every detector over every snapshot: the list of them, the step of all, and the guard around each."""

from typing import Any

import msgspec

from stallwatch.config import Config
from stallwatch.detectors.deaths import DeathsDetector
from stallwatch.detectors.detector import Detector
from stallwatch.detectors.drift import DriftDetector
from stallwatch.detectors.due import next_due
from stallwatch.detectors.hardware import HardwareDetector
from stallwatch.detectors.health import HealthDetector
from stallwatch.detectors.history import NodeHistory, advance
from stallwatch.detectors.init import InitDetector
from stallwatch.detectors.job_facts import JobFacts, job_facts
from stallwatch.detectors.job_pace import JobPaceDetector
from stallwatch.detectors.quiet import QuietDetector
from stallwatch.detectors.slow import SlowDetector, SlowState
from stallwatch.detectors.stall import StallDetector
from stallwatch.detectors.stopped import StoppedDetector
from stallwatch.detectors.views import rank_views
from stallwatch.detectors.xids import XidState, count, totals
from stallwatch.model.finding import Finding
from stallwatch.model.incident import RankView, XidCount
from stallwatch.model.snapshot import NodeSnapshot

Detectors = tuple[Detector[Any], ...]


def detectors(config: Config) -> Detectors:
    """The detectors in force, in the order in which their findings are listed."""
    return (
        DeathsDetector(config.tell),
        HardwareDetector(),
        StoppedDetector(),
        InitDetector(config.stall),
        StallDetector(config.stall),
        QuietDetector(config.stall),
        SlowDetector(config.slow),
        JobPaceDetector(),
        HealthDetector(),
        DriftDetector(),
    )


class DetectionState(msgspec.Struct, frozen=True):
    """All that detection remembers from one snapshot to the next."""

    history: NodeHistory | None = None
    of_detectors: tuple[tuple[str, Any], ...] = ()
    xids: XidState = XidState()


class DetectorError(msgspec.Struct, frozen=True):
    detector: str
    error: str


class Detected(msgspec.Struct, frozen=True):
    findings: tuple[Finding, ...]
    ranks: tuple[RankView, ...]
    jobs: tuple[JobFacts, ...]
    errors: tuple[DetectorError, ...] = ()
    xid_counts: tuple[XidCount, ...] = ()
    due_ns: int | None = None  # CLOCK_MONOTONIC of the look that would change something, if it comes before the next


class Detection:
    """Pure but for its configuration: the same snapshots give the same findings, live and from a timeline."""

    def __init__(self, config: Config, parts: Detectors | None = None) -> None:
        self._stall = config.stall
        self._parts = detectors(config) if parts is None else parts

    def step(self, state: DetectionState, snapshot: NodeSnapshot) -> tuple[DetectionState, Detected]:
        """Given what is remembered and a new snapshot, return what to remember and what was found.

        A bug in one detector costs its findings of this tick and is reported; the others go on.
        """
        seen = advance(state.history, snapshot)
        states = dict(state.of_detectors)
        findings: list[Finding] = []
        errors: list[DetectorError] = []
        for part in self._parts:
            before = states.get(part.name)
            try:
                states[part.name], found = part.step(part.start() if before is None else before, seen)
            except Exception as error:  # noqa: BLE001  the daemon's per-stage guard
                states[part.name] = part.start()
                errors.append(DetectorError(part.name, f"{type(error).__name__}: {error}"))
                continue
            findings += found
        found_all = tuple(findings)
        slow = states.get(SlowDetector.name)
        shares = slow.shares() if isinstance(slow, SlowState) else {}
        views = rank_views(seen, found_all, self._stall, shares)
        xids = count(state.xids, snapshot)
        due_ns = next_due(found_all, seen, self._stall)
        return (
            DetectionState(seen, tuple(states.items()), xids),
            Detected(found_all, views, job_facts(seen), tuple(errors), totals(xids), due_ns),
        )
