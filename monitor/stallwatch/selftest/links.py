"""What the links between this node's GPUs should give, by NVML: `python -m stallwatch.selftest.links` prints JSON.

A child of its own, since NVML may never answer. A figure is given only where it is sure: all NVLinks of all GPUs active
and ending in a switch, or two GPUs joined by NVLink.
"""

import contextlib
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from stallwatch.selftest.result import TrialResult

_SECONDS = 10.0
_MOST_LINKS = 36
_SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
_SPEED_FIELD = 90  # NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON: one link, one direction, in MB/s
# A healthy collective reaches 70 to 90 % of the links; below half something is wrong. Small sizes never get there.
_LEAST_SHARE = 0.5
_LEAST_BYTES = 64 << 20


class GpuLinks(msgspec.Struct, frozen=True):
    uuid: str
    links: int  # active NVLinks
    to_switches: bool
    bytes_per_second: int | None  # of all its NVLinks together, one direction
    pcie: tuple[int, int] | None = None  # generation, width


def read_links() -> tuple[GpuLinks, ...]:
    """Ask NVML in a child; nothing is known when it does not answer."""
    try:
        asked = subprocess.run(
            [sys.executable, "-P", "-m", "stallwatch.selftest.links"],
            timeout=_SECONDS,
            capture_output=True,
            check=False,
        )
        return msgspec.json.decode(asked.stdout, type=tuple[GpuLinks, ...])
    except (OSError, subprocess.TimeoutExpired, msgspec.MsgspecError):
        return ()


def expected_bytes_per_second(links: Sequence[GpuLinks], uuids: Sequence[str]) -> int | None:
    """Given the GPUs of a job, return what their NVLinks carry in one direction; None where that is not sure."""
    by_uuid = {gpu.uuid.removeprefix("GPU-"): gpu for gpu in links}
    mine = [by_uuid.get(uuid.removeprefix("GPU-")) for uuid in uuids]
    known = [gpu for gpu in mine if gpu is not None and gpu.links and gpu.bytes_per_second]
    if len(known) != len(uuids) or len(known) < 2:
        return None
    joined = all(gpu.to_switches for gpu in known) or (len(links) == 2 and len(known) == 2)
    return min(gpu.bytes_per_second or 0 for gpu in known) if joined else None


def warnings(trial: TrialResult, links: Sequence[GpuLinks]) -> tuple[str, ...]:
    """Bandwidths that are far below what the links should give."""
    expected = expected_bytes_per_second(links, [device.uuid or "" for device in trial.devices])
    if expected is None:
        return ()
    return tuple(
        f"{step.step} reaches {step.bus_bytes_per_second / 1e9:.0f} GB/s, less than half of the {expected / 1e9:.0f} "
        "GB/s of these GPUs' NVLinks: look at `nvidia-smi nvlink -e`, clocks, and NCCL_DEBUG=INFO for the transport"
        for step in trial.steps
        if step.bus_bytes_per_second is not None
        and (step.bytes or 0) >= _LEAST_BYTES
        and step.bus_bytes_per_second < _LEAST_SHARE * expected
    )


def _read() -> list[GpuLinks]:
    import pynvml

    pynvml.nvmlInit()
    return [_gpu(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(pynvml.nvmlDeviceGetCount())]


def _gpu(handle: object) -> GpuLinks:
    import pynvml

    active, remote = 0, []
    for link in range(_MOST_LINKS):
        try:
            if not pynvml.nvmlDeviceGetNvLinkState(handle, link):
                continue
        except pynvml.NVMLError:
            break  # no such link
        active += 1
        with contextlib.suppress(pynvml.NVMLError, AttributeError):
            remote.append(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link))
    pcie = None
    with contextlib.suppress(pynvml.NVMLError):
        pcie = (
            pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle),
            pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
        )
    speed = _link_speed(handle) if active else None
    return GpuLinks(
        uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
        links=active,
        to_switches=bool(remote) and all(kind == _SWITCH for kind in remote),
        bytes_per_second=speed * active if speed else None,
        pcie=pcie,
    )


def _link_speed(handle: object) -> int | None:
    import pynvml

    with contextlib.suppress(pynvml.NVMLError, AttributeError, IndexError):
        value = pynvml.nvmlDeviceGetFieldValues(handle, [_SPEED_FIELD])[0]
        if value.nvmlReturn == 0 and value.value.uiVal:
            return int(value.value.uiVal) * 1_000_000
    return None


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(_read()))
