"""What an event of a log is taken as, and what is a consequence of what: the one table that decides whether a
line tells a cause, or what it did to others."""

import re
from collections.abc import Iterable
from signal import SIGABRT, SIGKILL, SIGTERM
from typing import Final, NamedTuple

from stallwatch.formats.log_mismatch import refusal_of
from stallwatch.formats.xid import FABRIC_FAULTS, FOLLOW_ON, GPU_FAULTS, LEADING
from stallwatch.model.log_event import PROCESS_ENDS, LogEvent

PEER_GONE: Final = "a peer had gone, or did not answer"
NOT_AT_BARRIER: Final = "another rank did not come to the barrier"
_STORE: Final = "the store had gone, or nobody had written what it asked for"
_WATCHDOG: Final = "the watchdog ended a rank that waited"
_ENDED: Final = "somebody ended it"
_CUT: Final = "the log ends within its text, which may tell of another rank"
# What ended nothing, and follows from nothing.
TRIED_AGAIN: Final = "it was tried again, and went well"
TRIED_BEFORE: Final = "it is a try before the one that failed for good"
RANK_WENT_ON: Final = "its rank went on after it"
_JOB_WENT_ON: Final = "training went on after it"
_PYTHON_WENT_ON: Final = "Python went on after it"
_NO_OUTAGE: Final = "the event is no outage"
_OF_LAUNCHER: Final = "the launcher raised it, and no rank"
_SENT_AWAY: Final = "NCCL sent the stranger away"
_STOPS_NO_WORK: Final = "such an XID stops no work by itself"
ENDED_NOTHING: Final = frozenset(
    (TRIED_AGAIN, TRIED_BEFORE, RANK_WENT_ON, _JOB_WENT_ON, _PYTHON_WENT_ON, _NO_OUTAGE, _SENT_AWAY, _STOPS_NO_WORK)
)  # fmt: skip

