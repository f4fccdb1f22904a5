"""Advice is that of the library and the launcher which the log shows."""

import pytest

from stallwatch.diagnosis.logs import read_logs
from stallwatch.diagnosis.logs.remedies_by_origin import launcher_of, log_per_rank, words_in
from stallwatch.model.log_event import LogEvent
from tests.builders.rank_evidence import logged

_HCCL = "RuntimeError: create:../torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:66 HCCL function error: {}, code 4"
_TIMEOUT = (
    "[rank1]:[E512 10:00:00.123 {file}] [Rank 1] Watchdog caught collective operation timeout: Work{library}(SeqNum=2, "
    "OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800234 milliseconds before timing out."
)
_RAISED = 'Traceback (most recent call last):\n  File "/app/t.py", line 3, in <module>\n    main()\n' + _HCCL.format(
    "Hccl"
)


def _remedy(*lines: str) -> str:
    logs = read_logs((), logged(*lines), (), 1)
    return words_in(logs.told[0], logs.events).remedy


@pytest.mark.parametrize(
    "lines", [_RAISED.split("\n"), [_TIMEOUT.format(file="compiler_depend.ts:1198", library="HCCL")]]
)
def test_a_failure_of_hccl_gets_no_advice_of_nccl(lines: list[str]) -> None:
    remedy = _remedy(*lines)
    assert "NCCL_DEBUG" not in remedy
    assert "TORCH_FR_BUFFER_SIZE" not in remedy
    assert "hccn_tool" in remedy or "TORCH_HCCL_TRACE_BUFFER_SIZE" in remedy


def test_a_failure_of_nccl_keeps_its_own() -> None:
    assert "TORCH_FR_BUFFER_SIZE" in _remedy(_TIMEOUT.format(file="ProcessGroupNCCL.cpp:607", library="NCCL"))


_ENDS = {
    "mpirun": (
        "mpirun detected that one or more processes exited with non-zero status, thus causing",
        "the job to be terminated. The first process to do so was:",
        "",
        "  Process name: [[41723,1],3]",
        "  Exit code:    1",
    ),
    "srun": ("srun: error: node3: task 3: Exited with exit code 1",),
    "torchrun": (
        "[E1120 10:00:01.5 1 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 3 "
        "(pid: 5003) of binary: /usr/bin/python",
    ),
    "deepspeed": (
        "[2026-11-20 10:00:01,100] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python', '-u', 't.py', "
        "'--local_rank=3'] exits with return code = 1",
    ),
}


@pytest.mark.parametrize("launcher", _ENDS)
def test_the_end_of_a_job_gets_the_advice_of_its_launcher(launcher: str) -> None:
    logs = read_logs((), logged(*_ENDS[launcher]), (), 1)
    assert launcher_of(logs.events) == launcher
    assert log_per_rank(logs.events).startswith(f"{launcher} --")
    remedy = words_in(logs.told[0], logs.events).remedy
    assert launcher in remedy
    assert not [other for other in _ENDS if other != launcher and other in remedy], remedy


def test_what_died_as_an_actor_was_started_by_ray_whatever_else_its_log_names() -> None:
    died = LogEvent("actor_died", "The actor died unexpectedly before finishing this task.", 0)
    events = (died, *logged(*_ENDS["srun"]))
    assert launcher_of(events) == "ray"
    assert "ray logs" in log_per_rank(events)
    assert "torchrun" in log_per_rank(()), "of a launcher that is not known all are named"
