"""Lines of launchers, schedulers, Kubernetes and the C++ runtime about a job's processes."""

import re
from typing import Final

from stallwatch.formats.log_job_states import STATE_OF_A_JOB
from stallwatch.formats.log_pattern import pattern
from stallwatch.model.launchers import MODULES, MPI_PROGRAMS, PROGRAMS

# A command of subprocess, as a list or as a text, up to the launcher in it: "['/env/bin/python', '-u', '-m', 'torch….
_WORDS_END: Final = r"['\"]?,? ['\"]?"
_LAUNCHERS_COMMAND: Final = (
    rf"['\"]?\[?['\"]?(?:[^\s'\",]*/)?(?:python[\d.]*{_WORDS_END}(?:-\w{_WORDS_END}){{0,4}}(?:[^\s'\",]*/)?)?"
    rf"(?:{'|'.join(map(re.escape, ('deepspeed', 'accelerate', 'torchrun', *MODULES)))})(?=['\" ])"
)

SYSTEM_PATTERNS: Final = (
    # Agents of torchrun and DeepSpeed about a process that ended.
    pattern(
        "process_failed",
        "failed (exitcode:",
        r"failed \(exitcode: (?P<exit>-?\d+)\) local_rank: (?P<local_rank>\d+) \(pid: (?P<pid>\d+)\)",
    ),
    pattern(
        "process_failed",
        "exits with return code",
        # DeepSpeed prints the command that it started last, whichever process failed: it tells of the only one.
        r"(?:--local[_-]rank=(?P<local_rank>0)\b.*?)?exits with return code = (?P<exit>-?\d+)",
    ),
    pattern(
        "terminated",
        "closing signal",
        r"Sending process (?P<pid>\d+) closing signal (?P<message>SIG\w+)",
        secondary=True,
    ),
    pattern(
        "terminated",
        "Unable to shutdown process",
        r"Unable to shutdown process (?P<pid>\d+) via \S+, forcefully exitt?ing via (?:Signals\.)?(?P<message>\w+)",
        secondary=True,
    ),
    pattern("terminated", "Killing subprocess", r"Killing subprocess (?P<pid>\d+)", secondary=True),
    pattern("restarting", "will restart worker group", r"will restart worker group", secondary=True),
    # What is killed or terminated after these lines is so on their account.
    pattern("killing", "srun: Terminating", r"srun: (?P<message>Terminating (?:StepId|job step).*)", secondary=True),
    pattern(
        "killing", "sigquit from a child", r"Received (?P<message>sigquit from a child) proc", secondary=True
    ),  # SGLang
    pattern("killing", "Job step aborted", r"(?P<message>Job step aborted: Waiting up to .*)", secondary=True),
    pattern(
        "killing", "killing job", rf"(?:{'|'.join(MPI_PROGRAMS)}): (?P<message>(?:.*)killing job.*)", secondary=True
    ),
    pattern(
        "process_failed",
        "noticed that process rank",
        r"noticed that process rank (?P<rank>\d+) with PID (?:(?P<pid>\d+)|\S+) on node (?P<host>\S+) exited on"
        r"(?: signal (?P<exit_signal>\d+)|\s*$)",
    ),
    pattern(
        "process_failed",
        "exited due to process rank",
        r"exited due to process rank (?P<rank>\d+) with PID (?:(?P<pid>\d+)|\S+) on(?: node (?P<host>\S+))?",
    ),
    # PALS, of HPE's machines.
    *(
        pattern("process_failed", word, rf"\brank (?P<rank>\d+) (?:{word} (?P<{name}>[1-9]\d*))\s*(?:\(.*)?$")
        for word, name in (("exited with code", "exit"), ("died from signal", "exit_signal"))
    ),
    # ALPS, of Cray's older ones.
    pattern(
        "process_failed",
        "PE RANK ",
        r"PE RANK (?P<rank>\d+) exit (?:signal (?P<died_of>[A-Z][\w ]*?)|(?:code|status) (?P<exit>[1-9]\d*))\s*$",
    ),
    # jsrun, of IBM's.
    pattern(
        "process_failed",
        "first noticed rank",
        r"\(first noticed rank (?P<rank>\d+)\) terminated with (?:signal "
        r"(?P<exit_signal>\d+)|exit code (?P<exit>[1-9]\d*))",
    ),
    pattern("process_failed", "MPI_ABORT was invoked", r"MPI_ABORT was invoked on rank (?P<rank>\d+) in communicator"),
    # Intel MPI's and MPICH's; the next line says how.
    pattern(
        "process_failed", "RUNNING AT", r"(?:RANK (?P<rank>\d+) )?PID (?:(?P<pid>\d+)|\S+) RUNNING AT (?P<host>\S+)"
    ),
    # Ray tells the death of an actor to its driver; why it died stands in the actor's own lines, or nowhere.
    pattern(
        "actor_died",
        "Worker exit type",
        # Pids are of containers, which may have the same on every node.
        r"(?:Worker IP address: \[?(?P<host>[\w.:-]+)\S* Worker port: \d+ )?(?:Worker PID: (?P<pid>\d+) )?"
        r"Worker exit type: \w+ Worker exit detail: (?P<message>.*?)(?: There are some| Some potential|$)",
    ),
    pattern(
        "actor_died", "actor died unexpectedly", r"(?P<message>The actor died unexpectedly before finishing this task)"
    ),
    pattern("actor_died", "actor is dead because", r"(?P<message>The actor is dead because .*)"),
    # vLLM's engine, of a worker that it counts within itself (training_log: one of several engines), and who asks the
    # engine, of that: they did not say why, and whoever waited for them raises by itself then.
    *(
        pattern("worker_died", "died unexpectedly", text)
        for text in (
            r"Worker proc VllmWorker-(?P<rank>\d+) died",
            r"\bRayWorkerProc rank=\[(?P<rank>\d+)\] died",
            r"Engine core proc (?P<message>\S+) died unexpectedly",
        )
    ),
    # SGLang's, of the first in order whose pipe has closed: others may have died before it.
    pattern("worker_died", "scheduler is dead", r"(?P<message>Rank \d+ scheduler is dead)\."),
    pattern(
        "process_failed",
        "VllmWorkerProcess pid",
        r"Worker VllmWorkerProcess pid (?P<pid>\d+) died, exit code: (?P<exit>-?\d+)",
    ),
    pattern("memory_killed", "due to memory pressure", r"killed due to memory pressure \(OOM\)"),
    pattern("memory_killed", "running low on memory", r"killed due to the node running low on memory"),
    pattern("cancelled", "death signal", r"Received (?:Signals\.)?(?P<message>SIG\w+) death signal"),
    pattern("cancelled", "Requeued SLURM job", r"Requeued SLURM job: \d+"),  # Lightning's, told that its time is over
    # DeepSpeed's launcher, of itself: Ctrl-C, or a scheduler.
    pattern("interrupted", "Main process received SIGINT", r"Main process received SIGINT, exiting"),
    pattern("cancelled", "Main process received", r"Main process received (?P<message>SIG\w+), exiting"),
    # accelerate looks for itself before it starts anything.
    pattern(
        "address_in_use",
        "Tried to launch distributed communication",
        r"Tried to launch distributed communication on port `?(?P<port>\d+)",
    ),
    # Python, the loader and the launcher's shell: training has not begun.
    pattern("not_started", "can't open file", r"can't open file '?(?P<message>[^']+)"),
    pattern("not_started", ".py: error: ", r"^(?P<message>\S+\.py: error: .*)"),  # argparse
    pattern("not_started", "symbol lookup error", r"symbol lookup error: (?P<message>.*)"),
    pattern("not_started", "loading shared libraries", r"error while loading shared libraries: (?P<message>.*)"),
    pattern("not_started", "execve()", r"error: execve\(\): (?P<message>.*)"),
    pattern(
        "not_started",
        "command not found",
        rf"(?P<message>(?:python[\d.]*|{'|'.join(PROGRAMS)})): command not found",
    ),
    pattern("not_started", "Host key verification failed", r"Host key verification failed"),
    pattern("not_started", "Permission denied (publickey", r"Permission denied \(publickey"),
    pattern("not_started", "not enough slots available", r"There are not enough slots available"),
    # torch.distributed.launch, to torch 1.8: the command is the last one that it started, whichever process failed.
    pattern(
        "process_failed",
        "CalledProcessError: Command",
        r"CalledProcessError: Command .*--local[_-]rank=.*"
        r"(?:died with <Signals\.(?P<died_of>SIG\w+): \d+>|returned non-zero exit status (?P<exit>\d+))",
    ),
    # Of other launchers: by the command, or by who raised it. A tool that the job itself runs says the same of its end.
    *(
        pattern(
            "process_failed",
            "died with <Signals.",
            rf"CalledProcessError: Command {command}.*died with <Signals\.(?P<died_of>SIG\w+): \d+>",
            by_launcher=by_launcher,
        )
        for command, by_launcher in ((_LAUNCHERS_COMMAND, False), ("", True))
    ),
    # Launchers within Python: multiprocessing (its index is the local rank), Lightning, Composer, horovodrun.
    pattern(
        "process_failed",
        " terminated with ",
        r"\b[Pp]rocess (?P<local_rank>\d+) terminated with (?:signal (?P<died_of>SIG[A-Z]+)|exit code (?P<exit>\d+))",
    ),
    pattern(
        "process_failed",
        "Child process with PID",
        r"\[rank: (?P<rank>\d+)\] Child process with PID (?P<pid>\d+) terminated with code (?P<exit>-?\d+)",
    ),
    pattern("process_failed", "crashed with exit code", r"Rank (?P<rank>\d+) crashed with exit code (?P<exit>-?\d+)"),
    pattern(
        "process_failed",
        "exited with code",
        r"Global rank (?P<rank>\d+) \(PID (?P<pid>\d+)\) exited with code (?P<exit>-?[1-9]\d*)",
    ),
    pattern(
        "process_failed",
        ": exited abnormally",
        r"srun: (?:StepId=\S+|job step \S+) tasks? (?P<ranks>[\d,\[\]-]+): exited abnormally",
    ),
    # kubectl exec, of what it ran.
    pattern("process_failed", "terminated with exit code", r"^command terminated with exit code (?P<exit>[1-9]\d*)"),
    # Docker Compose, of a container.
    pattern("process_failed", " exited with code ", r"^(?P<message>\S+) exited with code (?P<exit>[1-9]\d*)\s*$"),
    pattern(
        "process_failed", "exit with status code", r"Process (?P<rank>\d+) exit with status code (?P<exit>-?[1-9]\d*)\."
    ),
    # A shell about what it started: "run.sh: line 7:  2233 Segmentation fault      (core dumped) python train.py".
    *(
        pattern("process_failed", word, rf": line \d+: +(?P<pid>\d+) (?P<died_of>{word})\b")
        for word in ("Segmentation fault", "Bus error", "Aborted", "Killed", "Illegal instruction")
    ),
    # zsh, the same: "[1]    22231 segmentation fault (core dumped)  python train.py".
    *(
        pattern("process_failed", word, rf"^\[\d+\]\s+\+?\s*(?P<pid>\d+) (?P<died_of>{word})\b")
        for word in ("segmentation fault", "bus error", "killed", "illegal hardware instruction")
    ),
    # A shell that somebody types into, of what it ran last: whose process that was nobody knows.
    *(
        pattern("program_died", word, rf"^(?P<died_of>{word})(?: \(core dumped\))?\s*$")
        for word in ("Killed", "Segmentation fault", "Bus error", "Illegal instruction", "Floating point exception")
    ),
    # ROCm's runtime, of the GPU that it was given.
    pattern("cuda_error", "Memory access fault by GPU", r"(?P<message>Memory access fault by GPU .*)"),
    pattern(
        "gpu_unreachable",
        "HW Exception by GPU",
        r"(?P<message>HW Exception by GPU (?P<device>node-\d+) .*reason ?: ?GPU Hang.*)",
    ),
    pattern("cuda_error", "HSA_STATUS_ERROR", r"(?P<message>HSA_STATUS_ERROR\w*: .*)"),
    pattern("memory_allocation", "page allocation failure", r"(?P<message>page allocation failure: order:\d+)"),
    # Ray's handler of what nobody caught in C++ names the type as the compiler does.
    pattern(
        "native_exception",
        "Unhandled exception: ",
        r"Unhandled exception: (?P<mangled>\w+)\. what\(\): (?P<message>.*?)\.?(?: \[repeated \d+x .*)?$",
    ),
    # The C++ runtime and faulthandler; what() says more, in the next line.
    pattern("native_exception", "terminate called", r"throwing an instance of '(?P<exception>[\w:]+)'"),
    pattern(
        "native_crash",
        "Fatal Python error",
        r"Fatal Python error: (?P<message>Segmentation fault|Bus error|Illegal instruction|Floating point exception)",
    ),
    # UCX's handler, Open MPI's and glog's, in a process that crashes.
    pattern(
        "native_crash",
        "] Caught signal ",
        r"\[(?P<host>[\w.-]+):(?P<pid>\d+)\s*:\d+(?::\d+)?\]\s*Caught signal (?P<message>(?:4|7|8|11) \([^)]*\))",
    ),
    pattern(
        "native_crash",
        "] Signal: ",
        r"\[(?P<host>[\w.-]+):(?P<pid>\d+)\] Signal: (?P<message>(?:Segmentation fault|Bus error|Illegal instruction"
        r"|Floating point exception) \(\d+\))",
    ),
    pattern(
        "native_crash",
        " received ",
        r"\*\*\* (?P<message>SIG(?:SEGV|BUS|ILL|FPE))(?: \([^)]*\))? received (?:by PID (?P<pid>\d+)|at time=)",
    ),
    # glibc, before it aborts a process whose heap or stack was overwritten.
    *(
        pattern("native_crash", word, rf"^(?:\*\*\* (?:Error in .*: )?)?(?P<message>{re.escape(word)}.*)")
        for word in (
            "malloc(): ",
            "free(): ",
            "realloc(): ",
            "munmap_chunk(): ",
            "double free or corruption",
            "corrupted size vs. prev_size",
            "corrupted double-linked list",
            "stack smashing detected",
        )
    ),
    # assert(3), before it aborts.
    pattern("native_crash", ": Assertion ", r"^\S+: \S+:\d+: (?P<message>.*: Assertion [`'].*' failed\.)"),
    # Memory.
    *(
        pattern("memory_killed", word, r"Detected \d+ oom[_-]kill event(?:s|\(s\))? in (?:step )?(?P<message>\S+)")
        for word in ("oom_kill event", "oom-kill event")  # the second to Slurm 20
    ),
    pattern(
        "memory_killed", "Out Of Memory", r"srun: error: (?P<host>\S+): tasks? (?P<ranks>[\d,\[\]-]+): Out Of Memory"
    ),
    pattern("memory_killed", "OUT_OF_ME", rf"{STATE_OF_A_JOB}OUT_OF_ME(?:MORY\b|\+)"),
    pattern("node_failed", "NODE_FAIL", rf"{STATE_OF_A_JOB}NODE_FAIL\b"),
    *(pattern("cancelled", word, rf"{STATE_OF_A_JOB}(?P<message>{word})\b") for word in ("TIMEOUT", "PREEMPTED")),
    pattern("memory_killed", "memory limit", r"Exceeded (?:job|step) memory limit"),
    pattern("memory_killed", "TERM_MEMLIMIT", r"TERM_MEMLIMIT"),
    pattern("memory_killed", "PBS: job killed", r"PBS: job killed: (?P<message>v?mem .*)"),
    pattern("memory_killed", "OOMKilled", r"\bOOMKilled\b"),
    # Slurm, LSF, PBS and Kubernetes about a job's end.
    # The node of that line lives: it is the job's first one, which prints it.
    pattern("node_failed", "NODE FAILURE", r"ON \S+ CANCELLED AT \S+ DUE TO NODE FAILURE"),
    pattern("node_failed", "has been marked dead", r"address: (?P<host>[\w.:-]+).*has been marked dead because"),  # Ray
    pattern("node_failed", "Node failure on", r"srun: error: Node failure on (?P<host>\S+)"),
    pattern("process_failed", "DUE TO TASK FAILURE", r"ON (?P<host>\S+) CANCELLED AT \S+ DUE TO TASK FAILURE"),
    pattern(
        "not_started", "srun: error: Task launch", r"srun: error: (?P<message>Task launch for \S+ failed on node .*)"
    ),
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
        r"srun: error: (?P<host>\S+): tasks? (?P<ranks>[\d,\[\]-]+): (?:Exited with exit code (?P<exit>\d+)"
        r"|(?P<died_of>Segmentation fault|Bus error|Aborted|Killed|Terminated|Illegal instruction"
        r"|Floating point exception))",
    ),
)
