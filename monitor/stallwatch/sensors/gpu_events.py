"""XIDs, double-bit ECC and the like as the driver reports them by itself (NVML's event set). A thread of its own: when
a GPU falls off the bus the other calls may hang, and this is exactly what must be told then.

In a container the kernel log is often closed; these events are the only source of XIDs there.
"""

import contextlib
import ctypes
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from stallwatch.model.gpu import GpuEvent
from stallwatch.node.nvml import explain, load_nvml, text_of, value_of
from stallwatch.sensors.sensor import KEPT_SECONDS, LATE_SECONDS

# nvml.h nvmlEventType*: what stops work or tells that it will.
KINDS = {
    0x2: "double_bit_ecc",
    0x8: "xid",
    0x800: "row_retirement_failure",
    0x1000: "nonfatal_poison",
    0x2000: "fatal_poison",
    0x4000: "gpu_unavailable",
    0x8000: "recovery_action",
}
_WANTED = sum(KINDS)
_XID = 0x8
_WAIT_MILLISECONDS = 1000
_TIMEOUT = 10  # NVML_ERROR_TIMEOUT: nothing happened
_KEPT = 200
_AGAIN_SECONDS = 10.0


class GpuEvents:
    """One thread waits in the driver; no call here does. GPUs that the driver does not name are called ""."""

    def __init__(
        self, find: Callable[[], Any] = load_nvml, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._find = find
        self._now_ns = monotonic_ns
        self._events: deque[GpuEvent] = deque(maxlen=_KEPT)
        self._problem = "NVML's events are not registered yet"
        self._returned_ns = monotonic_ns()  # when the driver last gave the thread back
        self._news, self._tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._ready = threading.Event()
        self.is_listening = False

    def listen(self, nvml: Any) -> None:
        """From now on, given pynvml initialised."""
        self.is_listening, self._returned_ns = True, self._now_ns()
        threading.Thread(target=self._run, args=(nvml,), daemon=True).start()

    def wait(self, descriptor: int) -> bool:
        """Return True as soon as `descriptor` can be read, False when there was an event."""
        readable, _, _ = select.select([descriptor, self._news], [], [])
        if self._news in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(self._news, 4096)
        return descriptor in readable

    def latest(self, seconds: float = 0.0) -> tuple[tuple[GpuEvent, ...], str]:
        """Return the events of the last minutes, oldest first, and why there may be some unheard of. The first time
        `seconds` may pass until they are registered."""
        if self.is_listening:
            self._ready.wait(seconds)
        oldest_ns = self._now_ns() - int(KEPT_SECONDS * 1e9)
        while self._events and self._events[0].at_ns < oldest_ns:
            self._events.popleft()
        late_seconds = (self._now_ns() - self._returned_ns) / 1e9
        problem = self._problem
        if not problem and late_seconds > LATE_SECONDS and not self._events:
            problem = f"NVML has not given back its event thread for {late_seconds:.0f} s"
        return tuple(self._events), problem

    def _run(self, nvml: Any) -> None:
        while True:
            try:
                self._listen(nvml or self._find())
            except Exception as error:  # noqa: BLE001 - the thread's guard: what NVML raises is what is told
                self._problem = explain(error)[1]
            self._ready.set()
            nvml = None  # it may be another driver by then
            time.sleep(_AGAIN_SECONDS)

    def _listen(self, nvml: Any) -> None:
        """Raise NVMLError when the set is no good any more: a GPU was lost, the driver was unloaded."""
        events = nvml.nvmlEventSetCreate()
        uuids: dict[Any, str] = {}
        refused = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                uuids[_key(handle)] = text_of(nvml.nvmlDeviceGetUUID(handle)) or ""
                supported = value_of(nvml, nvml.nvmlDeviceGetSupportedEventTypes, handle)
                if not (supported or 0) & _XID:
                    refused.append(f"GPU {index} reports no XIDs")
                    continue
                nvml.nvmlDeviceRegisterEvents(handle, (supported or 0) & _WANTED, events)
            except nvml.NVMLError as error:
                refused.append(f"GPU {index}: {explain(error)[1]}")
        self._problem = "; ".join(refused) if len(refused) == len(uuids) or not uuids else ""
        self._ready.set()
        while not self._problem:
            try:
                said = nvml.nvmlEventSetWait_v2(events, _WAIT_MILLISECONDS)
            except nvml.NVMLError as error:
                self._returned_ns = self._now_ns()
                if getattr(error, "value", None) != _TIMEOUT:
                    raise
                continue
            self._returned_ns = self._now_ns()
            self._take(said.eventType, said.eventData, uuids.get(_key(said.device), ""))

    def _take(self, event_type: int, data: int, uuid: str) -> None:
        kind = KINDS.get(event_type, f"event_{event_type:#x}")
        xid = int(data) if event_type == _XID else None
        self._events.append(GpuEvent(kind, self._now_ns(), uuid, xid))
        with contextlib.suppress(BlockingIOError):
            os.write(self._tell, b"!")


def _key(handle: Any) -> Any:
    """NVML's handles are pointers, and equal ones are equal devices; ctypes compares them by identity."""
    return ctypes.cast(handle, ctypes.c_void_p).value if hasattr(handle, "contents") else handle
