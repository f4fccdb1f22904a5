"""The node daemon: one loop over look, detect, act, publish. Everything that can block runs in a child it may lose.

Invariants: the loop alone changes state; a stage that raises costs its own result of this tick and is counted; signal
handlers only set flags.
"""

import logging
import signal
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType

from msgspec.structs import replace

from stallwatch.clock import Clock
from stallwatch.config import Config
from stallwatch.detectors.detection import Detected, Detection, DetectionState
from stallwatch.incidents.engine import Engine, Now, adopt
from stallwatch.incidents.life import Lives
from stallwatch.incidents.messages import Event
from stallwatch.incidents.store import IncidentStore
from stallwatch.loop.desk import Desk, Wish
from stallwatch.loop.guard import StageGuard
from stallwatch.loop.hands import Hands
from stallwatch.loop.notify import ServiceManager
from stallwatch.loop.parts import Looks, Starter
from stallwatch.loop.ring import SnapshotRing
from stallwatch.loop.schedule import Schedule
from stallwatch.loop.usage import own_usage
from stallwatch.model.incident import NodeReport
from stallwatch.model.snapshot import NodeSnapshot
from stallwatch.outputs.output import Output

log = logging.getLogger("stallwatch.daemon")

_POLL_SECONDS = 0.1  # between looks at children under way
_RETAIN_TICKS = 600
_AFTER_SECONDS = 60.0  # how much of an incident itself a timeline holds beside what came before
_PAST = 20
_CLOSE_SECONDS = 2.0  # what an output may take to send its last words