# Texts of exceptions, Python's and C++'s, that tell what another rank's death or absence did to this one. The first
# that fits says why.
_OF_OTHERS: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), why)
    for pattern, why in (
        (
            r"watchdog caught|watchdog thread|timed out in blocking wait|collective operation timeout"
            r"|(?:\wCCL|collective) operation timed out",
            _WATCHDOG,
        ),
        (
            r"connection (?:closed by|reset by|was likely closed|refused|aborted)|broken pipe|remote process exited",
            PEER_GONE,
        ),
        (
            r"timed out waiting \d+ ?ms|NCCL communicator (?:was|has been) aborted|ncclRemoteError|failed to recv",
            PEER_GONE,
        ),
        (r"gloo.*(?:timeout|timed out)|application timeout caused pair closure|heartbeat timeout", PEER_GONE),
        (r"NCCL remote error|gloo/transport/", PEER_GONE),
        # vLLM's engine, of its workers; who asks the engine says the second.
        (
            r"RPC call to \w+ timed out|EngineCore encountered an issue"
            r"|^RuntimeError: (?:cancelled|Executor failed)\.?$",
            PEER_GONE,
        ),
        (
            r"tcpstore|c10d store|key-value store|store->|store based barrier|wait timeout after|socket timeout"
            r"|recvValue",
            _STORE,
        ),
        (r"monitoredBarrier", NOT_AT_BARRIER),
        (r"horovod has been shut down", "another rank had left Horovod's job"),
        (r"while rank \d+ has inconsistent 0 params", PEER_GONE),
        (r"received \S*\s*death signal|SignalException", _ENDED),
        (r"exception in a background process|See root cause above", "it passes on what another process raised"),
    )
)
# DDP's, DeepSpeed's, Megatron's and fairseq's: a rank that has compared itself with another one.
_DIFFER: Final = re.compile(
    r"DDP expects same model across all ranks|disagreement between rank\d+ and rank|hashes not matching across"
    r"|gradients are inconsistent between workers|workers have fallen out of sync|Unable to unpickle data from other"
)
NOT_WHICH: Final = "it says that ranks differ, and not which of them is wrong"
# So begin the texts of these, of RuntimeErrors, and of what an exception of any type tells of other ranks.
_BEGINNINGS: Final = (
    "[", "nccl", "connection ", "broken pipe", "socket timeout", "timed out", "wait timeout", "rank ", "ranks ",
    "watchdog caught", "recvvalue", "the client socket", "detected mismatch", "connect()", "application timeout",
    "horovod has been", "ddp expects same model", "disagreement between rank", "innerrunopapi:",
)  # fmt: skip
_OF_ANY_TYPE: Final = (
    "unable to unpickle data from other", "fatal error: gradients are", "parameter hashes not matching",
)  # fmt: skip
_NAMED: Final = re.compile(r"(?:Error|Exception|Interrupt|Exit|Fault|Group|Warning|StopIteration)$")
# Types of exceptions that wrap, or pass on, the exception of another process.
_WRAPPERS: Final = frozenset({
    "ChildFailedError", "ProcessRaisedException", "ProcessExitedException", "ExceptionGroup", "RendezvousClosedError",
    "RayTaskError", "RayActorError", "ActorDiedError", "WorkerCrashedError", "CalledProcessError", "JobFailedError",
    "ActorUnavailableError", "TrainingFailedError", "TuneError", "WorkerGroupError", "CheckpointException",
})  # fmt: skip
# Libraries that talk to the world outside the job: a connection that they lost is this rank's own trouble.
_CLOUDS: Final = (
    "botocore.", "huggingface_hub.", "wandb.", "mlflow.", "google.", "azure.", "gcsfs.", "s3fs.",
)  # fmt: skip
_OUTSIDE: Final = (
    *_CLOUDS, "requests.", "urllib3.", "httpx.", "httpcore.", "aiohttp.", "redis.", "pymongo.", "openai.", "grpc.",
    "urllib.",
)  # fmt: skip
# A server that the job may have started itself, which goes with the rank that did; such speak no TLS.
_NEARBY: Final = re.compile(r"\blocalhost\b|\b127\.\d|\b0\.0\.0\.0\b|::1\b")
_OF_PIPES: Final = ("ConnectionResetError", "ConnectionAbortedError", "BrokenPipeError", "EOFError")
_ADDRESS_IN_USE: Final = ("address already in use", "eaddrinuse")
_OUT_OF_MEMORY: Final = ("out of memory", "outofmemoryerror", "cublas_status_alloc_failed")
_GPU_UNREACHABLE: Final = (
    "nvmldevicegethandle", "nvmlerror_", "failed to initialize nvml", "gpu is lost", "uncorrectable ecc",
    "uncorrectable nvlink", "over nvlink or a hardware error",
)  # fmt: skip
# torch's allocator asks NVML who holds memory, as it reports that there is none, and asserts that it answers.
_REPORT_OF_MEMORY: Final = re.compile(r"nvml_success.*cachingallocator")
_NCCL: Final = (
    "nccl error", "ncclsystemerror", "ncclinternalerror", "ncclunhandledcudaerror", "ncclinvalidusage",
    # Ascend's; their reason stands in the lines after them
    "ops function error: hccl", "hccl function error", "npusynchronizedevice", "acl stream synchronize failed",
)  # fmt: skip
# CANN says why in a line after the exception: a wait on another rank or a link (hiascend.com, HCCL user guide: EI0002
# notify, EI0006 connection, EI0013 completion error of RoCE), ranks that have not come (EI0015).
CANN_OF_OTHERS: Final = re.compile(r"\bEI00(?:02|06|13|15)\b", re.IGNORECASE)
# What a rank itself passed wrongly: 1 to 3 and 5 are HCCL's PARA, PTR, MEMORY and NOT_SUPPORT (Ascend/pytorch,
# third_party/hccl/inc/hccl/hccl_types.h), where CANN's reason is no other. NCCL's
# "invalid usage" is not: who receives more than it expects prints it, too (net_socket.cc, "message truncated").
_ITS_OWN_CALL: Final = re.compile(
    r"hccl.*error code is [1235]\b|ncclinvalidargument|invalid argument \(run with nccl_debug"
)
# NCCL's and the loader's reasons within an exception, and what they are by themselves.
_REASONS: Final = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"duplicate gpu detected", "duplicate_gpu"),
        (r"no socket interface found|connecting to address .*is neither af_inet", "nccl_no_interface"),
        (r"mismatched nccl version", "nccl_version_mismatch"),
        (r"insufficient shared memory", "shared_memory"),
        (r"unable to allocate shared memory", "shared_memory"),
        (r"dataloader worker \(pid", "dataloader_killed"),
        (r"too many open files", "open_files"),
        (r"items of ancdata", "open_files"),
        (r"shm/nccl-|creating shared memory segment", "shared_memory"),
        (r"call to (?:(?:posix_)?fallocate|ftruncate) failed", "shared_memory"),
        (r"nvml", "gpu_unreachable"),
        (r"cuda failure (?:\d+ )?'(?!driver shutting down)", "cuda_error"),
        (r"socketstartconnect: ", "nccl_connect"),
        (
            r"socketfinalizeaccept.*wrong |wrong socket type from |message truncated : received|bootstrap root : ",
            "nccl_handshake",
        ),
        (r"socketpollconnect: ", "nccl_connect"),
        (r"ibv_\w+.*cannot allocate memory", "locked_memory"),
        (r"(?:cannot|can't) allocate memory", "memory_allocation"),
        (r"std::bad_alloc", "memory_allocation"),
    )
)
# Ray shows one of the lines that several processes wrote alike but for their numbers, and counts the others.
_FOLDED: Final = re.compile(r"\[repeated \d+x across cluster\]")
# What the watchdog of a rank says that waits, besides that it ends it.
_WAITS: Final = ("collective_timeout", "group_status", "recorder_disabled", "failed_stack", "heartbeat_stuck")
_NO_FAMILY: Final = "errno: 97"  # EAFNOSUPPORT: the other address family is tried next
_LINK_NEWS: Final = re.compile(
    r"port active|GID (?:table )?change|re-?registration|(?:LID|SM) change|GID_CHANGE", re.IGNORECASE
)
# The kernel names who asked for pages: its own threads (kworker, kswapd) and daemons of the node are no ranks.
_PAGES_FOR: Final = re.compile(r"(?P<who>[\w./:@+-]+): page allocation failure")
_OF_A_JOB: Final = re.compile(r"python|^pt_|torch|train|nccl|cuda|^ray|deepspeed|accelerate", re.IGNORECASE)
SENT: Final = (SIGKILL, SIGTERM)  # signals that somebody sends: a launcher, a person, the kernel


