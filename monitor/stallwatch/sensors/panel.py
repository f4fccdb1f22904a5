"""All sensors of the node behind one call that never blocks past its deadline: each in a child process that the loop is
willing to lose."""

import select
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from stallwatch.clock import Clock
from stallwatch.config import Config, node_of
from stallwatch.encoding import msgpack_of
from stallwatch.formats.tolerant import NOT_JSON
from stallwatch.model.gpu import Gpu
from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.sensor_spec import SensorSpec
from stallwatch.model.snapshot import (
    SENSORS,
    GpusLook,
    NodeSnapshot,
    PartStatus,
    RankSample,
    RanksLook,
    SensorStatus,
)
from stallwatch.node.children import Start
from stallwatch.node.privileged_client import Privileged
from stallwatch.node.worker import Worker
from stallwatch.sensors.sensor import NEWS, SensorAnswer

T = TypeVar("T")

_FIRST_BACK_OFF_SECONDS = 1.0
_LONGEST_BACK_OFF_SECONDS = 60.0
# What is absent (a driver) may be installed while we run; looking for it costs a process start.
_ABSENT_BACK_OFF_SECONDS = 300.0
# A child that imports on a busy node may take this long to say that there is nothing to read.
_SLOW_START_SECONDS = 5.0
# Between the end of a child's answers and its exit.
_EXIT_SECONDS = 0.1
_NOT_YET = PartStatus(False, "", 0.0, 0)

Reading = Known[Any] | Unavailable


