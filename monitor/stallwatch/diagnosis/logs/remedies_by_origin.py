"""What to do, by whose failure it is: advice belongs to the communication library and to the launcher that a log shows,
and to no other. Where nothing shows them it is what holds for all."""

import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from stallwatch.diagnosis.logs.logged_failure import LoggedFailure
from stallwatch.diagnosis.logs.remedies import words_for
from stallwatch.diagnosis.logs.remedies_by_kind import OWN_LOG, RAISED
from stallwatch.diagnosis.logs.remedies_by_text import Words
from stallwatch.model.launchers import MPI_PROGRAMS
from stallwatch.model.log_event import LogEvent

Library = Literal["nccl", "hccl"]
Launcher = Literal["torchrun", "mpirun", "srun", "deepspeed", "ray", ""]

# Ascend's back end (torch_npu) prints c10d's lines with its own names, and error numbers of its own.
_HCCL: Final = re.compile(r"HCCL|\bHccl[A-Z]|torch_npu|\bE[EHIJ]\d{4}\b|\bERR0\d{4}\b|\brt\w+Synchronize\b")
_LAUNCHERS: Final[tuple[tuple[Launcher, re.Pattern[str]], ...]] = (
    ("mpirun", re.compile(rf"^(?:{'|'.join(MPI_PROGRAMS)})\b|Primary job {{1,2}}terminated|RUNNING AT|EXIT STATUS")),
    ("srun", re.compile(r"^(?:srun|slurmstepd): ")),
    ("deepspeed", re.compile(r"exits with return code|launcher/launch\.py|\[launch\.py:")),
    ("torchrun", re.compile(r"local_rank: \d+|elastic|ChildFailedError|closing signal SIG")),
)
_LOG_PER_RANK: Final[dict[Launcher, str]] = {
    "torchrun": "torchrun --log-dir DIR --redirects 3 keeps a log per rank",
    "mpirun": "mpirun --tag-output marks whose line is whose, --output-filename DIR keeps a log per rank (Open MPI 5: "
    "--output tag, --output dir=DIR; MPICH and Intel MPI: -prepend-rank)",
    "srun": "srun --label marks whose line is whose, --output=%j-%t.log keeps a log per rank",
    "deepspeed": "deepspeed --enable_each_rank_log=DIR keeps a log per rank",
    "ray": "`ray logs`, or /tmp/ray/session_latest/logs/worker-*-<pid>.err on its node, is its own log",
    "": "torchrun --log-dir DIR --redirects 3, srun --output=%j-%t.log, mpirun --output-filename DIR keep one per rank",
}
_TRACEBACK: Final = "decorate main with torch.distributed.elastic.multiprocessing.errors.record: torchrun shows it then"
_RECORDER: Final[dict[Library, str]] = {
    "nccl": "TORCH_FR_BUFFER_SIZE=2000",
    # Ascend/pytorch, tools/flight_recorder/flight_recorder.md
    "hccl": "TORCH_HCCL_TRACE_BUFFER_SIZE=2000 TORCH_HCCL_DUMP_ON_TIMEOUT=1 TORCH_HCCL_ENABLE_MONITORING=1",
}
# CANN's troubleshooting of EI0002 (a wait on another rank) and EI0006 (a connection between two ranks).
_HCCL_WORDS: Final[dict[str, Words]] = {
    "nccl_error": Words(
        "A call of HCCL failed on this rank; torch's text does not say why.",
        "read the EI… or EJ… line near it and CANN's log (~/ascend/log/debug/plog, ASCEND_GLOBAL_LOG_LEVEL=1 for the "
        "next run): EI0002 and EI0006 tell that another rank did not come, so that the rank with an earlier error of "
        "another kind is the one to look at; then the link (hccn_tool -i <device> -link -g, -tls -g)",
    ),
    "collective_timeout": Words(
        "Ranks waited in a collective that some rank never entered. The rank that reports it is a waiting one.",
        "look for the rank that reports something else or nothing; its recorder for the next run: "
        f"{_RECORDER['hccl']}; HCCL_EXEC_TIMEOUT (1800 s) only moves the moment of the report",
    ),
    "recorder_disabled": Words(
        "The flight recorder was off, so the call site of the stuck collective is not known.",
        f"export {_RECORDER['hccl']}",
    ),
}


def library_of(events: Iterable[LogEvent]) -> Library:
    """The communication library that the logs of a job show."""
    return "hccl" if any(_HCCL.search(f"{e.exception or ''} {e.message or ''} {e.text}") for e in events) else "nccl"


def launcher_of(events: Iterable[LogEvent]) -> Launcher:
    """The launcher whose lines stand in the logs of a job; "" where none does."""
    for event in events:
        if event.kind == "actor_died":
            return "ray"
        if found := next((name for name, pattern in _LAUNCHERS if pattern.search(event.text)), None):
            return found
        if event.kind == "launcher_failure":
            return "torchrun"
    return ""


def log_per_rank(events: Iterable[LogEvent]) -> str:
    """How each rank's own log is kept under the launcher that the logs show."""
    return _LOG_PER_RANK[launcher_of(events)]


def recorder_settings(events: Iterable[LogEvent]) -> str:
    """What turns on the flight recorder of the library that the logs show."""
    return _RECORDER[library_of(events)]


def words_in(told: LoggedFailure, events: Sequence[LogEvent]) -> Words:
    """Given a failure and all events of its logs, return what it means and what to do there."""
    words = words_for(told)
    if told.kind in _HCCL_WORDS and library_of(events) == "hccl":
        return _HCCL_WORDS[told.kind]
    if words.remedy in (OWN_LOG, RAISED):
        launcher = launcher_of(events)
        how = _TRACEBACK if launcher == "torchrun" else _LOG_PER_RANK[launcher]
        return words._replace(remedy=f"{words.remedy}; {how}")
    return words