class LineMeaning(NamedTuple):
    """What a line is taken as, and whether it only follows from something else."""

    kind: str
    consequence: str  # why it is no first cause; "": it may be one


def meaning(event: LogEvent, kind: str = "") -> LineMeaning:
    """Return what one event means by itself, whatever else its logs say. `kind`: what it is taken as already."""
    found = _meaning(event, kind or event.kind)
    return found._replace(consequence=_JOB_WENT_ON) if event.went_on and found.consequence in ("", PEER_GONE) else found


def _meaning(event: LogEvent, kind: str) -> LineMeaning:
    own = "it follows by its nature" if event.secondary else ""
    if kind in ("exception", "native_exception"):
        return _of_exception(event)
    if kind == "cuda_error" and any(words in _text(event) for words in _OUT_OF_MEMORY):
        return LineMeaning("out_of_memory", "")
    if kind == "cuda_error" and any(words in _text(event) for words in _GPU_UNREACHABLE):
        return LineMeaning("gpu_unreachable", "")
    if kind == "gpu_xid":
        return LineMeaning(kind, _xid_follows(event))
    if kind == "nccl_stranger":
        return LineMeaning(kind, _SENT_AWAY)
    if kind == "memory_allocation" and (match := _PAGES_FOR.search(event.text)) and not _OF_A_JOB.search(match["who"]):
        return LineMeaning("node_memory", own)
    if kind in PROCESS_ENDS and event.exit_signal == SIGTERM and not event.first:
        return LineMeaning(kind, _ENDED)
    if kind in PROCESS_ENDS and event.exit_signal == SIGABRT and not event.first:
        return LineMeaning(kind, "it ended itself, as a watchdog does")
    return LineMeaning(kind, own)


