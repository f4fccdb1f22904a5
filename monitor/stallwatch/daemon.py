"""The node daemon: one loop over look, detect, act, publish. Everything that can block runs in a child it may lose.

Invariants: the loop alone changes state; a stage that raises costs its own result of this tick and is counted; nothing
that the loop calls stands outside a guard; signal handlers only set flags.
"""

import logging
import signal
import time
from collections.abc import Callable, Sequence
from types import FrameType

from msgspec.structs import replace

from stallwatch.clock import Clock, since_boot_ns
from stallwatch.config import Config
from stallwatch.detectors.detection import Detected, Detection, DetectionState
from stallwatch.detectors.node_pace import paces
from stallwatch.errors import StallwatchError
from stallwatch.incidents import silence
from stallwatch.incidents.engine import Engine, Now
from stallwatch.incidents.life import IncidentTable
from stallwatch.incidents.looking import due_ns
from stallwatch.incidents.messages import Event
from stallwatch.loop.actions import ActionRunner
from stallwatch.loop.bundle_store import BundleStore
from stallwatch.loop.control import Command, ControlService
from stallwatch.loop.kept_silences import KeptSilences
from stallwatch.loop.node_report import Reporter
from stallwatch.loop.notify import ServiceManager
from stallwatch.loop.past_incidents import joined, make_room, taken_over
from stallwatch.loop.protocols import SensorPanel, SharedIncidents, Starter, Store
from stallwatch.loop.renewal import ReloadRequests, Renewal, changed, held, renews_sensors
from stallwatch.loop.ring import SnapshotRing
from stallwatch.loop.sampling import MOVES_ALL_THE_SAME, Sampler
from stallwatch.loop.schedule import Schedule
from stallwatch.loop.stage_guard import StageGuard
from stallwatch.loop.wakeup import Wakeup
from stallwatch.model.finding import Finding
from stallwatch.model.snapshot import JobDrift, NodeSnapshot
from stallwatch.node.free_lists import FreeLists
from stallwatch.outputs.build import renews_telling, with_telling
from stallwatch.outputs.output import Output

log = logging.getLogger("stallwatch.daemon")

_POLL_SECONDS = 0.05  # between looks at children under way
_CLOSEST_TICKS_NS = 200_000_000  # however much happens on the node
_ROOM_TICKS = 600  # between looks at the store's size
_TAKE_OVER_TICKS = 10  # between attempts where the disk did not answer at the start
_AFTER_SECONDS = 60.0  # how much of an incident itself a timeline holds beside what came before
_CLOSE_SECONDS = 2.0  # what an output may take for its last words