class SupervisedSensor(Generic[T]):
    """Asks a child once a look. No call here waits: `descriptor` tells when there is something to collect."""

    def __init__(
        self,
        name: str,
        title: str,
        answer_type: type[T],
        start: Start,
        clock: Clock,
        *,
        required: bool = True,
    ) -> None:
        """`title` is how sentences name it ("NVML"); `start` starts its child, with the rights that it needs; one that
        is not `required` may be absent, but has to answer where it is not."""
        self.name = name
        self._title = title
        self._decoder = msgspec.msgpack.Decoder(answer_type)
        self._answers = msgspec.msgpack.Decoder(SensorAnswer)
        self._clock = clock
        self._required = required
        self._present = False  # the node has the thing, so that not to answer is a fault
        self._worker = Worker(start, lambda: clock.monotonic_ns() / 1e9)
        self._request = 0
        self._start_ns = clock.monotonic_ns()  # earliest next start
        self._back_off_seconds = _FIRST_BACK_OFF_SECONDS
        self._errors_total = 0
        self._duration_seconds = 0.0
        self._result: Known[T] | Unavailable = Unavailable(f"{title} has not been asked yet", self._start_ns)
        self._settled = False  # this look's result is final
        self._has_news = False

    @property
    def pid(self) -> int | None:
        """Its child's pid; None without one."""
        return self._worker.pid

    @property
    def descriptor(self) -> int | None:
        """What to poll for reading while this look's answer is missing."""
        return None if self._settled else self.news_descriptor

    @property
    def news_descriptor(self) -> int | None:
        """What to poll between looks for the child's word that something happened."""
        return self._worker.descriptor

    def news(self) -> bool:
        """Between looks: return whether the child said since the last look that it should be asked soon."""
        self.collect(late=True)
        return self._has_news

    def ask(self) -> None:
        """Begin a look: drop a late answer, start or restart the child if it is time, and ask unless it still hangs."""
        self._settled = False
        self.collect(late=True)
        self._has_news = False
        now_ns = self._clock.monotonic_ns()
        if self.pid is None and now_ns >= self._start_ns:
            self._start(now_ns)
        if self.pid is None or self._back_off_seconds == 0.0:  # it is on its way out: nothing to ask
            self._settled = True
            return
        if self._worker.asked is not None:
            if self._worker.is_given_up:
                self._worker.kill()
            return
        self._request += 1
        try:
            self._worker.ask(msgpack_of(self._request))
        except BrokenPipeError:
            self._ended()

    def is_fresh(self, seconds: float) -> bool:
        """Whether its last answer was a value no older than that, and its child has not said anything since."""
        if not isinstance(self._result, Known) or self._has_news:
            return False
        return self._clock.monotonic_ns() - self._result.at_ns < seconds * 1e9

    def rest(self) -> None:
        """Begin a look without a question: its last answer holds, unless its child ended."""
        self.collect(late=True)
        self._settled = True

    def collect(self, late: bool = False) -> None:
        """Take what the child has said; `late` drops it, for it answers a question of an earlier look."""
        try:
            for message in self._worker.messages():
                self._take(self._answers.decode(message), late)
        except (ValueError, *NOT_JSON) as error:
            self._fail(f"{self._title}: its process answered nonsense ({error})")
            self._settled, self._worker.asked = True, None
            self._worker.kill()
            return
        if self._worker.has_ended:
            self._ended()

    def result(self) -> Known[T] | Unavailable:
        """This look's reading; without an answer by now, since when there is none."""
        seconds = self._worker.silent_seconds
        if not self._settled and seconds is not None:
            self._present |= seconds > _SLOW_START_SECONDS
            self._fail(f"{self._title} has not answered for {seconds:.0f} s" if seconds >= 1 else self._slow(seconds))
        return self._result

    def status(self) -> SensorStatus:
        """Whether its last answer was a value, else why not, with its time and how many errors there were."""
        reason = self._result.reason if isinstance(self._result, Unavailable) else ""
        required = self._required or self._present
        return SensorStatus(
            self.name, not reason, reason, self._duration_seconds, self._errors_total, required=required
        )

    def close(self, seconds: float = 0.5) -> None:
        """End the child by its end of file, then by force; one that is stuck in the kernel is left to it."""
        self._worker.end(seconds)

    def _start(self, now_ns: int) -> None:
        try:
            self._worker.start()
        except OSError as error:
            self._fail(f"{self._title}: its process cannot be started: {error.strerror}")
            self._delay(now_ns)

    def _take(self, answer: SensorAnswer, late: bool) -> None:
        self._has_news |= answer.request == NEWS
        if answer.request != self._request:
            return
        self._worker.asked = None
        if late and not answer.absent:
            return
        self._settled = True
        self._duration_seconds = answer.duration_seconds
        now_ns = self._clock.monotonic_ns()
        self._present = not answer.absent
        if answer.absent:
            self._result = Unavailable(answer.error, now_ns)
            again_seconds = _ABSENT_BACK_OFF_SECONDS if answer.again_seconds is None else answer.again_seconds
            self._start_ns = now_ns + int(again_seconds * 1e9)
            self._back_off_seconds = 0.0  # its end is expected
        elif not answer.value:
            self._fail(f"{self._title}: {answer.error}")
        else:
            self._result = Known(self._decoder.decode(answer.value), now_ns)
            self._back_off_seconds = _FIRST_BACK_OFF_SECONDS

    def _ended(self) -> None:
        """The child is gone: say so, and let the next start wait a little longer each time."""
        code = self._worker.end(_EXIT_SECONDS)
        self._settled = True
        if self._back_off_seconds == 0.0:
            self._back_off_seconds = _FIRST_BACK_OFF_SECONDS
            return
        how = "killed" if code is None else f"signal {-code}" if code < 0 else f"exit code {code}"
        self._fail(f"{self._title}: its process ended ({how}); the next one starts in {self._back_off_seconds:.0f} s")
        self._delay(self._clock.monotonic_ns())

    def _delay(self, now_ns: int) -> None:
        self._start_ns = now_ns + int(self._back_off_seconds * 1e9)
        self._back_off_seconds = min(self._back_off_seconds * 2, _LONGEST_BACK_OFF_SECONDS)

    def _slow(self, seconds: float) -> str:
        return f"{self._title} has not answered within {seconds:.1f} s"

    def _fail(self, sentence: str) -> None:
        self._errors_total += 1
        self._result = Unavailable(sentence, self._clock.monotonic_ns())