def of_others(text: str) -> str:
    """Given an exception's type and text, say why it only tells that a peer or the store went away; "": it does not."""
    if text.startswith(_OUTSIDE):
        return ""
    return next((why for pattern, why in _OF_OTHERS if pattern.search(text)), "")


def is_of_the_world(event: LogEvent) -> bool:
    """Whether an exception tells of trouble with a server outside the job, by the library that raised it."""
    of_type, message = event.exception or "", event.message or ""
    by_tls = of_type.startswith(_OUTSIDE) and "https" in message.lower()
    return (by_tls or of_type.startswith(_CLOUDS)) and not _NEARBY.search(message)


def is_passed_on(text: str) -> bool:
    """Whether an exception, by its type and text, only wraps what another process did."""
    return _last_name(text.partition(":")[0]) in _WRAPPERS


def _last_name(of_type: str) -> str:
    return of_type.rpartition(".")[2].partition("(")[0]


def is_consequence(text: str) -> bool:
    """Whether an exception, by its type and text, only tells what another rank's end or absence did."""
    last = _last_name(text.partition(":")[0])
    if last in _WRAPPERS or last == "KeyboardInterrupt":
        return True
    if _DIFFER.search(text):
        return True
    low = text.lower()
    if any(words in low for words in (*_OUT_OF_MEMORY, *_ADDRESS_IN_USE, *_GPU_UNREACHABLE)):
        return False
    return bool(of_others(text)) or last in ("DistBackendError", "DistNetworkError", "DistStoreError")


def passes_on(event: LogEvent) -> bool:
    """Whether an exception only wraps what another process did."""
    return _last_name(event.exception or "") in _WRAPPERS


def is_of_training(event: LogEvent) -> bool:
    """Whether an exception is one that ends a training program: not the launcher's about it, and not what a thread
    between processes of one rank (a loader's) says when one of them has gone, which is of Python's own types."""
    return not passes_on(event) and event.exception not in _OF_PIPES


def _of_exception(event: LogEvent) -> LineMeaning:
    text, of_type = _text(event), event.exception or ""
    last = _last_name(of_type)
    why = of_others(f"{of_type}: {event.message or ''}")
    if CANN_OF_OTHERS.search(text):
        return LineMeaning("nccl_error", PEER_GONE)
    if any(words in text for words in _ADDRESS_IN_USE):
        return LineMeaning("address_in_use", "")
    if passes_on(event):
        return LineMeaning("exception", "it passes on what another process raised")
    if _DIFFER.search(event.message or ""):
        return LineMeaning("exception", why or NOT_WHICH)
    if _REPORT_OF_MEMORY.search(text):
        return LineMeaning("out_of_memory", "")
    if any(words in text for words in _GPU_UNREACHABLE):
        return LineMeaning("gpu_unreachable", "")
    if any(words in text for words in _OUT_OF_MEMORY):
        return LineMeaning("out_of_memory", "")
    for pattern, kind in _REASONS:
        if pattern.search(text):
            return LineMeaning(kind, "")
    if last == "KeyboardInterrupt":
        return LineMeaning("interrupted", "")
    if last in ("SignalException", "SIGTERMException"):  # torchrun's, Lightning's
        return LineMeaning("cancelled", "")
    if last == "RendezvousTimeoutError":
        return LineMeaning("init_timeout", "")
    if last == "RendezvousConnectionError" or "connect() timed out. original timeout was" in text:
        return LineMeaning("store_unreachable", "")
    if refusal := refusal_of(text):
        of_line = refusal.library == "gloo" and event.kind == "native_exception"
        return LineMeaning(event.kind if of_line else "size_mismatch", "its own line says more" if of_line else "")
    if why:
        return LineMeaning("exception", why)
    if _ITS_OWN_CALL.search(text):
        return LineMeaning("exception", _PYTHON_WENT_ON if event.secondary else "")
    if any(words in text for words in _NCCL):
        return LineMeaning("nccl_error", "it follows by its nature" if event.secondary else "")
    if event.kind == "native_exception" and "CUDA error" in (event.message or ""):
        return LineMeaning("cuda_error", "")
    if event.kind == "native_exception" and of_type.startswith(("c10", "gloo")) and not event.message:
        return LineMeaning("native_exception", "its own lines say more")
    if last in ("DistStoreError", "DistNetworkError"):
        return LineMeaning(event.kind, _STORE)
    own = _CUT if event.cut and _may_tell_of_others(last, event.message or "") else ""
    own = _OF_LAUNCHER if event.by_launcher else own
    return LineMeaning(event.kind, _PYTHON_WENT_ON if event.secondary else own)


