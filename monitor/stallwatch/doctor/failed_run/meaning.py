"""What one event of a log is taken as: its kind, and whether it only tells what another rank did to this one."""

from typing import Final

from stallwatch.formats.xid import FABRIC_FAULTS, GPU_FAULTS
from stallwatch.model.evidence import LogEvent

_ADDRESS_IN_USE: Final = ("address already in use", "eaddrinuse")
_OUT_OF_MEMORY: Final = ("out of memory", "outofmemoryerror", "cublas_status_alloc_failed")
# Exceptions that tell what another rank's death or absence did to this one.
_OF_OTHERS: Final = (
    "connection closed by peer", "connection reset by peer", "broken pipe", "timed out waiting", "socket timeout",
    "watchdog caught", "watchdog thread", "nccl communicator was aborted", "failed to recv", "remote process exited",
    "ncclremoteerror", "tcpstore", "c10d store", "key-value store", "store->",
)  # fmt: skip
# What wraps, or passes on, the exception of another process.
_WRAPPERS: Final = (
    "ChildFailedError", "ProcessRaisedException", "ExceptionGroup", "RendezvousClosedError", "RayTaskError",
    "RayActorError",
)  # fmt: skip
# Libraries that talk to the world outside the job: a connection that they lost is this rank's own trouble.
_OUTSIDE: Final = (
    "requests.", "urllib3.", "httpx.", "httpcore.", "aiohttp.", "botocore.", "huggingface_hub.", "wandb.", "mlflow.",
    "google.", "azure.", "gcsfs.", "s3fs.", "redis.", "pymongo.", "openai.", "grpc.", "urllib.",
)  # fmt: skip
_NCCL: Final = ("nccl error", "ncclsystemerror", "ncclinternalerror", "ncclunhandledcudaerror", "ncclinvalidusage")
_FAULTS: Final = GPU_FAULTS | FABRIC_FAULTS
_NO_FAMILY: Final = "errno: 97"  # EAFNOSUPPORT: the other address family is tried next


def meaning(event: LogEvent, kind: str) -> tuple[str, bool]:
    """Return the kind that counts, and whether the event is a consequence by itself."""
    if kind == "exception":
        return _of_exception(event)
    if kind == "cuda_error" and any(words in _text(event) for words in _OUT_OF_MEMORY):
        return "out_of_memory", False
    if kind == "gpu_xid":
        number = int((event.message or "0").partition(",")[0])
        follows = "caused by previous" in event.text or "Nonfatal" in event.text
        return kind, follows or ("SXid" not in event.text and number not in _FAULTS)
    if kind in ("launcher_failure", "process_failed") and _ended_by_others(event):
        return kind, True
    return kind, event.secondary


def _of_exception(event: LogEvent) -> tuple[str, bool]:
    text, of_type = _text(event), event.exception or ""
    last = of_type.rpartition(".")[2]
    if any(words in text for words in _ADDRESS_IN_USE):
        return "address_in_use", False
    if any(words in text for words in _OUT_OF_MEMORY):
        return "out_of_memory", False
    if "duplicate gpu detected" in text:
        return "duplicate_gpu", False
    if last == "KeyboardInterrupt":
        return "interrupted", False
    if last == "SignalException":
        return "cancelled", False
    if last == "RendezvousTimeoutError":
        return "init_timeout", False
    if last == "RendezvousConnectionError":
        return "store_unreachable", False
    if last in _WRAPPERS:
        return "exception", True
    if not of_type.startswith(_OUTSIDE) and any(words in text for words in _OF_OTHERS):
        return "exception", True
    if any(words in text for words in _NCCL):
        return "nccl_error", event.secondary
    return "exception", event.secondary


def means_nothing(event: LogEvent) -> bool:
    """Lines that healthy runs have too."""
    return event.kind == "store_unreachable" and _NO_FAMILY in event.text


def was_tried_again(event: LogEvent, kind: str) -> bool:
    """c10d's and gloo's warnings about an address: what they tell may have gone well at the next try."""
    return kind in ("store_unreachable", "name_unresolved", "gloo_connect", "address_in_use") and (
        event.exception is None and event.text.startswith("[W")
    )


def _text(event: LogEvent) -> str:
    return f"{event.exception or ''} {event.message or ''} {event.text}".lower()


def _ended_by_others(event: LogEvent) -> bool:
    """SIGTERM is the launcher's, SIGABRT the watchdog's, unless the launcher calls it the first failure."""
    return event.exit_signal in (6, 15) and not event.first
