"""Lines of torch, NCCL, gloo and the loader that mean something, each with a word that must be in the line.

The forms are those of torch 2.0 to 2.15 and NCCL 2.18 to 2.30. A pattern's named groups are fields of LogEvent; groups
whose names end in "_ms", and the others that count, become integers.
"""

from typing import Final

from stallwatch.formats.log_mismatch import REFUSAL_LINES
from stallwatch.formats.log_pattern import Pattern, pattern
from stallwatch.formats.log_patterns_end import AGAIN_PATTERNS, END_PATTERNS
from stallwatch.formats.log_patterns_start import START_PATTERNS
from stallwatch.formats.log_patterns_system import SYSTEM_PATTERNS

# The group in brackets is read for every kind, by training_log.
# The first that matches names the line.
PATTERNS: Final[tuple[Pattern, ...]] = (
    pattern(
        "collective_timeout",
        "OpType=",
        # "[Rank g]" is the rank within the process group (nccl#1610), where no PG is printed. 1.13 prints a shape.
        # What another process wrote meanwhile may stand in the middle of the words before.
        r"(?:\[Rank (?P<group_rank>\d+)\] Wa?[to]\w+ [^\[\]]{0,240}?)?\bWork[A-Z]+\("
        r"(?:SeqNum=(?P<seq>\d+), )?OpType=(?P<operation>\w+)(?:, TensorShape=\[(?P<shape>[\d, ]*)\])?"
        r"(?:, NumelIn=(?P<numel_in>\d+), NumelOut=(?P<numel_out>\d+))?"
        r", Timeout\(ms\)=(?P<timeout_ms>\d+)\)(?: ran for \d+ milliseconds| timed out in blocking wait)",
    ),
    # torch 2.15's nccl2, which tells neither operation nor number; training_log reads the rank and the group before it.
    pattern(
        "collective_timeout",
        "[TC]",
        r"\[TC\](?:\[rank=\d+\])?(?:\[name=[^\]]*\])? Operation timed out after \d+ ms",
    ),
    pattern(
        "watchdog_end",
        "[TC]",
        r"\[TC\].*? (?:Aborting process .*?due to |nccl hit async error on rank |Async error on rank )(?P<message>.*)",
        secondary=True,
    ),
    pattern(
        "cuda_error",
        "event query: CUDA error",
        r"\[TC\].*? during (?:start|end) event query: CUDA error: (?P<message>.*)",
    ),
    pattern(
        "collective_broke",
        "async exception",
        r"(?:\[Rank (?P<group_rank>\d+)\] )?Collective Work\w+\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<operation>\w+)"
        r"(?:, NumelIn=(?P<numel_in>\d+), NumelOut=(?P<numel_out>\d+))?, Timeout\(ms\)=(?P<timeout_ms>\d+)\)"
        r" raised the following async exception",
    ),
    pattern(
        "group_status",
        "ast enqueued",
        r"(?:work(?: sequence id)?: (?P<seq>-?\d+)\b.{0,40}?)?"
        r"[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d+)"
        r".{0,40}?last completed (?:NCCL )?work: (?P<completed>-?\d+)",
    ),
    pattern("recorder_disabled", "FlightRecorder is disabled", r"Stack trace of the \w+ collective\b.*? not found"),
    pattern("failed_stack", "Stack trace of the", r"Stack trace of the \w+ collective(?: operation)?: *$"),
    pattern(
        "dump_signal",
        "dump signal",
        r"(?:Received a (?:global )?dump signal|Observed flight recorder dump signal)"
        r".*?(?:from\s+rank (?P<source>\d+)|$)",
        secondary=True,
    ),
    pattern(
        "heartbeat_stuck",
        "watchdog got stuck for",
        r".*?watchdog got stuck for \d+ ?seconds",
    ),
    pattern("heartbeat_stuck", "Heartbeat monitor timed out", r"Heartbeat monitor timed out"),
    pattern("heartbeat_stuck", "atchdog timeout (self.", r"atchdog timeout \(self\.watchdog_timeout="),  # SGLang's
    pattern("gil_clue", "Could not acquire GIL", r"Could not acquire GIL within (?P<within_ms>\d+) ?ms"),
    # The rank's own GPU ended its watchdog; the others' watchdogs end by their waiting.
    pattern(
        "cuda_error",
        "watchdog thread terminated",
        r"watchdog thread terminated with exception: CUDA error: (?P<message>.*)",
    ),
    pattern(
        "watchdog_end",
        "watchdog thread terminated",
        r".*?watchdog thread terminated with exception: (?P<message>.*)",
        secondary=True,
    ),
    # Only whose own watchdog found a time-out says so.
    pattern(
        "watchdog_end", "First PG on this rank to signal", r"First PG on this rank to signal dumping", secondary=True
    ),
    pattern(
        "watchdog_end",
        "entire process down",
        r"To avoid data inconsistency, we are taking the entire process down",
        secondary=True,
    ),
    pattern(
        "watchdog_end",
        "operations have failed or timed out",
        r"Some NCCL operations have failed or timed out",
        secondary=True,
    ),
    pattern(
        "collective_mismatch",
        "Detected mismatch between collectives",
        r"mismatch between collectives on ranks\. (?P<message>Rank \d+ is running (?:inconsistent )?collective: .*)",
    ),
    # NCCL's own, to 2.7.
    pattern(
        "collective_mismatch",
        "Mismatched collective detected",
        r"(?P<message>Mismatched collective detected.*)",
    ),
    pattern(
        "barrier_absent",
        "failed to pass monitoredBarrier",
        r"(?:\[Rank (?P<group_rank>\d+)\]: )?Ranks? (?P<ranks>\d[\d, ]*) failed to pass monitoredBarrier"
        r" in (?P<timeout_ms>\d+) ms",
    ),
    # What TORCH_NCCL_DESYNC_DEBUG makes of all ranks' traces in the store; ranks count within the group.
    pattern(
        "desync_absent",
        "but didn't join collective",
        r"\[(?P<ranks>\d[\d, ]*)\] finished collective #\d+, but didn't join collective #(?P<seq>\d+)",
    ),
    pattern(
        "desync_absent",
        "never joined any collectives",
        r"ranks \[(?P<ranks>\d[\d, ]*)\] are the lagging ranks that caused this timeout",
    ),
    # Horovod's coordinator, of each operation that stalls.
    pattern("desync_absent", "[missing ranks: ", r"\[missing ranks: (?P<ranks>\d[\d, ]*)\]"),
    pattern("desync_absent", "waiting for remainder of ranks", r"waiting for remainder of ranks for more than \d+ s"),
    pattern("size_mismatch", "op.preamble.length <= op.nbytes", REFUSAL_LINES["gloo"]),
    pattern("size_mismatch", "message truncated", rf".*?{REFUSAL_LINES['NCCL']}"),
    pattern(
        "gloo_timeout",
        "Timed out waiting",
        r"Timed out waiting (?P<timeout_ms>\d+)ms for (?:send|recv) operation to complete",
    ),
    pattern(
        "gloo_peer_closed",
        "Connection closed by peer",
        r"Connection closed by peer \[(?P<peer>[^\]]+)\]:(?P<port>\d+)",
        secondary=True,
    ),
    pattern(
        "gloo_peer_closed", "Connection reset by peer", r"Read error \[(?P<peer>[^\]]+)\]:(?P<port>\d+)", secondary=True
    ),
    *START_PATTERNS,
    pattern(
        "nccl_peer_closed",
        "Connection closed by remote peer",
        r"Connection closed by remote peer (?P<peer>\S+)",
        secondary=True,
    ),
    pattern(
        "nccl_peer_closed",
        ": Call to ",
        r"socket\w+: Call to (?:recv|send) (?:from|to) (?P<peer>\S+) failed ?: .*",
        secondary=True,
    ),
    pattern(
        "nccl_completion_error",
        "Got completion",
        r"NET/IB\w? ?: ?.*?Got completion (?:from peer (?P<peer>\S+) )?with (?:error |status=)(?P<message>[^,\s]+)"
        r"(?:.*?(?:\[hca |hca )(?P<device>[^\]\s]+))?",
    ),
    # The same of EFA, by NCCL's plug-in (aws-ofi-nccl) and by libfabric, which warns as a job comes down, too.
    pattern(
        "nccl_completion_error",
        "completed with error",
        r"NET/OFI Request \S+ completed with error\. (?P<message>RC: .*?)(?:\. Completed length.*)?$",
    ),
    pattern(
        "nccl_completion_error",
        "<warn> err: ",
        r"libfabric:(?P<pid>\d+):\d+:.*?:cq:\w+\(\):\d+<warn> err: \d+, message: (?P<message>.*?)(?: My EFA addr.*)?$",
        secondary=True,
    ),
    # What fails with these is fatal; a provider that is not there is not, for NCCL takes sockets then.
    pattern(
        "nccl_no_adapter",
        "NCCL WARN NET/OFI ",
        r"NCCL WARN NET/OFI (?P<message>(?:Couldn't|Unable to) (?:open|enable|bind|create|allocate) .*"
        r"|Creating new .* failed.*)",
    ),
    pattern(
        "nccl_async_event",
        "async event",
        r"NET/IB\w? ?: ?(?:(?P<device>\S+:\d+) )?Got (?:(?:non-)?fatal )?async event ?: (?P<message>.*)",
    ),
    pattern("nccl_version_mismatch", "Mismatched NCCL version", r"Mismatched NCCL version detected ?: (?P<message>.*)"),
    # NCCL's own warnings, which stand in the log before torch's exception, or after it as "Last error".
    pattern("nccl_no_interface", "no socket interface found", r"no socket interface found"),
    pattern("nccl_no_interface", "No interface found", r"No interface found in the same subnet"),
    # 2.27's, where NCCL_SOCKET_IFNAME names none: it goes on with an address that was never filled in (nccl#1837).
    pattern("nccl_no_interface", "is neither AF_INET", r"connecting to address .* is neither AF_INET"),
    pattern(
        "nccl_connect",
        "onnect to ",
        # 2.18 and later name the function; before that "NCCL WARN Net : Connect to …", to 2.8 without "Net".
        r"(?:socket\w+Connect: |NCCL WARN (?:Net : )?)[Cc]onnect to (?P<peer>\S+)"
        r" (?:failed ?:|returned) (?P<message>.*)",
    ),
    # Who connects to NCCL's ports and is no rank of this communicator (2.16 to 2.32); NCCL accepts the next one then.
    pattern("nccl_stranger", "wrong magic", r"socketFinalizeAccept: (?P<message>wrong magic \w+ != \w+)"),
    pattern(
        "nccl_stranger",
        "valid magic from",
        r"socketFinalizeAccept: didn't receive a valid magic from (?P<peer>\S+)",
    ),
    pattern(
        "nccl_stranger",
        "ocket magic mismatch",
        r"(?:socketFinalizeAccept|Socket magic mismatch) from (?P<peer>\S+?):? .*?(?P<message>\(peer 0x\w+ [^)]*\))",
    ),
    pattern(
        "nccl_stranger",
        "discarding",
        r"(?:[Hh]andshake receive from|[Pp]eer) (?P<peer>\S+) (?:failed|closed before (?:magic|socket) h\w+), discard",
    ),
    # Ranks that do not fit together; whoever says it is the one that was asked.
    pattern(
        "nccl_handshake",
        "rong ",
        r"(?:socketFinalizeAccept(?: from \S+)?: wrong (?:socket )?|Wrong socket )type (?P<message>.*\d+ != .*)",
    ),
    pattern("nccl_handshake", "truncated : received", r"(?P<message>Message truncated : received .*)"),
    pattern("nccl_handshake", "Bootstrap Root : ", r"Bootstrap Root : (?P<message>(?:mismatch|localId|rank) .*)"),
    pattern("shared_memory", "shm/nccl-", r"(?:failed to extend|creating shared memory segment) (?P<message>.*)"),
    # Its files of shared memory alone are sized so; a text without a reason is an older version's.
    pattern(
        "shared_memory",
        "NCCL WARN",
        r"NCCL WARN (?!.*(?:Permission denied|Operation not permitted|Too many open files|File exists))"
        r"(?P<message>Call to (?:(?:posix_)?fallocate|ftruncate) failed.*|.*creating shared memory segment .*)",
    ),
    pattern("locked_memory", "Cannot allocate memory", r"(?P<message>ibv_\w+)(?: failed)? .*Cannot allocate memory"),
    pattern("out_of_memory", "Cuda failure", r"Cuda failure (?:\d+ )?'out of memory'"),
    # At the end of a process every call fails so.
    pattern("cuda_error", "Cuda failure", r"Cuda failure (?:\d+ )?'(?!driver shutting down)(?P<message>[^']+)'"),
    pattern(
        "nccl_init_complete",
        "Init COMPLETE",
        r"rank (?P<group_rank>\d+) nranks (?P<expected>\d+) (?:.*?commId (?P<comm>0x\w+))?.*Init COMPLETE",
    ),
    pattern(
        "nccl_init_started",
        "Init START",
        r"rank (?P<group_rank>\d+) nranks (?P<expected>\d+) (?:.*?commId (?P<comm>0x\w+))?.*Init START",
    ),
    # NVML's calls, by torch, NCCL and nvidia-smi.
    pattern(
        "gpu_unreachable",
        "nvmlDeviceGetHandle",
        r"nvmlDeviceGetHandleBy\w+\((?P<device>[^)]*)\) failed:? (?P<message>.*)",
    ),
    # What a GPU does not have is asked in health too.
    pattern(
        "gpu_unreachable",
        "nvml",
        r"\bnvml\w+\([^)]*\) failed:? (?P<message>(?!Not Supported|Invalid Argument).*)",
    ),
    pattern("gpu_unreachable", "Failed to initialize NVML", r"Failed to initialize NVML: (?P<message>.*)"),
    pattern(
        "gpu_unreachable",
        "Unable to determine the device handle",
        r"Unable to determine the device handle for (?:GPU|gpu) ?(?P<device>[\w:.]+?): (?P<message>.*)",
    ),
    pattern(
        "gpu_unreachable",
        "communicate with the NVIDIA driver",
        r"(?P<message>couldn't communicate with the NVIDIA driver)",
    ),
    pattern("gpu_unreachable", "GPU is lost", r"(?P<message>GPU is lost)"),
    pattern(
        "dataloader_killed",
        "DataLoader worker",
        r"DataLoader worker \(pid\(?s?\)? (?P<pid>\d+)[\d, ]*\)"
        r" (?:exited unexpectedly|is killed by signal: (?P<message>[^.]*))",
    ),
    pattern(
        "shared_memory",
        "shared memory",
        r"(?:unable to allocate shared memory\(shm\)|insufficient shared memory \(shm\))",
    ),
    # The loader's handler, in the worker that crashes: its rank then raises what says more, with its line.
    pattern(
        "dataloader_killed",
        "encountered in worker",
        r"Unexpected (?P<message>segmentation fault|floating-point exception|bus error) encountered in worker",
        secondary=True,
    ),
    pattern("open_files", "Too many open files", r"Too many open files"),
    pattern("open_files", "items of ancdata", r"received 0 items of ancdata"),
    pattern(
        "duplicate_gpu",
        "Duplicate GPU detected",
        r"Duplicate GPU detected ?: (?P<message>rank \d+ and rank \d+ both on CUDA device \w+)",
    ),
    pattern("out_of_memory", "out of memory", r"(?:CUDA|HIP) out of memory|OutOfMemoryError"),
    pattern("cuda_error", "CUDA error", r"CUDA error: (?P<message>.*)"),
    # The driver's own names, as XLA and others print them, with CUDA's words: the memory or a link of this GPU failed.
    pattern("cuda_error", "CUDA_ERROR_", r"\bCUDA_ERROR_(?:CONTAINED|ECC_\w+|NVLINK_\w+): (?P<message>.*)"),
    *SYSTEM_PATTERNS,
    *END_PATTERNS,
    *AGAIN_PATTERNS,
)