def _may_tell_of_others(of_type: str, message: str) -> bool:
    """Whether an exception of which the log lacks the rest may be one of those that others' ends raise."""
    low = message.lower()
    if not _NAMED.search(of_type) or of_type.startswith("Dist") or (of_type == "Exception" and not low):
        return True
    begins = (*(_OF_ANY_TYPE if low else ()), *(_BEGINNINGS if of_type == "RuntimeError" else ()))
    return any(low.startswith(words[: len(low)]) for words in begins)


def _xid_follows(event: LogEvent) -> str:
    number = int((event.message or "0").partition(",")[0])
    if "SXid" in event.text:
        return ""
    if event.secondary or number in FOLLOW_ON:
        return "such an XID follows from another error, or from a process that was ended"
    if "Nonfatal" in event.text:
        return _NO_OUTAGE
    return "" if number in GPU_FAULTS | FABRIC_FAULTS | LEADING else _STOPS_NO_WORK


def is_late(event: LogEvent) -> bool:
    """Whether a line tells of a kill when all is over, and not when it was: Slurm counts a step's at its end."""
    return event.kind == "memory_killed" and event.text.startswith(("srun: ", "slurmstepd: "))


def means_nothing(event: LogEvent) -> bool:
    """Lines that healthy runs have too."""
    if event.kind == "store_unreachable":
        return _NO_FAMILY in event.text
    if event.kind == "nccl_async_event":
        return _LINK_NEWS.search(event.message or "") is not None
    return event.kind in (
        "nccl_init_started",
        "nccl_init_complete",
        "init_waiting",
        "trying_again",
        "steps_again",
        "error_like",
        "last_line",
    ) and not _stale(event)


def _stale(event: LogEvent) -> bool:
    """More came to the store than the job has ranks."""
    return event.joined is not None and event.expected is not None and event.joined > event.expected


def only_waited(events: Iterable[LogEvent]) -> bool:
    """Whether the events of a rank's own log tell of no failure but that it waited in vain, so that whatever aborted it
    found it where it waited."""
    return all(
        event.secondary or means_nothing(event) or event.kind in _WAITS or meaning(event).consequence == _WATCHDOG
        for event in events
    )


def is_of_several(event: LogEvent) -> bool:
    """Whether other processes wrote the same, of which the log keeps no more than a count."""
    return _FOLDED.search(event.text) is not None


def was_tried_again(event: LogEvent, kind: str) -> bool:
    """c10d's and gloo's warnings about an address: what they tell may have gone well at the next try."""
    return kind in ("store_unreachable", "name_unresolved", "gloo_connect", "address_in_use") and (
        event.exception is None and event.text.startswith("[W")
    )


def _text(event: LogEvent) -> str:
    return f"{event.exception or ''} {event.message or ''} {event.text}".lower()
