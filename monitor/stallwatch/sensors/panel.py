"""All sensors of the node behind one call that never blocks past its deadline."""

import select
import socket
from typing import Any

from msgspec.structs import replace

from stallwatch.clock import Clock
from stallwatch.config import Config
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
from stallwatch.node.privileged_client import Privileged
from stallwatch.sensors.supervised import SupervisedSensor

_NOT_YET = PartStatus(False, "", 0.0, 0)

Reading = Known[Any] | Unavailable


class Panel:
    """Owns the sensors' child processes and joins what they answer into one snapshot a tick."""

    def __init__(self, config: Config, clock: Clock, side: Privileged) -> None:
        """Start nothing yet: the first look does. `side` starts those that read other users' processes."""
        self._clock = clock
        self._deadline_seconds = config.sensors.deadline_seconds
        self._node = socket.gethostname()
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
        for sensor in self.sensors.values():
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
