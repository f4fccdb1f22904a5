"""A notifier with a poster that answers what the test hands it."""

import queue
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from stallwatch.incidents.delivery_steps import Step
from stallwatch.model.incident import Incident, NodeReport
from stallwatch.node.atomic_file import write_atomically
from stallwatch.outputs.delivery import DeliveryResult, Later
from stallwatch.outputs.notifier import Notifier
from stallwatch.outputs.rate_cap import RateCap
from stallwatch.outputs.spool import Spool
from tests.builders.clock import FakeClock
from tests.unit.outputs.reports import node_report

WAIT = 10.0  # a test that needs this long has failed


class FakePoster:
    """Answers what the test hands it; an attempt without an answer stays under way, as with a server that hangs."""

    def __init__(self) -> None:
        self.attempts: queue.Queue[str] = queue.Queue()
        self.answers: queue.Queue[DeliveryResult] = queue.Queue()
        self.cancelled = 0
        self.threads: list[str] = []
        self.prepared: queue.Queue[None] = queue.Queue()

    def post(self, body: bytes, seconds: float, thread: str = "") -> DeliveryResult:
        self.threads.append(thread)
        self.attempts.put(body.decode())
        return self.answers.get(timeout=WAIT)

    def be_ready(self) -> None:
        self.prepared.put(None)

    def cancel(self) -> None:
        self.cancelled += 1
        self.answers.put(Later("cancelled"))


class PlainWords:
    def message(self, incident: Incident, step: Step, report: NodeReport) -> Mapping[str, object]:
        return {"id": incident.incident_id, "step": step}

    def line(self, incident: Incident, step: Step) -> str:
        return f"{incident.incident_id} {step}"

    def readers(self, incident: Incident) -> str:
        return "#others" if incident.job.owner == "other" else ""

    def digest(self, lines: Sequence[str]) -> Mapping[str, object]:
        return {"step": "digest", "lines": list(lines)}

    def test(self) -> Mapping[str, object]:
        return {"test": True}


class PlainSpoolFile:
    """A SpoolFile without a child."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> Spool:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return msgspec.json.decode(self.path.read_bytes(), type=Spool) if self.path.exists() else Spool()

    def save(self, spool: Spool) -> None:
        write_atomically(self.path, msgspec.json.encode(spool))

    def be_ready(self) -> None:
        pass

    def rest(self) -> None:
        pass


class Bench:
    def __init__(self, state: Path, cap: RateCap | None = None, file: PlainSpoolFile | None = None) -> None:
        self.state = state
        self.cap = cap
        self.file = file
        self.clock = FakeClock(1_000_000_000)
        self.poster = FakePoster()
        self.notifier = self.start()

    def start(self) -> Notifier:
        notifier = Notifier(
            "slack",
            PlainWords(),
            self.poster,
            self.clock,
            self.file or PlainSpoolFile(self.state / "slack.json"),
            "warning",
            cap=self.cap,
        )
        notifier.start()
        return notifier

    def restart(self) -> None:
        self.notifier.close(WAIT)
        self.poster = FakePoster()
        self.notifier = self.start()

    def publish(self, *incidents: Incident) -> None:
        self.notifier.publish(node_report(*incidents))

    def attempt(self) -> str:
        """The step of the next attempt."""
        return str(msgspec.json.decode(self.poster.attempts.get(timeout=WAIT))["step"])

    def incident(self) -> str:
        """Which incident the next attempt is of."""
        return str(msgspec.json.decode(self.poster.attempts.get(timeout=WAIT))["id"])

    @property
    def next_attempt_ns(self) -> int:
        return max(self.notifier._back_off.moments_ns())

    def answer(self, outcome: DeliveryResult) -> None:
        self.poster.answers.put(outcome)

    def settled(self, **counts: int) -> None:
        """Wait until the worker has counted so many."""
        with self.notifier._changed:
            pass
        for _ in range(1000):
            if counts.items() <= self.notifier.deliveries().items():
                return
            with self.notifier._changed:
                self.notifier._changed.wait(0.01)
        raise AssertionError(self.notifier.deliveries())