class Daemon:
    """The loop: reads sensors, detects, lets incidents decide, and has it done."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        panel: SensorPanel,
        starter: Starter,
        store: Store,
        service: ServiceManager,
        reload: Callable[[], Config] | None = None,
        renewal: Renewal | None = None,
        sampler: Sampler | None = None,
        spare: Store | None = None,
        cannot_go_on: Callable[[], bool] = lambda: False,
        fleet: SharedIncidents | None = None,
    ) -> None:
        """`cannot_go_on`: asked at each tick; then `run` ends, to be started again by whoever started it."""
        self._config = config
        self._clock = clock
        self._panel = panel
        self._store = store
        self._service = service
        self._reload = reload
        self._renewal = renewal
        self._sampler = sampler
        self._cannot_go_on = cannot_go_on
        self._fleet = fleet
        self._wakeup = Wakeup()
        self._stopping = False
        self._is_ready = False
        self._ticks = 0
        self._reloads = ReloadRequests()
        self._guard = StageGuard()
        self._ring = SnapshotRing(config.incidents.timeline_seconds + _AFTER_SECONDS, config.daemon.tick_seconds)
        self._starter = starter
        bundles = BundleStore(store, spare, self._guard)
        self._actions = ActionRunner(config, bundles, self._ring, starter, self._guard, clock.monotonic_ns)
        self._detection = Detection(config)
        self._remembered = DetectionState()
        self._detected = Detected((), (), ())
        self._engine = Engine(config)
        self._lives = IncidentTable()
        self._took_over = False
        self._silences = KeptSilences(store, clock) if fleet is None else None
        self._room_tick = _ROOM_TICKS - 1  # of the next look at the store's size
        self._free_lists = FreeLists(lambda: clock.monotonic_ns() / 1e9)
        self._outputs: tuple[Output, ...] = ()
        self._reporter = Reporter(store, fleet, self._guard, clock.wall_ns())
        self.control = ControlService(store, clock, self._wakeup.ring)

    def run(self, outputs: Sequence[Output]) -> None:
        """Watch until told to stop. Raise UsageError when an output cannot start."""
        try:
            self.open(outputs)
            for output in self._outputs:
                output.start()
            self._watch()
        finally:
            self.close()

    def _watch(self) -> None:
        schedule = Schedule(self._clock, self._config.daemon.tick_seconds)
        going = True
        while going and not self._stopping:
            try:
                going = self._turn(schedule)
            except MemoryError:  # of the guards themselves, or of what little stands between them
                self._guard.reserve.give()
                time.sleep(_POLL_SECONDS)

    def _turn(self, schedule: Schedule) -> bool:
        """A tick and what comes until the next; return whether to go on."""
        tick = self._ticks
        self._ticks += 1
        ended = False
        with self._guard.stage("daemon", "tick"):
            self.tick(tick, schedule.begin())
            ended = True
        if ended:  # whoever watches us starts us again when no tick comes to its end
            with self._guard.stage("daemon", "notify"):
                self._service.say("WATCHDOG=1" if self._is_ready else "READY=1")
            self._is_ready = True
        with self._guard.stage("daemon", "cannot_go_on"):
            if self._cannot_go_on():
                return False
        earliest_ns = self._clock.monotonic_ns() + _CLOSEST_TICKS_NS
        with self._guard.stage("incidents", "due"):
            for moment_ns in (self._detected.due_ns, *map(due_ns, self._lives.active)):
                if moment_ns is not None:  # there is something to do before the next tick would come
                    schedule.hasten(max(moment_ns, earliest_ns))
        while not self._stopping and schedule.remaining_seconds() > 0:
            rested = False
            with self._guard.stage("daemon", "rest"):
                self._rest(schedule)
                rested = True
            if not rested:
                time.sleep(_POLL_SECONDS)  # what should have waited could not
            with self._guard.stage("daemon", "between_ticks"):
                self.between_ticks()
            with self._guard.stage("sensors", "news"):
                if self._panel.news():
                    schedule.hasten(earliest_ns)
        return True

    def _rest(self, schedule: Schedule) -> None:
        seconds = schedule.remaining_seconds()
        if self._actions.busy or (self._fleet is not None and self._fleet.busy):
            seconds = min(seconds, _POLL_SECONDS)
        self._wakeup.wait(seconds, self._panel.news_descriptors())

    def tick(self, tick: int, late_seconds: float) -> None:
        """Look, detect, act, publish."""
        snapshot = None
        with self._guard.stage("sensors", "panel"):
            snapshot = self._panel.look(tick)
        if snapshot is not None:
            snapshot = replace(snapshot, late_seconds=late_seconds, drifts=self._sample(snapshot))
            self._ring.add(snapshot)
            self._detect(snapshot)
            self._act(snapshot.at_ns)
            self._publish(snapshot)
            with self._guard.stage("diagnosis", "start"):
                if snapshot.ranks:
                    self._starter.be_ready()
                    self._store.be_ready()
                else:
                    self._store.rest()
        with self._guard.stage("incidents", "catch_up"):
            self._actions.catch_up()
        self._free_lists.give_back()
        self._guard.reserve.keep()
        if not self._took_over and tick % _TAKE_OVER_TICKS == _TAKE_OVER_TICKS - 1:
            self._take_over()
        if tick >= self._room_tick:
            more = False
            with self._guard.stage("incidents", "retention"):
                more = make_room(self._store, self._lives, self._config.incidents, self._clock.wall_ns())
            self._room_tick = tick + (1 if more else _ROOM_TICKS)

    def _sample(self, snapshot: NodeSnapshot) -> tuple[JobDrift, ...]:
        sampler = self._sampler
        if sampler is None or silence.mode_of(self._lives, self._config, snapshot.at_ns) == "off":
            return ()
        quiet = {f.job for f in self._detected.findings if f.family not in MOVES_ALL_THE_SAME}
        quiet |= {life.incident.job for life in self._lives.active if life.capturing}
        with self._guard.stage("captures", "sample"):
            return sampler.step(snapshot, quiet)
        return ()

    def between_ticks(self) -> None:
        """Serve people and children without waiting for the next tick."""
        if self._reloads.pending:
            with self._reloads.carried_out(), self._guard.stage("daemon", "reload"):
                self._read_config()
        if self._act(self._clock.monotonic_ns(), only_news=True) and self._ring.latest is not None:
            self._publish(self._ring.latest)

    def _detect(self, snapshot: NodeSnapshot) -> None:
        with self._guard.stage("detectors", "step"):  # where it fails, what was found before stands
            self._remembered, self._detected = self._detection.step(self._remembered, snapshot)
            for error in self._detected.errors:
                self._guard.count("detectors", error.detector, error.error)
            with self._guard.stage("fleet", "pace"):
                shared = self._compare(snapshot.at_ns)
                self._detected = replace(self._detected, findings=(*self._detected.findings, *shared))

    def _compare(self, at_ns: int) -> Sequence[Finding]:
        """What only all nodes of a job together show of its ranks here."""
        if self._fleet is None:
            return ()
        return self._fleet.moves(lambda: paces(self._remembered), self._detected.jobs, self._detected.findings, at_ns)

    def _act(self, at_ns: int, *, only_news: bool = False) -> bool:
        """Let the incidents live on and do what they want done; return whether there was anything to hear."""
        wishes: list[Command] = []
        events: list[Event] = []
        with self._guard.stage("incidents", "wishes"):
            wishes = self.control.wishes()
        with self._guard.stage("incidents", "poll"):
            events += self._actions.poll(self._lives.active)
        events += (wish.event for wish in wishes)
        events += self._share(events, at_ns)
        if only_news and not events:
            return False
        node = self._ring.latest.node if self._ring.latest else ""
        found = self._detected
        now = Now(at_ns, self._clock.wall_ns(), node, found.findings, found.jobs, since_boot_ns())
        with self._guard.stage("incidents", "engine"):
            self._lives, actions = self._engine.advance(self._lives, events, now)
            self._actions.do(actions)
        if self._took_over and self._silences is not None:
            with self._guard.stage("incidents", "silences"):
                self._silences.keep(self._lives)
        for wish in wishes:
            with self._guard.stage("incidents", "answer"):
                wish.answer_from(self._lives)
        return True

    def _share(self, news: Sequence[Event], at_ns: int) -> Sequence[Event]:
        if self._fleet is not None:
            with self._guard.stage("fleet", "step"):
                return self._fleet.step(self._lives, news, self._detected.jobs, at_ns)
        return ()

    def _publish(self, snapshot: NodeSnapshot) -> None:
        report = None
        with self._guard.stage("daemon", "report"):
            report = self._reporter.report(snapshot, self._detected, self._lives, self._config)
        if report is None:
            return
        self.control.show(report)
        for output in self._outputs:
            with self._guard.stage("outputs", output.name):
                output.publish(report)

    @property
    def outputs(self) -> tuple[Output, ...]:
        """Everything that it tells."""
        return self._outputs

    def open(self, outputs: Sequence[Output]) -> None:
        """Take over what the last daemon left."""
        self._outputs = tuple(outputs)
        self._take_over()

    def _take_over(self) -> None:
        left = None
        with self._guard.stage("incidents", "store"):
            left = taken_over(self._store, self._silences, self._clock.monotonic_ns())
        if left is not None:
            self._took_over = True
            self._lives = joined(self._lives, left)

    def close(self) -> None:
        """End every child and let the outputs say their last words."""
        with self._guard.stage("daemon", "notify"):
            self._service.say("STOPPING=1")
        with self._guard.stage("incidents", "close"):
            self._actions.close()
        if self._fleet is not None:
            with self._guard.stage("fleet", "close"):
                self._fleet.close()
        if self._sampler is not None:
            with self._guard.stage("captures", "sample"):
                self._sampler.close()
        for output in self._outputs:
            self._close(output)
        with self._guard.stage("sensors", "panel"):
            self._panel.close()

    def _close(self, output: Output) -> None:
        with self._guard.stage("outputs", output.name):
            output.close(_CLOSE_SECONDS)

    def handle_signals(self) -> None:
        """End and read the configuration anew by signals; call it in the main thread."""
        signal.signal(signal.SIGTERM, self.stop)
        signal.signal(signal.SIGINT, self.stop)
        signal.signal(signal.SIGHUP, self.ask_reload)

    def stop(self, *_: int | FrameType | None) -> None:
        """Ask the loop to end; a signal handler, and safe from any thread."""
        self._stopping = True
        self._wakeup.ring()

    def ask_reload(self, *_: int | FrameType | None) -> None:
        """Ask the loop to read its configuration again."""
        self._reloads.ask()
        self._wakeup.ring()

    def outputs_in_force(self, seconds: float = 10.0) -> tuple[Output, ...]:
        """The outputs, made again if that was just asked for: `systemctl reload` returns once the signal is sent, and a
        test alert that follows it is meant for what the file says now. For another thread than the loop's."""
        self._reloads.wait(seconds)
        return self._outputs

    def _read_config(self) -> None:
        if self._reload is None:
            return
        try:
            config, kept = held(self._config, self._reload())
            keys = changed(self._config, config)
            renews = self._renewal is not None and renews_telling(config, keys)
            sending = self._renewal.telling(config, self.control) if self._renewal is not None and renews else ()
        except StallwatchError as error:
            raise StallwatchError(f"the old configuration stays: {error}. {error.help}") from error
        if self._renewal is not None:
            with self._guard.stage("privileged", "renew"):
                self._renewal.privileged()
            if renews:
                self._renew_telling(sending)
            if renews_sensors(keys):
                before = self._panel
                self._panel = self._renewal.panel(config)
                with self._guard.stage("sensors", "panel"):
                    before.close()
        self._config = config
        self._detection, self._engine = Detection(self._config), Engine(self._config)
        self._actions.configure(self._config)
        if self._sampler is not None:
            self._sampler.configure(self._config.drift)
        log.info("configuration read again; changed: %s", ", ".join(keys) or "nothing")
        if kept:
            log.warning("keeps its old value until a restart: %s", ", ".join(kept))

    def _renew_telling(self, sending: tuple[Output, ...]) -> None:
        """The old ones write down what waits before the new ones read it."""
        staying = with_telling(self._outputs, ())
        for output in self._outputs:
            if output not in staying:
                self._close(output)
        for output in sending:
            with self._guard.stage("outputs", output.name):
                output.start()
        self._outputs = with_telling(staying, sending)
