"""NVML's binding: loaded where there is a driver, its codes told apart, its values read without mistaking absence."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from stallwatch.formats.outside_text import name_of
from stallwatch.sensors.sensor import Absent

T = TypeVar("T")

# "This device or driver has no such value" (nvml.h): invalid argument and not supported (MIG, consumer boards), no
# permission, not found, function not in this driver, deprecated, version of a structure.
_NO_VALUE = frozenset((2, 3, 4, 6, 13, 25, 26))

_DRIVER_MISMATCH = 18
# Codes that are signals: what they are called here, and what a person should know.
_SIGNALS: dict[int, tuple[str, str]] = {
    8: ("insufficient_power", "its power cables are not connected"),
    10: ("timeout", "a call to the driver timed out"),
    11: ("irq_issue", "the kernel sees an interrupt issue with the GPU"),
    14: ("corrupted_inforom", "its infoROM is corrupted"),
    15: ("lost", "the GPU has fallen off the bus; see XID 79 in the kernel log"),
    16: ("reset_required", "the GPU needs a reset before it can be used again"),
    _DRIVER_MISMATCH: (
        "driver_mismatch",
        "the driver's library and kernel module have different versions: the driver was updated under running jobs; "
        "reload the module or reboot when they have ended",
    ),
    28: ("lost", "the GPU is not there any more"),
    999: ("unknown_error", "the driver met an internal error (NVML 999)"),
}


class DriverError(Exception):
    """The driver as a whole does not answer; the message says what kind of silence it is."""


def load_nvml(find: Callable[[str], Any] = importlib.import_module) -> Any:
    """Return pynvml after nvmlInit. Raise Absent where there is no NVIDIA driver or binding, DriverError where there is
    one that cannot be used."""
    try:
        nvml = find("pynvml")
    except ImportError as error:
        raise Absent(f"no GPU is read: {error}; install stallwatch[daemon]") from error
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        code = getattr(error, "value", None)
        if code in (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED):
            reason = "libnvidia-ml.so.1 not found" if code == nvml.NVML_ERROR_LIBRARY_NOT_FOUND else str(error)
            raise Absent(f"no GPU on this node: {reason}") from error
        raise DriverError(explain(error)[1]) from error
    return nvml


def explain(error: Exception) -> tuple[str, str]:
    """Return the kind of an NVMLError and a sentence: lost, unknown error and driver mismatch are not the same."""
    code = getattr(error, "value", None)
    kind, meaning = _SIGNALS.get(code, ("error", "")) if isinstance(code, int) else ("error", "")
    return kind, f"{error}: {meaning}" if meaning else str(error)


def value_of(nvml: Any, call: Callable[..., T], *arguments: Any) -> T | None:
    """Return None when the device has no such value; raise when it does not answer (lost, reset required, time-out)."""
    try:
        return call(*arguments)
    except nvml.NVMLError as error:
        if getattr(error, "value", None) in _NO_VALUE:
            return None
        raise


def optional(nvml: Any, name: str, *arguments: Any) -> Any:
    """As `value_of`, for a call that older bindings do not have."""
    call = getattr(nvml, name, None)
    return None if call is None else value_of(nvml, call, *arguments)


def field_values(nvml: Any, handle: Any, fields: Sequence[int]) -> dict[int, int]:
    """Return the fields that the device has, by their number; one call for all, for each call costs."""
    answers = optional(nvml, "nvmlDeviceGetFieldValues", handle, list(fields))
    return {answer.fieldId: _number(answer) for answer in answers or () if answer.nvmlReturn == 0}


# nvmlValueType_t: which member of the union holds the value.
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def _number(answer: Any) -> int:
    kind = answer.valueType
    return int(getattr(answer.value, _MEMBERS[kind] if 0 <= kind < len(_MEMBERS) else "ullVal"))


def text_of(value: str | bytes | None) -> str | None:
    return None if value is None else name_of(value)
