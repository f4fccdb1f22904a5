"""Lines of torch, NCCL, gloo and the loader that mean something, each with a word that must be in the line.

The forms are those of torch 2.0 to 2.13 and NCCL 2.18 to 2.30. A pattern's named groups are fields of LogEvent; groups
whose names end in "_ms", and the others that count, become integers.
"""

import re
from typing import Final, NamedTuple

_PG: Final = (
    # ≥ 2.6: [PG ID 0 PG GUID 0(default_pg) Rank 118]; 2.5 the same, its description may be missing; 2.3: [PG 1 Rank 1]
    r"(?:\[PG(?: ID)? (?P<pg>\w+)(?: PG GUID (?P<guid>[^\s(\]]+)(?:\((?P<description>[^)]*)\))?)?"
    r" Rank (?P<group_rank>\d+)\])"
)


class Pattern(NamedTuple):
    kind: str
    needle: str  # searched first: cheap, and most lines have none
    expression: re.Pattern[str]
    secondary: bool = False  # a follow-on by its nature: never a first cause


def _pattern(kind: str, needle: str, expression: str, *, secondary: bool = False) -> Pattern:
    return Pattern(kind, needle, re.compile(expression), secondary)


# The first that matches names the line.
PATTERNS: Final = (
    _pattern(
        "collective_timeout",
        "WorkNCCL(",
        # "[Rank g]" is the rank within the process group (nccl#1610), where no PG is printed.
        r"(?:\[Rank (?P<group_rank>\d+)\] )?(?:Watchdog caught collective operation timeout: |Work )WorkNCCL\("
        r"SeqNum=(?P<seq>\d+), OpType=(?P<operation>\w+)(?:, NumelIn=(?P<numel_in>\d+), NumelOut=(?P<numel_out>\d+))?"
        r", Timeout\(ms\)=(?P<timeout_ms>\d+)\)(?: ran for (?P<ran_ms>\d+) milliseconds| timed out in blocking wait)",
    ),
    _pattern(
        "group_status",
        "ast enqueued",
        _PG + r"?.{0,300}?(?:work(?: sequence id)?: (?P<seq>-?\d+)\b.{0,40}?)?"
        r"[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d+)"
        r".{0,40}?last completed (?:NCCL )?work: (?P<completed>-?\d+)",
    ),
    _pattern("recorder_disabled", "FlightRecorder is disabled", r"Stack trace of the failed collective not found"),
    _pattern(
        "dump_signal",
        "dump signal",
        r"(?:Received a (?:global )?dump signal|Observed flight recorder dump signal)"
        r".*?(?:from\s+rank (?P<source>\d+)|$)",
        secondary=True,
    ),
    _pattern(
        "heartbeat_stuck",
        "watchdog got stuck for",
        _PG + r"?.*?watchdog got stuck for (?P<stuck_seconds>\d+) ?seconds",
    ),
    _pattern("heartbeat_stuck", "Heartbeat monitor timed out", _PG + r"?.*?Heartbeat monitor timed out"),
    _pattern("gil_clue", "Could not acquire GIL", r"Could not acquire GIL within (?P<within_ms>\d+) ?ms"),
    _pattern(
        "watchdog_end",
        "watchdog thread terminated",
        _PG + r"?.*?watchdog thread terminated with exception: (?P<message>.*)",
        secondary=True,
    ),
    _pattern(
        "watchdog_end",
        "entire process down",
        r"To avoid data inconsistency, we are taking the entire process down",
        secondary=True,
    ),
    _pattern(
        "watchdog_end",
        "operations have failed or timed out",
        r"Some NCCL operations have failed or timed out",
        secondary=True,
    ),
    _pattern(
        "collective_mismatch",
        "Detected mismatch between collectives",
        r"Detected mismatch between collectives on ranks\. (?P<message>Rank \d+ is running collective: .*)",
    ),
    _pattern(
        "barrier_absent",
        "failed to pass monitoredBarrier",
        r"(?:\[Rank (?P<group_rank>\d+)\]: )?Ranks? (?P<ranks>\d[\d, ]*) failed to pass monitoredBarrier"
        r" in (?P<timeout_ms>\d+) ms",
    ),
    _pattern(
        "gloo_size_mismatch",
        "op.preamble.length <= op.nbytes",
        r"op\.preamble\.length <= op\.nbytes\. (?P<numel_in>\d+) vs (?P<numel_out>\d+)",
    ),
    _pattern(
        "gloo_timeout",
        "Timed out waiting",
        r"Timed out waiting (?P<timeout_ms>\d+)ms for (?P<direction>send|recv) operation to complete",
    ),
    _pattern(
        "gloo_peer_closed",
        "Connection closed by peer",
        r"Connection closed by peer \[(?P<peer>[^\]]+)\]:(?P<port>\d+)",
        secondary=True,
    ),
    _pattern(
        "gloo_peer_closed", "Connection reset by peer", r"Read error \[(?P<peer>[^\]]+)\]:(?P<port>\d+)", secondary=True
    ),
    _pattern(
        "gloo_connect",
        "connectFullMesh failed",
        r"connectFullMesh failed.*?remote=\[(?P<peer>[^\]]+)\]:(?P<port>\d+)",
    ),
    _pattern("gloo_connect", "Unable to find address for", r"Unable to find address for: (?P<device>\S+)"),
    _pattern(
        "gloo_connect", "Using the loopback address as fallback", r"Unable to resolve hostname to a \(local\) address"
    ),
    _pattern("address_in_use", "EADDRINUSE", r"port: (?P<port>\d+).*EADDRINUSE"),
    _pattern("address_in_use", "ddress already in use", r"failed to bind to \S*?:(?P<port>\d+)\b"),
    _pattern(
        "store_unreachable",
        "client socket has",
        r"The client socket has (?:failed to connect to|timed out after (?P<ran_ms>\d+)ms while trying to connect to)"
        r" (?P<peer>\S+(?: \d+\))?)",
    ),
    _pattern(
        "store_unreachable",
        "TCP client failed to connect",
        r"TCP client failed to connect/validate to host (?P<peer>\S+)",
    ),
    _pattern(
        "store_closed",
        "failed on SocketImpl",
        r"(?:recvValue\w*|sendBytes) failed on SocketImpl\(.*?remote=(?P<peer>[^)]+)\)",
        secondary=True,
    ),
    _pattern(
        "store_closed",
        "TCPStore server has shut down",
        _PG + r"?.*?TCPStore server has shut down too early",
        secondary=True,
    ),
    _pattern(
        "init_timeout",
        "clients joined",
        r"Timed out after (?P<ran_seconds>\d+) seconds waiting for clients\. "
        r"(?P<joined>\d+)/(?P<expected>\d+) clients joined",
    ),
    _pattern(
        "init_timeout",
        "store based barrier on rank",
        r"Timed out initializing process group in store based barrier on rank:? (?P<rank>\d+).*?"
        r"world_size=(?P<expected>\d+), worker_count=(?P<joined>\d+)",
    ),
    # gloo's ranks wait for each other's keys: "wait timeout after 5000ms, keys: /default_pg/0//cpu//0/1" is rank 1's.
    _pattern(
        "init_timeout",
        "wait timeout after",
        r"wait timeout after (?P<timeout_ms>\d+)ms, keys: (?P<message>\S+?(?://cpu//\d+/(?P<source>\d+))?)(?:\s|$)",
    ),
    _pattern("init_timeout", "ncclUniqueId", r"ncclUniqueId from \[(?P<source>\d+)\].*got error: (?P<message>.*)"),
    _pattern(
        "nccl_peer_closed",
        "Connection closed by remote peer",
        r"Connection closed by remote peer (?P<peer>\S+)",
        secondary=True,
    ),
    _pattern(
        "nccl_completion_error",
        "Got completion",
        r"NET/IB ?: .*?Got completion (?:from peer (?P<peer>\S+) )?with (?:error |status=)(?P<message>[^,\s]+)"
        r"(?:.*?(?:\[hca |hca )(?P<device>[^\]\s]+))?",
    ),
    _pattern(
        "nccl_async_event",
        "async event",
        r"NET/IB ?: (?:(?P<device>\S+:\d+) )?Got (?:(?:non-)?fatal )?async event ?: (?P<message>.*)",
    ),
    _pattern(
        "nccl_version_mismatch", "Mismatched NCCL version", r"Mismatched NCCL version detected ?: (?P<message>.*)"
    ),
    _pattern(
        "nccl_init_complete", "Init COMPLETE", r"rank (?P<group_rank>\d+) nranks (?P<expected>\d+) .*Init COMPLETE"
    ),
    _pattern("nccl_init_started", "Init START", r"rank (?P<group_rank>\d+) nranks (?P<expected>\d+) .*Init START"),
    _pattern(
        "dataloader_killed",
        "DataLoader worker",
        r"DataLoader worker \(pid\(?s?\)? (?P<pid>\d+)[\d, ]*\)"
        r" (?:exited unexpectedly|is killed by signal: (?P<message>[^.]*))",
    ),
    _pattern(
        "shared_memory",
        "shared memory",
        r"(?:unable to allocate shared memory\(shm\)|insufficient shared memory \(shm\))",
    ),
    _pattern("open_files", "Too many open files", r"Too many open files"),
    _pattern("open_files", "items of ancdata", r"received 0 items of ancdata"),
    # Agents of torchrun, DeepSpeed and Slurm about a process that ended.
    _pattern(
        "process_failed",
        "failed (exitcode:",
        r"failed \(exitcode: (?P<exit>-?\d+)\) local_rank: (?P<local_rank>\d+) \(pid: (?P<pid>\d+)\)",
    ),
    _pattern("process_failed", "exits with return code", r"exits with return code = (?P<exit>-?\d+)"),
    _pattern(
        "terminated",
        "closing signal",
        r"Sending process (?P<pid>\d+) closing signal (?P<message>SIG\w+)",
        secondary=True,
    ),
    # Slurm, Kubernetes and the kernel about memory, time and devices.
    _pattern("memory_killed", "oom_kill event", r"Detected \d+ oom_kill events? in (?P<message>\S+)"),
    _pattern(
        "memory_killed", "Out Of Memory", r"srun: error: (?P<host>\S+): tasks? (?P<message>[\d,\[\]-]+): Out Of Memory"
    ),
    _pattern("memory_killed", "Killed process", r"[Oo]ut of memory: Killed process (?P<pid>\d+) \((?P<message>.*?)\)"),
    _pattern("memory_killed", "OOMKilled", r"\bOOMKilled\b"),
    _pattern(
        "cancelled",
        "DUE TO",
        r"\*\*\* (?:JOB|STEP) \S+ ON (?P<host>\S+) CANCELLED AT \S+ DUE TO (?P<message>[A-Z ]+?) \*\*\*",
    ),
    _pattern(
        "cancelled",
        "CANCELLED AT",
        r"\*\*\* (?:JOB|STEP) \S+ ON (?P<host>\S+) CANCELLED AT",
        secondary=True,
    ),
    _pattern("gpu_xid", "SXid (PCI:", r"SXid \(PCI:(?P<device>[^)]+)\): (?P<message>\d+, Fatal.*)"),
    _pattern("gpu_xid", "NVRM: Xid", r"NVRM: Xid \(PCI:(?P<device>[^)]+)\): (?P<message>\d+.*)"),
    _pattern(
        "duplicate_gpu",
        "Duplicate GPU detected",
        r"Duplicate GPU detected ?: (?P<message>rank \d+ and rank \d+ both on CUDA device \w+)",
    ),
    _pattern("out_of_memory", "out of memory", r"CUDA out of memory|OutOfMemoryError"),
    _pattern("cuda_error", "CUDA error", r"CUDA error: (?P<message>.*)"),
)