class Daemon:
    def __init__(
        self,
        config: Config,
        clock: Clock,
        panel: Looks,
        starter: Starter,
        store: IncidentStore,
        service: ServiceManager,
        reload: Callable[[], Config] | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._panel = panel
        self._store = store
        self._service = service
        self._reload = reload
        self._wake = threading.Event()
        self._stopping = False
        self._reloading = False
        self._guard = StageGuard()
        self._ring = SnapshotRing(config.incidents.timeline_seconds + _AFTER_SECONDS, config.daemon.tick_seconds)
        self._hands = Hands(config, store, self._ring, starter, self._guard)
        self._detection, self._detection_state = Detection(config), DetectionState()
        self._engine, self._lives = Engine(config), Lives()
        self._detected = Detected((), (), ())
        self._outputs: tuple[Output, ...] = ()
        self._started_wall_ns = clock.wall_ns()
        self.desk = Desk(store, clock, self._wake.set)

    def run(self, outputs: Sequence[Output]) -> None:
        """Watch until told to stop. Raise UsageError when an output cannot start, OSError when the store cannot."""
        self._outputs = tuple(outputs)
        try:
            self._store.prepare()
            self._adopt()
            for output in self._outputs:
                output.start()
            self._watch()
        finally:
            self._close()

    def stop(self, *_: int | FrameType | None) -> None:
        """Ask the loop to end; a signal handler, and safe from any thread."""
        self._stopping = True
        self._wake.set()

    def handle_signals(self) -> None:
        signal.signal(signal.SIGTERM, self.stop)
        signal.signal(signal.SIGINT, self.stop)
        signal.signal(signal.SIGHUP, self._ask_reload)

    def _watch(self) -> None:
        schedule = Schedule(self._clock, self._config.daemon.tick_seconds)
        tick = 0
        while not self._stopping:
            self.tick(tick, schedule.begin())
            self._service.say("READY=1" if tick == 0 else "WATCHDOG=1")
            tick += 1
            while not self._stopping and (remaining := schedule.remaining_seconds()) > 0:
                self._wake.wait(min(remaining, _POLL_SECONDS) if self._hands.busy else remaining)
                self._wake.clear()
                self.between_ticks()

    def tick(self, tick: int, late_seconds: float) -> None:
        """Look, detect, act, publish."""
        snapshot = self._guard.run("sensors", "panel", lambda: self._panel.look(tick))
        if snapshot is not None:
            snapshot = replace(snapshot, late_seconds=late_seconds)
            self._ring.add(snapshot)
            self._detect(snapshot)
            self._act(snapshot.at_ns)
            self._publish(snapshot)
        if tick % _RETAIN_TICKS == _RETAIN_TICKS - 1:
            self._guard.run("incidents", "retain", self._retain)

    def between_ticks(self) -> None:
        """Serve people and children without waiting for the next tick."""
        if self._reloading:
            self._reloading = False
            self._guard.run("daemon", "reload", self._reload_config)
        if self._act(self._clock.monotonic_ns(), only_news=True) and self._ring.latest is not None:
            self._publish(self._ring.latest)

    def _detect(self, snapshot: NodeSnapshot) -> None:
        self._detection_state, self._detected = self._detection.step(self._detection_state, snapshot)
        for error in self._detected.errors:
            self._guard.count("detectors", error.detector, error.error)

    def _act(self, at_ns: int, *, only_news: bool = False) -> bool:
        """Let the incidents live on and do what they want done; return whether anything was there to do."""
        wishes = self.desk.wishes()
        events: list[Event] = [*self._hands.poll(), *(wish.event for wish in wishes)]
        if only_news and not events:
            return False
        now = Now(at_ns, self._clock.wall_ns(), self._node(), self._detected.findings, self._detected.jobs)
        advanced = self._guard.run("incidents", "engine", lambda: self._engine.advance(self._lives, events, now))
        if advanced is not None:
            self._lives, actions = advanced
            self._hands.do(actions)
        for wish in wishes:
            self._answer(wish)
        return True

    def _publish(self, snapshot: NodeSnapshot) -> None:
        usage = own_usage()
        report = NodeReport(
            snapshot=snapshot,
            ranks=self._detected.ranks,
            findings=self._detected.findings,
            incidents=self._lives.incidents(),
            stage_errors=self._guard.errors(),
            daemon_cpu_seconds=usage.cpu_seconds,
            daemon_resident_bytes=usage.resident_bytes,
            started_wall_ns=self._started_wall_ns,
        )
        self.desk.show(report)
        for output in self._outputs:
            self._guard.run("outputs", output.name, partial(output.publish, report))

    def _answer(self, wish: Wish) -> None:
        if wish.answer is None:
            return
        job = getattr(wish.event, "job", None)
        lives = [life for life in self._lives.active if life.incident.job == job and life.family != "slow"]
        if lives:
            wish.answer.set_result(lives[-1].incident.incident_id)

    def _node(self) -> str:
        return self._ring.latest.node if self._ring.latest else ""

    def _adopt(self) -> None:
        left = self._store.left_open()
        open_ids = {incident.incident_id for incident, _ in left}
        past = [i for i in self._store.newest(_PAST) if i.incident_id not in open_ids]
        self._lives = adopt(left, self._store.ordinals(), past, self._clock.monotonic_ns())
        for incident, _ in left:
            log.info("incident=%s taken over from the last daemon", incident.incident_id)

    def _retain(self) -> None:
        limits = self._config.incidents
        oldest_ns = self._clock.wall_ns() - int(limits.keep_seconds * 1e9)
        keep = {life.incident.incident_id for life in self._lives.active}
        for name in self._store.retain(limits.keep_bytes, oldest_ns, keep):
            log.info("incident=%s removed: older than or beyond what is kept", name)

    def _ask_reload(self, *_: int | FrameType | None) -> None:
        self._reloading = True
        self._wake.set()

    def _reload_config(self) -> None:
        if self._reload is None:
            return
        self._config = self._reload()
        self._detection, self._engine = Detection(self._config), Engine(self._config)
        log.info("configuration read again; listen address, directories and outputs keep theirs until a restart")

    def _close(self) -> None:
        self._service.say("STOPPING=1")
        self._hands.close()
        for output in self._outputs:
            self._guard.run("outputs", output.name, partial(output.close, _CLOSE_SECONDS))
        self._guard.run("sensors", "panel", self._panel.close)
