"""GPUs by NVML, in one process: values that are asked for, and XIDs as the driver tells them by itself.

Each has a thread of its own, and neither is the one that answers: a call into a sick driver may never come back, and
what the driver still tells must come all the same.
"""

import os
import time
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from stallwatch.formats.outside_text import name_of
from stallwatch.model.gpu import Gpu
from stallwatch.model.reading import Absent, Resting
from stallwatch.model.snapshot import GpusLook, PartStatus
from stallwatch.node.aside import OneCallAtATime, Silent
from stallwatch.node.gpu_release import released
from stallwatch.node.nvml import GpuReader, load_nvml
from stallwatch.node.worker import GIVE_UP_SECONDS
from stallwatch.sensors.gpu_events import GpuEvents
from stallwatch.sensors.sensor import Options

# Of the time for a look: the rest is the answer's way.
_SHARE = 0.6
# An import on a busy node takes as long before it says that there is no driver.
_SLOW_START_SECONDS = 5.0
_LOOK_AGAIN_SECONDS = 20.0  # whether a release was ended before its time


def make(options: Options) -> "GpusSensor":
    """The sensor by its options."""
    return GpusSensor(options.deadline_seconds * _SHARE, release_file=options.release_file)


class GpusSensor:
    """GPUs by NVML, their slow values and their events apart."""

    def __init__(
        self,
        seconds: float,
        find: Callable[[], Any] = load_nvml,
        monotonic: Callable[[], float] = time.monotonic,
        end: Callable[[int], object] = os._exit,
        release_file: str = "",
    ) -> None:
        """`seconds`: how long an answer may wait for the driver. `release_file`: that of node.gpu_release."""
        self._release_file = release_file
        self._seconds = seconds
        self._find = find
        self._end = end
        self._reader: GpuReader | None = None
        self._values = OneCallAtATime[tuple[Gpu, ...]](monotonic)
        self._events = GpuEvents(find, lambda: int(monotonic() * 1e9))
        self._known: tuple[Gpu, ...] = ()
        self._is_present = False
        self._errors_total = self._missed_total = 0

    def wait(self, descriptor: int) -> bool:
        """An XID does not wait for the next tick."""
        return self._events.wait(descriptor)

    def read(self) -> GpusLook:
        """Raise Absent where there is no driver, Resting while somebody wants it for himself: then this process ends,
        and with it every handle that the driver's library holds."""
        if (release := released(self._release_file)) is not None:
            raise Resting(f"GPUs are {release.reason}", min(release.seconds, _LOOK_AGAIN_SECONDS))
        problem, gpus, began = "", self._known, time.monotonic()
        try:
            gpus = self._known = self._ask()
            self._is_present = True
        except Absent:
            raise
        except Silent as silence:
            problem = _silence(silence.seconds)
            self._is_present |= silence.seconds > _SLOW_START_SECONDS
            if silence.seconds > GIVE_UP_SECONDS and not self._values.is_in_kernel():
                self._end(1)  # the next one may have more luck; who is in the kernel's hands would not die of it
        except Exception as error:  # noqa: BLE001 - the guard of the driver: what it raises is its answer
            problem, self._is_present = name_of(f"NVML: {error}"), True
        seconds = time.monotonic() - began
        events, unheard = self._events.latest(max(0.0, self._seconds - seconds))
        if problem and not self._events.is_listening:
            unheard = problem
        self._errors_total += bool(problem)
        self._missed_total += bool(unheard)
        if problem:
            # With an XID to tell, GPUs are shown as they were known, however sick the driver is; else nothing is.
            gpus = tuple(_silenced(gpu, problem) for gpu in gpus) if events else ()
        return GpusLook(
            tuple(replace(gpu, events=tuple(event for event in events if event.uuid == gpu.uuid)) for gpu in gpus),
            PartStatus(not problem, problem, seconds, self._errors_total, self._is_present),
            PartStatus(not unheard, unheard, 0.0, self._missed_total, self._is_present),
        )

    def _ask(self) -> tuple[Gpu, ...]:
        """Raise what the driver raises, and Silent; a late answer is dropped, for it is of an earlier look."""
        until = time.monotonic() + self._seconds
        self._values.wait(self._seconds)
        self._values.begin(self._read)
        return self._values.answer(until - time.monotonic())

    def _read(self) -> tuple[Gpu, ...]:
        if self._reader is None:
            nvml = self._find()
            self._reader = GpuReader(nvml)
            self._events.listen(nvml)
        return self._reader.read()


def _silenced(gpu: Gpu, reason: str) -> Gpu:
    return Gpu(
        gpu.index,
        gpu.uuid,
        gpu.name,
        gpu.serial,
        gpu.pci_bus_id,
        unavailable=reason,
        unavailable_kind="no_answer",
        compute_pids=gpu.compute_pids,
    )


def _silence(seconds: float) -> str:
    return f"NVML has not answered {f'for {seconds:.0f}' if seconds >= 1 else f'within {seconds:.1f}'} s"
