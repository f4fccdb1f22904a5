"""Lines of launchers, schedulers, Kubernetes, the kernel and the C++ runtime about a job's processes."""

from typing import Final

from stallwatch.formats.log_pattern import pattern

SYSTEM_PATTERNS: Final = (
    # Agents of torchrun and DeepSpeed about a process that ended.
    pattern(
        "process_failed",
        "failed (exitcode:",
        r"failed \(exitcode: (?P<exit>-?\d+)\) local_rank: (?P<local_rank>\d+) \(pid: (?P<pid>\d+)\)",
    ),
    pattern("process_failed", "exits with return code", r"exits with return code = (?P<exit>-?\d+)"),
    pattern(
        "terminated",
        "closing signal",
        r"Sending process (?P<pid>\d+) closing signal (?P<message>SIG\w+)",
        secondary=True,
    ),
    pattern("cancelled", "death signal", r"Received (?:Signals\.)?(?P<message>SIG\w+) death signal"),
    # accelerate looks for itself before it starts anything.
    pattern(
        "address_in_use",
        "Tried to launch distributed communication",
        r"Tried to launch distributed communication on port `?(?P<port>\d+)",
    ),
    # Python, the loader and the launcher's shell: training has not begun.
    pattern("not_started", "can't open file", r"can't open file '?(?P<message>[^']+)"),
    pattern("not_started", "symbol lookup error", r"symbol lookup error: (?P<message>.*)"),
    pattern("not_started", "loading shared libraries", r"error while loading shared libraries: (?P<message>.*)"),
    pattern("not_started", "execve()", r"error: execve\(\): (?P<message>.*)"),
    pattern(
        "not_started",
        "command not found",
        r"(?P<message>(?:python[\d.]*|torchrun|accelerate|deepspeed|mpirun|srun|horovodrun)): command not found",
    ),
    pattern("not_started", "Host key verification failed", r"Host key verification failed"),
    pattern("not_started", "Permission denied (publickey", r"Permission denied \(publickey"),
    pattern("not_started", "not enough slots available", r"There are not enough slots available"),
    # The C++ runtime and faulthandler. Exceptions of c10 and gloo come with lines of their own.
    pattern("native_exception", "terminate called", r"throwing an instance of '(?P<message>std::[^']+)'"),
    pattern(
        "native_crash",
        "Fatal Python error",
        r"Fatal Python error: (?P<message>Segmentation fault|Bus error|Illegal instruction|Floating point exception)",
    ),
    # Memory.
    pattern("memory_killed", "oom_kill event", r"Detected \d+ oom_kill events? in (?P<message>\S+)"),
    pattern(
        "memory_killed", "Out Of Memory", r"srun: error: (?P<host>\S+): tasks? (?P<message>[\d,\[\]-]+): Out Of Memory"
    ),
    pattern("memory_killed", "memory limit", r"Exceeded (?:job|step) memory limit"),
    pattern("memory_killed", "TERM_MEMLIMIT", r"TERM_MEMLIMIT"),
    pattern("memory_killed", "PBS: job killed", r"PBS: job killed: (?P<message>v?mem .*)"),
    pattern("memory_killed", "Killed process", r"[Oo]ut of memory: Killed process (?P<pid>\d+) \((?P<message>.*?)\)"),
    pattern("memory_killed", "OOMKilled", r"\bOOMKilled\b"),
    # Slurm, LSF, PBS and Kubernetes about a job's end.
    pattern("node_failed", "NODE FAILURE", r"ON (?P<host>\S+) CANCELLED AT \S+ DUE TO NODE FAILURE"),
    pattern("node_failed", "Node failure on", r"srun: error: Node failure on (?P<host>\S+)"),
    pattern(
        "cancelled",
        "DUE TO",
        r"\*\*\* (?:JOB|STEP) \S+ ON (?P<host>\S+) CANCELLED AT \S+ DUE TO (?P<message>[A-Z ]+?)(?:,.*)? \*\*\*",
    ),
    pattern(
        "cancelled",
        "CANCELLED AT",
        r"\*\*\* (?:JOB|STEP) \S+ ON (?P<host>\S+) CANCELLED AT",
        secondary=True,
    ),
    pattern("cancelled", "TERM_RUNLIMIT", r"TERM_RUNLIMIT"),
    pattern("cancelled", "PBS: job killed", r"PBS: job killed: (?P<message>walltime .*)"),
    pattern("evicted", "low on resource", r"The node was low on resource: (?P<message>[\w-]+)"),
    pattern(
        "process_failed",
        "srun: error:",
        r"srun: error: (?P<host>\S+): tasks? (?P<message>[\d,\[\]-]+): (?:Exited with exit code (?P<exit>\d+)"
        r"|(?P<died_of>Segmentation fault|Bus error|Aborted|Killed|Terminated|Illegal instruction"
        r"|Floating point exception))",
    ),
    # The kernel.
    pattern("gpu_xid", "SXid (PCI:", r"SXid \(PCI:(?P<device>[^)]+)\): (?P<message>\d+, Fatal.*)"),
    pattern("gpu_xid", "NVRM: Xid", r"NVRM: Xid \(PCI:(?P<device>[^)]+)\): (?P<message>\d+.*)"),
    pattern("gpu_lost", "fallen off the bus", r"fallen off the bus and is not responding"),
    pattern("pcie_error", "PCIe Bus Error", r"(?P<device>\S+): PCIe Bus Error: severity=Uncorrected \(Fatal\)"),
    pattern(
        "hung_task",
        "blocked for more than",
        r"INFO: task (?P<message>.{1,32}?):(?P<pid>\d+) blocked for more than \d+ seconds",
    ),
)