class SensorSet:
    """Owns the sensors' child processes and joins what they answer into one snapshot a tick."""

    def __init__(self, config: Config, clock: Clock, side: Privileged) -> None:
        """Start nothing yet: the first look does. `side` starts those that read other users' processes."""
        self._clock = clock
        self._deadline_seconds = config.sensors.deadline_seconds
        self._node = node_of(config)
        self.sensors: dict[str, SupervisedSensor[Any]] = {
            spec.name: SupervisedSensor(
                spec.name, spec.title, spec.kind, side.starting(spec.name), clock, required=spec.required
            )
            for spec in SENSORS
            if not spec.switch or getattr(config.sensors, spec.name)
        }
        self._ranks = RanksLook((), _NOT_YET, _NOT_YET)
        self._parts: dict[str, tuple[PartStatus, ...]] = {}  # as they last told of themselves

    def look(self, tick: int) -> NodeSnapshot:
        """Ask every sensor and return within `sensors.deadline_seconds`. A sensor that has not answered by then is
        `Unavailable` with since when; its late answer is dropped, and it is asked again only after it came."""
        deadline_ns = self._clock.monotonic_ns() + int(self._deadline_seconds * 1e9)
        for spec in SENSORS:
            if (sensor := self.sensors.get(spec.name)) is None:
                continue
            if not self._ranks.ranks and sensor.is_fresh(spec.idle_seconds):
                sensor.rest()
            else:
                sensor.ask()
        self._collect(deadline_ns)
        readings: dict[str, Any] = {spec.name: self._reading(spec) for spec in SENSORS}
        statuses = tuple(status for spec in SENSORS for status in self._statuses(spec, readings[spec.name]))
        ranks, gpus = readings.pop("ranks"), readings.pop("gpus")
        return NodeSnapshot(
            tick=tick,
            at_ns=self._clock.monotonic_ns(),
            wall_ns=self._clock.wall_ns(),
            node=self._node,
            late_seconds=0.0,  # whoever keeps the ticks knows
            ranks=self._ranks_of(ranks),
            gpus=_gpus_of(gpus),
            sensors=statuses,
            **readings,
        )

    def news_descriptors(self) -> tuple[int, ...]:
        """What to poll between looks: readable when `news` may have changed."""
        return tuple(d for sensor in self.sensors.values() if (d := sensor.news_descriptor) is not None)

    def news(self) -> bool:
        """Return whether something happened since the last look that should not wait for the next tick."""
        return any(tuple(sensor.news() for sensor in self.sensors.values()))  # every one is heard

    def close(self) -> None:
        """End the children; one that hangs in the kernel is left to it."""
        for sensor in self.sensors.values():
            sensor.close()

    def _collect(self, deadline_ns: int) -> None:
        while waiting := {s.descriptor: s for s in self.sensors.values() if s.descriptor is not None}:
            left_ns = deadline_ns - self._clock.monotonic_ns()
            if left_ns <= 0:
                return
            poll = select.poll()
            for descriptor in waiting:
                poll.register(descriptor, select.POLLIN)
            for descriptor, _ in poll.poll(left_ns / 1e6):
                waiting[descriptor].collect()

    def _reading(self, spec: SensorSpec) -> Reading:
        sensor = self.sensors.get(spec.name)
        if sensor is None:
            return Unavailable(f"{spec.title} is not asked: sensors.{spec.name} is off", self._clock.monotonic_ns())
        return sensor.result()

    def _statuses(self, spec: SensorSpec, reading: Reading) -> tuple[SensorStatus, ...]:
        sensor = self.sensors.get(spec.name)
        if sensor is None:
            assert isinstance(reading, Unavailable)
            return (SensorStatus(spec.name, False, reading.reason, 0.0, 0, required=False),)
        status = sensor.status()
        if isinstance(reading, Known):
            if len(spec.sources) == 1:
                # Up, it may say what it cannot see.
                return (replace(status, reason=getattr(reading.value, "problem", "")),)
            self._parts[spec.name] = parts = reading.value.parts
            return tuple(
                SensorStatus(
                    source.key,
                    part.up,
                    part.reason,
                    part.duration_seconds,
                    part.errors_total + status.errors_total,
                    required=part.required,
                )
                for source, part in zip(spec.sources, parts, strict=True)
            )
        before = self._parts.get(spec.name, (_NOT_YET,) * len(spec.sources))
        return tuple(
            replace(status, sensor=source.key, errors_total=status.errors_total + part.errors_total)
            for source, part in zip(spec.sources, before, strict=True)
        )

    def _ranks_of(self, reading: Reading) -> tuple[RankSample, ...]:
        if isinstance(reading, Known):
            self._ranks = reading.value
            return self._ranks.ranks
        # Ranks do not vanish because we cannot see: they stay, and nothing is known about them.
        return tuple(
            RankSample(
                job=rank.job,
                rank=rank.rank,
                local_rank=rank.local_rank,
                world_size=rank.world_size,
                pid=rank.pid,
                start_ticks=rank.start_ticks,
                heartbeat=Unavailable(reading.reason, reading.at_ns),
                process=Unavailable(reading.reason, reading.at_ns),
                end=rank.end,
            )
            for rank in self._ranks.ranks
        )


def _gpus_of(reading: Reading) -> Known[tuple[Gpu, ...]] | Unavailable:
    if isinstance(reading, Unavailable):
        return reading
    look: GpusLook = reading.value
    known = look.values.up or look.gpus
    return Known(look.gpus, reading.at_ns) if known else Unavailable(look.values.reason, reading.at_ns)
