"""What the loop shows to its outputs each tick: what was seen and found, and what the daemon itself does and costs."""

from msgspec.structs import replace

from stallwatch.config import Config
from stallwatch.detectors.detection import Detected
from stallwatch.incidents import silence
from stallwatch.incidents.cost import Cost
from stallwatch.incidents.life import IncidentTable
from stallwatch.incidents.tally import Tally
from stallwatch.loop.protocols import SharedIncidents, Store
from stallwatch.loop.stage_guard import StageGuard
from stallwatch.loop.usage import OwnUsageReader
from stallwatch.model.incident import NodeReport
from stallwatch.model.snapshot import NodeSnapshot, SensorStatus


class Reporter:
    """Makes the report of each tick; counts over all ticks what the report sums up."""

    def __init__(self, store: Store, fleet: SharedIncidents | None, guard: StageGuard, started_wall_ns: int) -> None:
        """`guard`: a part that fails leaves the rest of the report, and is counted in it."""
        self._store = store
        self._fleet = fleet
        self._guard = guard
        self._started_wall_ns = started_wall_ns
        self._usage = OwnUsageReader()
        self._tally = Tally()
        self._cost = Cost()

    def report(self, snapshot: NodeSnapshot, detected: Detected, lives: IncidentTable, config: Config) -> NodeReport:
        """Given what was seen and found, the incidents and the configuration in force, return the report."""
        usage = None
        with self._guard.stage("daemon", "usage"):
            usage = self._usage.at(snapshot.at_ns)
        incidents = lives.incidents()
        with self._guard.stage("incidents", "tally"):
            self._tally = self._tally.step(detected.ranks, snapshot.ranks, incidents)
        with self._guard.stage("incidents", "cost"):
            self._cost = self._cost.step(detected.ranks, incidents, dict(self._tally.labels), snapshot.at_ns)
        return NodeReport(
            snapshot=replace(snapshot, sensors=(*snapshot.sensors, *self._own_sensors())),
            ranks=detected.ranks,
            findings=detected.findings,
            incidents=incidents,
            stage_errors=self._guard.errors(),
            daemon_cpu_seconds=usage.cpu_seconds if usage else None,
            daemon_resident_bytes=usage.resident_bytes if usage else None,
            started_wall_ns=self._started_wall_ns,
            incident_counts=self._tally.counts,
            xid_counts=detected.xid_counts,
            job_labels=self._tally.labels,
            stalled=self._cost.totals,
            judged=lives.judged,
            telling=silence.shown(lives, config, snapshot.at_ns),
            strangers=self._fleet.strangers if self._fleet is not None else None,
            nodes=self._fleet.nodes if self._fleet is not None else (),
            meetings=self._fleet.meetings(snapshot.at_ns) if self._fleet is not None else None,
        )

    def _own_sensors(self) -> list[SensorStatus]:
        """How the daemon's own disk and meeting place do, as its sensors are shown."""
        problem = self._store.problem()
        own = [SensorStatus("state_directory", not problem, problem, 0.0, 0)]
        if self._fleet is not None:
            own.append(self._fleet.status())
        return own
