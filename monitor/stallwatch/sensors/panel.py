"""All sensors of the node behind one call that never blocks past its deadline."""

import select
import socket
from typing import Any

from msgspec.structs import replace

from stallwatch.clock import Clock
from stallwatch.config import Config
from stallwatch.model.gpu import Gpu, GpuEvent
from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.snapshot import HostSample, NodeSnapshot, RankSample, SensorStatus
from stallwatch.node.privileged_client import Privileged
from stallwatch.sensors.ranks import RanksLook
from stallwatch.sensors.sensor import PartStatus
from stallwatch.sensors.supervised import SupervisedSensor

_NOT_YET = PartStatus(False, "", 0.0, 0)


class Panel:
    """Owns the sensors' child processes and joins what they answer into one snapshot a tick."""

    def __init__(self, config: Config, clock: Clock, side: Privileged) -> None:
        """Start nothing yet: the first look does. `side` starts those that read other users' processes."""
        self._clock = clock
        self._deadline_seconds = config.sensors.deadline_seconds
        self._tick_seconds = config.daemon.tick_seconds
        self._node = socket.gethostname()
        self._ranks = SupervisedSensor("ranks", "the reader of ranks", RanksLook, side.starting("ranks"), clock)
        self._gpus = (
            SupervisedSensor("gpus", "NVML", tuple[Gpu, ...], side.starting("gpus"), clock, required=False)
            if config.sensors.gpus
            else None
        )
        # When a GPU falls off the bus the other calls into the driver may hang: its word must come all the same.
        self._gpu_events = (
            SupervisedSensor(
                "gpu_events",
                "NVML's event set",
                tuple[GpuEvent, ...],
                side.starting("gpu_events"),
                clock,
                required=False,
            )
            if config.sensors.gpus
            else None
        )
        self._host = (
            SupervisedSensor("host", "the reader of the node", HostSample, side.starting("host"), clock, required=False)
            if config.sensors.host
            else None
        )
        self.sensors: tuple[SupervisedSensor[Any], ...] = tuple(
            sensor for sensor in (self._ranks, self._gpus, self._gpu_events, self._host) if sensor is not None
        )
        self._last = RanksLook((), _NOT_YET, _NOT_YET)
        self._gpus_before: tuple[Gpu, ...] = ()
        self._last_began_ns: int | None = None

    def look(self, tick: int) -> NodeSnapshot:
        """Ask every sensor and return within `sensors.deadline_seconds`. A sensor that has not answered by then is
        `Unavailable` with since when; its late answer is dropped, and it is asked again only after it came."""
        began_ns = self._clock.monotonic_ns()
        late_seconds = self._late_seconds(began_ns)
        for sensor in self.sensors:
            sensor.ask()
        self._collect(began_ns + int(self._deadline_seconds * 1e9))
        ranks, statuses = self._rank_part()
        gpus, gpu_statuses = self._gpu_part()
        host, host_statuses = self._host_part()
        return NodeSnapshot(
            tick=tick,
            at_ns=self._clock.monotonic_ns(),
            wall_ns=self._clock.wall_ns(),
            node=self._node,
            late_seconds=late_seconds,
            ranks=ranks,
            gpus=gpus,
            sensors=statuses + gpu_statuses + host_statuses,
            host=host,
        )

    def news_descriptors(self) -> tuple[int, ...]:
        """What to poll between looks: readable when `news` may have changed."""
        return tuple(d for sensor in self.sensors if (d := sensor.news_descriptor) is not None)

    def news(self) -> bool:
        """Return whether something happened since the last look that should not wait for the next tick."""
        return any(tuple(sensor.news() for sensor in self.sensors))  # every one is heard

    def close(self) -> None:
        """End the children; one that hangs in the kernel is left to it."""
        for sensor in self.sensors:
            sensor.close()

    def _late_seconds(self, began_ns: int) -> float:
        last_ns, self._last_began_ns = self._last_began_ns, began_ns
        return 0.0 if last_ns is None else max(0.0, (began_ns - last_ns) / 1e9 - self._tick_seconds)

    def _collect(self, deadline_ns: int) -> None:
        while waiting := {s.descriptor: s for s in self.sensors if s.descriptor is not None}:
            left_ns = deadline_ns - self._clock.monotonic_ns()
            if left_ns <= 0:
                return
            poll = select.poll()
            for descriptor in waiting:
                poll.register(descriptor, select.POLLIN)
            for descriptor, _ in poll.poll(left_ns / 1e6):
                waiting[descriptor].collect()

    def _rank_part(self) -> tuple[tuple[RankSample, ...], tuple[SensorStatus, ...]]:
        reading = self._ranks.result()
        if isinstance(reading, Known):
            self._last = look = reading.value
            missed = self._ranks.status().errors_total
            return look.ranks, tuple(
                SensorStatus(name, part.up, part.reason, part.duration_seconds, part.errors_total + missed)
                for name, part in (("heartbeats", look.heartbeats), ("processes", look.processes))
            )
        # Ranks do not vanish because we cannot see: they stay, and nothing is known about them.
        ranks = tuple(
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
            for rank in self._last.ranks
        )
        status = self._ranks.status()
        return ranks, tuple(
            SensorStatus(
                name, False, reading.reason, status.duration_seconds, status.errors_total + before.errors_total
            )
            for name, before in (("heartbeats", self._last.heartbeats), ("processes", self._last.processes))
        )

    def _gpu_part(self) -> tuple[Known[tuple[Gpu, ...]] | Unavailable, tuple[SensorStatus, ...]]:
        if self._gpus is None:
            reason = "GPUs are not read: sensors.gpus is off"
            status = SensorStatus("gpus", False, reason, 0.0, 0, required=False)
            return Unavailable(reason, self._clock.monotonic_ns()), (status,)
        reading, statuses = self._gpus.result(), (self._gpus.status(),)
        if self._gpu_events is None:
            return reading, statuses
        events = self._gpu_events.result()
        if isinstance(events, Known):
            reading = _with_events(reading, events.value, self._gpus_before)
        if isinstance(reading, Known):
            self._gpus_before = reading.value
        return reading, (*statuses, self._gpu_events.status())

    def _host_part(self) -> tuple[Known[HostSample] | Unavailable, tuple[SensorStatus, ...]]:
        if self._host is None:
            reason = "the node is not read: sensors.host is off"
            status = SensorStatus("host", False, reason, 0.0, 0, required=False)
            return Unavailable(reason, self._clock.monotonic_ns()), (status,)
        reading, status = self._host.result(), self._host.status()
        if isinstance(reading, Known) and reading.value.missing:
            closed = "; ".join(f"{source}: {why}" for source, why in reading.value.missing)
            status = replace(status, reason=closed)  # up, and says what it cannot see
        return reading, (status,)


def _with_events(
    gpus: Known[tuple[Gpu, ...]] | Unavailable, events: tuple[GpuEvent, ...], before: tuple[Gpu, ...]
) -> Known[tuple[Gpu, ...]] | Unavailable:
    """Give every GPU what the driver reported of it. When the other calls do not answer, GPUs with events are shown as
    they were known, with nothing but those: an XID is told however sick the driver is."""
    of: dict[str, list[GpuEvent]] = {}
    for event in events:
        of.setdefault(event.uuid, []).append(event)
    if isinstance(gpus, Unavailable):
        if not events:
            return gpus
        silent = tuple(
            Gpu(gpu.index, gpu.uuid, gpu.name, gpu.serial, gpu.pci_bus_id, unavailable=gpus.reason,
                      unavailable_kind="no_answer", compute_pids=gpu.compute_pids)
            for gpu in before
        )  # fmt: skip
        gpus = Known(silent, gpus.at_ns) if silent else gpus
        if isinstance(gpus, Unavailable):
            return gpus
    samples = []
    for gpu in gpus.value:
        mine = tuple(of.get(gpu.uuid, ()))
        samples.append(replace(gpu, events=mine) if mine else gpu)
    return Known(tuple(samples), gpus.at_ns)
