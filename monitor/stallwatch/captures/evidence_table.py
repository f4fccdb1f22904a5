"""Every source of evidence, what it needs, and what happens without: one list for people and for the documents.

python -m stallwatch.captures.evidence_table     prints the table as Markdown
"""

from stallwatch.model.sensor_spec import Source
from stallwatch.model.snapshot import SENSORS

SOURCES: tuple[Source, ...] = (
    *(source for sensor in SENSORS for source in sensor.sources),
    Source(
        "stacks",
        "Python stacks by py-spy",
        "the line where each rank and its children stand",
        "CAP_SYS_PTRACE for others' ranks (`--cap-add SYS_PTRACE` in a container), `kernel.yama.ptrace_scope` 0 for "
        "own ones",
        "the rank's own hook writes its stacks, unless the GIL is held; else the attempt says which right is missing",
    ),
    Source(
        "flight_recorder",
        "torch's flight recorder",
        "which collective or transfer of which group each rank is in",
        "the hook, torch 2.5 and later; without the hook a dump that torch wrote by itself (`TORCH_FR_DUMP_TEMP_FILE`) "
        "or the user's pipe (`TORCH_NCCL_DEBUG_INFO_PIPE_FILE`, with `TORCH_NCCL_TRACE_BUFFER_SIZE` before 2.12)",
        "the verdict rests on stacks, processes and RAS; a rank that was asked and did not answer is named",
    ),
    Source(
        "nccl_ras",
        "NCCL RAS",
        "who has launched less than others; processes NCCL lost",
        "NCCL 2.29.2, or 2.28.9 where no rank is missing (else it may crash; `capture.nccl_ras`), `NCCL_RAS_ADDR` on "
        "loopback; CAP_SYS_ADMIN for ranks in another network namespace",
        "it is not asked and the reason is kept; equal counts never mean healthy",
    ),
    Source(
        "kernel_log",
        "Kernel log in the bundle",
        "the lines around an incident",
        "`/dev/kmsg` with CAP_SYSLOG",
        "the attempt says so; the verdict has no kernel facts",
    ),
    Source(
        "process",
        "What limits a rank",
        "threads, its own /dev/shm, open files, memory cgroup",
        "CAP_SYS_PTRACE for others' ranks; cgroup v1 or v2",
        "fields are absent, never zero",
    ),
    Source(
        "log",
        "The rank's log",
        "watchdog lines, exceptions, loader errors",
        "stdout or stderr in a regular file (`torchrun --log-dir D --redirects 3`) that the rank's user may read",
        "the attempt says what it writes to instead",
    ),
    Source(
        "sources",
        "Source lines",
        "the text of the line in the alert",
        "the file readable for the rank's own user",
        "file and line number alone",
    ),
    Source(
        "profile",
        "Profile of a slow rank and its peers",
        "the line where it spends time that its peers do not, by share; of two data loader workers too",
        "as for stacks; nothing is paused",
        "the rank is named, its line is not",
    ),
    Source(
        "usage",
        "What a slow rank and its peers use meanwhile",
        "time without a CPU, who shares its CPUs, a used-up quota, time in which it is held (SIGSTOP, freezer), page "
        "faults, swap, reads from storage",
        "`/proc` of all processes; reads from storage of others' ranks need CAP_SYS_PTRACE",
        "fields are absent, never zero",
    ),
    Source(
        "heartbeat",
        "The record at the look",
        "step and phase at the moment of the evidence",
        "the hook",
        "the attempt names the reason",
    ),
)


def markdown() -> str:
    """Return the table for the documents."""
    lines = ["| source | gives | needs | without |", "|---|---|---|---|"]
    lines += [f"| {source.name} | {source.gives} | {source.needs} | {source.without} |" for source in SOURCES]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(markdown())
