"""Lines of logs that mean something, as values: of training and its launchers, and of the kernel."""

from typing import Literal

import msgspec

from stallwatch.model.hook_report import CodeFrame
from stallwatch.model.kernel import KernelEvent

# What a log has before its watchdogs' first words: something else, nothing, or the rest of what one of them wrote.
BeforeWatchdogs = Literal["other", "nothing", "rest"]


class SideOfMismatch(msgspec.Struct, frozen=True):
    """What one rank called, as torch's DETAIL wrapper prints it; "" and None: not printed."""

    rank: int
    operation: str
    seq: int | None = None
    shape: str = ""  # "[10, 4]"
    dtype: str = ""


PROCESS_ENDS = ("launcher_failure", "process_failed", "worker_died")  # kinds of lines: a launcher tells of an end


class LogEvent(msgspec.Struct, frozen=True):
    """A line (or block) of a training or launcher log that means something; fields that its kind has not are None.

    kinds: collective_timeout, group_status, dump_signal, watchdog_end, heartbeat_stuck, gil_clue, collective_mismatch,
    gloo_timeout, gloo_peer_closed, size_mismatch, gloo_connect, barrier_absent, address_in_use, store_unreachable,
    store_closed, init_timeout, launcher_failure, exception, nccl_completion_error, nccl_async_event, nccl_peer_closed,
    nccl_version_mismatch, nccl_init_started, nccl_init_complete, dataloader_killed, shared_memory, open_files,
    recorder_disabled, process_failed, terminated, out_of_memory, cuda_error, memory_killed, cancelled, gpu_xid,
    gpu_lost, duplicate_gpu, native_crash, native_exception, not_started, node_failed, evicted, hung_task,
    storage_silent, name_unresolved, nccl_no_interface, nccl_no_adapter, nccl_connect, locked_memory, failed_stack,
    gpu_unreachable, actor_died, worker_died, program_died, killing, clean_end, trying_again, steps_again, stale_store,
    desync_absent, error_like, last_line.
    """

    kind: str
    text: str  # the line itself, without colours and launcher prefixes
    line: int  # from 1, within what was read of the file
    rank: int | None = None  # global
    group: str | None = None  # description, else name, of the process group
    group_rank: int | None = None  # within the process group
    ranks: tuple[int, ...] = ()  # that the line names: absent from a barrier, missing clients
    operation: str | None = None
    seq: int | None = None
    numel_in: int | None = None
    numel_out: int | None = None
    timeout_ms: int | None = None
    enqueued: int | None = None
    completed: int | None = None
    host: str | None = None
    peer: str | None = None  # address as printed
    device: str | None = None  # HCA
    pid: int | None = None
    local_rank: int | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    first: bool = False  # torchrun's root cause: the first failure that it saw
    at: str | None = None  # time as printed
    at_seconds: float | None = None  # the same from the year's begin; without one, of the last line before that has one
    utc: bool = False  # by which clock: UTC, or the host's own
    exception: str | None = None  # its type
    message: str | None = None
    frame: CodeFrame | None = None  # innermost frame of the job's own code
    secondary: bool = False  # a follow-on by its nature: never a first cause
    chained: bool = False  # raised while another exception was handled, or because of it: the one before, of its rank
    passed_from: int | None = (
        None  # who raised an exception that its rank only passes on: rank within their group; -1: lost
    )
    went_on: bool = False  # an exception, or ranks that did not meet, after which steps were told: it ended nothing
    source: str = ""  # file that it stands in, as people see it
    task: int | None = None  # of srun or mpirun, where it is not known to be the rank
    comm: str | None = None  # of NCCL: the communicator's id
    group_id: str | None = None  # name or number of the process group, which its description need not tell apart
    joined: int | None = None  # how many came, and how many were expected
    expected: int | None = None
    sides: tuple[SideOfMismatch, ...] = ()
    cut: bool = False  # the log ends within this line, as far as one can see
    by_launcher: bool = False  # an exception whose traceback has a launcher's own code in it
    before: BeforeWatchdogs = "other"  # of a watchdog's word


class LogTail(msgspec.Struct, frozen=True):
    """The end of a log, with the events in it."""

    lines: tuple[str, ...]
    events: tuple[LogEvent, ...]
    kernel: tuple[KernelEvent, ...] = ()  # a journal holds both
    nodes: int = 1  # that launchers say the job has, or that wrote it
    by_local_rank: bool = False  # a launcher marked lines with local ranks


class KernelLog(msgspec.Struct, frozen=True):
    """Lines of a kernel's log, with the events in them."""

    lines: tuple[str, ...]
    events: tuple[KernelEvent, ...]
