"""Which failure came first, in the words of many versions and launchers."""

import json
from collections.abc import Iterable

import pytest

from stallwatch.bundle.report import make_report
from stallwatch.diagnosis import judge
from stallwatch.diagnosis.logs import read_logs
from stallwatch.doctor.failed_run.logs import FailedRun
from stallwatch.model.verdict import Verdict
from tests.builders.texts import (
    AGENT,
    DETAIL,
    KILL,
    LAUNCHERS,
    OUT_OF_MEMORY,
    PEER_LOST,
    RAISED,
    SUMMARY,
    VERSIONS,
    group,
    header,
    marked,
    of_logs,
    ranked,
    timed_out,
    told,
    verdict,
)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_same_traceback_behind_every_launchers_mark_is_of_the_same_rank(launcher: str) -> None:
    mark = LAUNCHERS[launcher]
    log = "".join(marked(PEER_LOST if rank != 2 else RAISED, mark(rank)) for rank in (2, 0, 1, 3))
    found = verdict(log)
    assert (found.cause, found.culprits) == ("rank_raised", (2,)), found
    assert "shard 17 is empty" in found.summary
    assert any("/job/train.py:77" in fact.fact and fact.source.endswith(".txt:6") for fact in found.because), found


@pytest.mark.parametrize("version", VERSIONS)
def test_a_failure_of_a_rank_is_the_cause_and_the_time_outs_of_the_others_follow(version: str) -> None:
    waits = "".join(timed_out(version, rank, 9) for rank in (0, 2, 3))
    assert told(ranked(OUT_OF_MEMORY, 1) + waits) == ("rank_raised", (1,))
    # In files of their own, in any order.
    assert told(waits, ranked(OUT_OF_MEMORY, 1)) == ("rank_raised", (1,))


def test_an_exception_after_which_its_rank_waited_as_the_others_did_is_not_the_cause() -> None:
    log = ranked(RAISED, 1) + "".join(timed_out("2.6", rank, 9, "_ALLGATHER_BASE", 1, out=4) for rank in range(4))
    assert verdict(log).cause == "comm_stuck"


def test_failures_that_are_alike_are_all_named_and_what_came_later_is_not() -> None:
    alike = ranked(RAISED, 4) + ranked(RAISED.replace("17", "18"), 5)
    assert told(alike + ranked(PEER_LOST, 0)) == ("rank_raised", (4, 5))
    early = marked(ranked(RAISED, 4), "2026-11-28T10:00:00.1Z ")
    late = marked(ranked(RAISED.replace("ValueError", "KeyError"), 1), "2026-11-28T10:07:00.1Z ")
    assert told(late, early) == ("rank_raised", (4,))


def test_a_kill_that_the_agent_announced_is_a_consequence_though_it_saw_it_first() -> None:
    killed = SUMMARY.format(rank=0, code=-9, pid=5000, traceback="Signal 9 (SIGKILL) received by PID 5000")
    assert told(ranked(RAISED, 1) + KILL + killed) == ("rank_raised", (1,))
    assert verdict(KILL + killed).culprits == ()
    assert told(killed) == ("rank_exited", (0,))


@pytest.mark.parametrize(
    "log",
    [
        "srun: error: node1: task 3: Exited with exit code 1\nsrun: Terminating StepId=7.0\n"
        "slurmstepd: error: *** STEP 7.0 ON node1 CANCELLED AT 2026-11-28T21:20:00 ***\nsrun: error: node1: tasks 0-2: "
        "Killed\n",
        "srun: error: node1: task 3: Segmentation fault (core dumped)\nsrun: error: node1: tasks 0-2: Terminated\n",
        "mpirun noticed that process rank 3 with PID 812 on node node1 exited on signal 9 (Killed).\n",
        "mpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be "
        "terminated. "
        "The first process to do so was:\n\n  Process name: [[51283,1],3]\n  Exit code:    1\n",
        SUMMARY.format(rank=3, code=-11, pid=5003, traceback="Signal 11 (SIGSEGV) received by PID 5003"),
    ],
)
def test_launchers_name_the_rank_that_ended_by_itself(log: str) -> None:
    assert told(log) == ("rank_exited", (3,))
    assert ".," not in verdict(log).summary


def test_a_task_of_srun_is_a_node_where_torchrun_runs_in_it() -> None:
    log = AGENT["2.4"].format(code=1, rank=5, pid=700) + "srun: error: node1: task 1: Exited with exit code 1\n"
    assert verdict(log).culprits != (1,)


def test_heartbeats_that_stop_after_a_time_out_are_a_consequence() -> None:
    log = "".join(timed_out("2.6", rank, 9, "_ALLGATHER_BASE", 1, out=4) for rank in range(4))
    stuck = "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring\n"
    log += "".join(header("2.6", rank, time="1128 21:20:36.1") + group("2.6", rank) + stuck for rank in range(4))
    assert told(log) == ("comm_stuck", ())


def test_no_rank_seen_is_never_healthy() -> None:
    for log in ("step 1 loss 0.1\n", "RuntimeError: DataLoader worker (pid 37) is killed by signal: Bus error.\n",
                "CUDA error: an illegal memory access was encountered\n", "Some error happened\n"):  # fmt: skip
        assert judge(of_logs(log)).verdicts[0].cause != "healthy"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("OSError: [Errno 24] Too many open files: '/data/x'", "Too many open files"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "illegal memory access"),
        ("RuntimeError: received 0 items of ancdata", "ancdata"),
        ("RuntimeError: DataLoader worker (pid 37) is killed by signal: Bus error. It is possible that dataloader's "
         "workers are out of shared memory.", "Bus error"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("version", ["2.0", "2.6"])
def test_what_a_rank_ran_out_of_reaches_the_verdict(text: str, said: str, version: str) -> None:
    log = ranked(RAISED.replace("ValueError: shard 17 is empty", text), 2) + timed_out(version, 0, 9)
    found = verdict(log)
    assert (found.cause, found.culprits) == ("rank_raised", (2,))
    assert said in found.summary


def test_rays_driver_only_reports_and_the_actors_own_reason_is_the_cause() -> None:
    driver = (
        "Traceback (most recent call last):\n"
        '  File "/job/main_ppo.py", line 130, in <module>\n'
        "ray.exceptions.RayTaskError(OutOfMemoryError): ray::WorkerDict.update_actor() (pid=835, ip=10.0.0.1)\n"
        '  File "/job/workers.py", line 500, in update_actor\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    )
    found = verdict(driver)
    assert (found.cause, found.culprits) == ("rank_raised", ())
    assert "/job/workers.py:500" in found.summary + str(found.because)
    alone = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tpid: 835\n"
    assert verdict(alone).cause == "rank_exited"


def test_an_ordinary_end_is_over_and_quiet() -> None:
    end = (
        "step 100/100\n[rank0]:[W1128 10:00:01.1 ProcessGroupNCCL.cpp:1538] Warning: WARNING: "
        "destroy_process_group() was "
        "not called before program exit, which can leak resources.\n[rank1]:[W1128 10:00:03.1 TCPStore.cpp:125] [c10d] "
        "recvValue failed on SocketImpl(fd=80, addr=[localhost]:43338, remote=[localhost]:29500): Failed to "
        "recv, got 0 "
        "bytes. Connection was likely closed. Did the remote server shutdown or crash?\n"
    )
    assert told(end) == ("job_ended", ())
    assert told(end + ranked(RAISED, 1)) == ("rank_raised", (1,))


def _both(texts: Iterable[str]) -> tuple[Verdict, str]:
    """What analyze says of logs, and the first line that doctor tells."""
    evidence = of_logs(*texts)
    logs = read_logs(evidence.ranks, evidence.log_events, evidence.nodes)
    return make_report(evidence).verdicts[0], FailedRun.first_seen(logs)


@pytest.mark.parametrize("texts", [
    (ranked(RAISED, 1), timed_out("2.6", 0, 9)), (ranked(OUT_OF_MEMORY, 3) + KILL,),
    (ranked(PEER_LOST, 0), ranked(RAISED, 2)),
    (SUMMARY.format(rank=3, code=-9, pid=5003, traceback="Signal 9"),), (DETAIL.format(0, 10, 1, 20),),
])  # fmt: skip
def test_doctor_tells_the_first_cause_of_the_verdict(texts: tuple[str, ...]) -> None:
    found, first = _both(texts)
    assert any(fact.fact in first for fact in found.because), (found.because, first)


def test_an_exception_after_which_training_went_on_ended_nothing() -> None:
    steps = "".join(f"step {number}/100 loss 0.1\n" for number in range(10, 20))
    assert verdict(ranked(RAISED, 0) + steps).cause != "rank_raised"
    megatron = "".join(f" iteration {number:>8}/  500000 | lm loss: 2.1E+00 |\n" for number in range(10, 20))
    bars = "".join(f"\r 12%|#   | {number}/800 [00:45<10:02, 1.1it/s, loss=2.1]\n" for number in range(10, 20))
    for after in (megatron, bars):
        assert verdict(ranked(RAISED, 0) + after).cause != "rank_raised"
    assert told("step 9/100 loss 0.1\n" + ranked(RAISED, 0) + "step 10/100 loss 0.1\n") == ("rank_raised", (0,))


def test_who_cannot_connect_is_not_to_blame() -> None:
    lost = (
        "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to "
        "(n0, 29500)."
    )
    found = verdict("".join(ranked(RAISED.replace("ValueError: shard 17 is empty", lost), rank) for rank in (1, 2, 3)))
    assert (found.cause, found.culprits) == ("undecided", ())
    assert "MASTER_PORT" in found.next_steps[0]


def test_a_process_that_the_kernel_killed_is_the_rank_that_the_launcher_knows_it_as() -> None:
    kernel = "[512.1] Memory cgroup out of memory: Killed process 5003 (python3) total-vm:1kB, anon-rss:2kB\n"
    killed = SUMMARY.format(rank=3, code=-9, pid=5003, traceback="Signal 9 (SIGKILL) received by PID 5003")
    assert told(kernel, killed) == ("rank_exited", (3,))


def test_the_rank_that_torch_2_1_writes_without_a_mark() -> None:
    ended = (
        "[E ProcessGroupNCCL.cpp:915] [Rank 2] NCCL watchdog thread terminated with exception: CUDA error: an illegal "
        "memory access was encountered\n"
    )
    assert told(ended + "".join(timed_out("2.1", rank, 9) for rank in (0, 1, 3))) == ("rank_raised", (2,))


def test_a_job_that_a_person_cancelled_is_over() -> None:
    step = "step 9\nslurmstepd: error: *** STEP 9.0 ON n1 CANCELLED AT 2026-11-28T02:00:00 ***\n"
    ended = step + "srun: error: n1: tasks 0-1: Terminated\n"
    assert told(ended) == ("job_ended", ())
    assert told("srun: error: n1: task 1: Exited with exit code 1\n" + ended) == ("rank_exited", (1,))
    assert verdict(ranked(PEER_LOST, 0) + ended).cause != "job_ended"


def test_a_job_that_was_cancelled_is_over_unless_it_hung_before() -> None:
    cancelled = "slurmstepd: error: *** JOB 9 ON n1 CANCELLED AT 2026-11-28T02:00:00 DUE TO TIME LIMIT ***\n"
    assert told(cancelled) == ("job_ended", ())
    assert verdict(timed_out("2.6", 0, 9) + cancelled).cause == "undecided"


def test_deepspeeds_launcher_prints_the_command_of_the_last_rank_whichever_failed() -> None:
    """deepspeed/launcher/launch.py: `cmd` is what its loop over the local ranks left."""
    ended = (
        "[2026-11-28 10:00:01,100] [ERROR] [launch.py:325:sigkill_handler] ['/env/bin/python', '-u', 'train.py', "
        "'--local_rank={}', '--deepspeed'] exits with return code = {}\n"
    )
    killing = "[2026-11-28 10:00:00,100] [INFO] [launch.py:319:sigkill_handler] Killing subprocess {}\n"
    for code in (1, -7, -9, -11):
        assert told(killing.format(5000) + killing.format(5001) + ended.format(1, code)) == ("rank_exited", ())
        assert told(killing.format(5000) + ended.format(0, code)) == ("rank_exited", (0,))


_SPAWNED = """Traceback (most recent call last):
  File "/job/run.py", line 40, in <module>
    mp.spawn(main, nprocs=4)
torch.multiprocessing.spawn.ProcessRaisedException:

-- Process 2 terminated with the following error:
"""
_EXITED = "torch.multiprocessing.spawn.ProcessExitedException: "
_SHELL = "run.sh: line 12: 12345 {0:30} python -u train.py\n"


@pytest.mark.parametrize(
    ("log", "cause", "culprits"),
    [
        (_SPAWNED + RAISED, "rank_raised", (2,)),
        (_EXITED + "process 3 terminated with signal SIGKILL\n", "rank_exited", (3,)),
        (_EXITED + "process 1 terminated with exit code 7\n", "rank_exited", (1,)),
        ("[rank: 1] Child process with PID 4711 terminated with code 1. Forcefully terminating all other processes to "
         "avoid zombies\n", "rank_exited", (1,)),
        ("ERROR:composer.cli.launcher:Rank 3 crashed with exit code 1.\nGlobal rank 0 (PID 301) exited with code -15\n"
         "----------Begin global rank 3 STDERR----------\n" + RAISED + "----------End global rank 3 STDERR----------\n",
         "rank_exited", (3,)),
        ("Process 1 exit with status code 3.\nProcess 0 exit with status code 143.\n", "rank_exited", (1,)),
        (_SHELL.format("Segmentation fault      (core dumped)"), "rank_exited", ()),
        (_SHELL.format("Killed"), "rank_exited", ()),
        ("5: Memory access fault by GPU node-7 (Agent handle: 0x7f3b) on address 0x7f1c0000. Reason: Unknown.\n"
         "srun: error: n1: task 5: Aborted (core dumped)\nsrun: Terminating StepId=9.0\n"
         "srun: error: n1: tasks 0-4,6-7: Terminated\n", "rank_exited", (5,)),
    ],
)  # fmt: skip
def test_every_launchers_word_on_who_ended_names_that_rank(log: str, cause: str, culprits: tuple[int, ...]) -> None:
    assert told("step 3\n" + log) == (cause, culprits)


def test_an_actor_that_its_own_watchdog_ended_is_none_that_died_by_itself() -> None:
    mark = "(Worker pid=70{0}, ip=10.0.0.1) ".format
    waits = "".join(marked(timed_out("2.3", rank, 9, "GATHER"), mark(rank)) for rank in (1, 2, 3))
    died = (
        "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker PID: 701 "
        "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2.\n"
    )
    found = verdict(waits + died)
    assert not set(found.culprits) & {1, 2, 3}, found
    assert found.cause != "rank_exited"


def test_a_traceback_without_a_mark_is_of_the_one_rank_that_the_launcher_saw_leave() -> None:
    for agent in AGENT.values():
        assert verdict(RAISED + agent.format(code=1, rank=2, pid=502)).culprits == (2,)
    left = "".join(AGENT["1.13"].format(code=1, rank=rank, pid=500 + rank) for rank in (2, 3))
    assert verdict(RAISED + left).culprits in ((), (2, 3)), "which of them raised it is not told"


def test_the_rank_that_a_job_s_own_logger_writes_before_its_lines_is_read() -> None:
    for mark in ("2026-11-28 10:00:01 | ERROR | rank=2 | ", "[ERROR] [Rank 2] > ", "ERROR global_rank: 2 | "):
        assert told(marked(RAISED, mark)) == ("rank_raised", (2,)), mark
    for mark in ("ERROR | local_rank=2 | ", "ERROR | dp_rank=2 | ", "ERROR | node rank 2 | "):
        assert told(marked(RAISED, mark)) == ("rank_raised", ()), mark


def _summary_of(codes: dict[int, int]) -> str:
    blocks = [
        f"[{place}]:\n  time      : 2026-11-28_21:20:00\n  host      : node0\n"
        f"  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : {code} (pid: {5000 + rank})\n  error_file: <N/A>\n  traceback : none\n"
        for place, (rank, code) in enumerate(codes.items())
    ]
    return (
        f'Traceback (most recent call last):\n  File "/env/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n'
        f"torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n{'=' * 60}\ntrain.py FAILED\n{'-' * 60}\n"
        f"Failures:\n{''.join(blocks[1:])}{'-' * 60}\nRoot Cause (first observed failure):\n{blocks[0]}{'=' * 60}\n"
    )


def test_ranks_that_one_signal_ended_all_at_once_are_to_blame_for_nothing() -> None:
    assert told(_summary_of(dict.fromkeys(range(4), -9))) == ("job_ended", ())
    assert told("srun: error: n1: tasks 0-7: Killed\n") == ("job_ended", ())
    assert told(_summary_of({2: -9, 0: -15, 1: -15, 3: -15})) == ("rank_exited", (2,))
    assert told(_summary_of({2: -9})) == ("rank_exited", (2,))
    assert told(_summary_of(dict.fromkeys((3, 5), -9)))[0] == "rank_exited", "some of them alone"
    oom = "[512.1] Memory cgroup out of memory: Killed process 5003 (python3) total-vm:1kB, anon-rss:2kB\n"
    assert told(oom, _summary_of(dict.fromkeys(range(4), -9))) == ("rank_exited", (3,))


def test_a_message_that_holds_a_traceback_is_read_line_by_line() -> None:
    logged = {"level": "ERROR", "rank": 4, "message": f"step failed\n{RAISED}"}
    beside = {"event": "step failed", "rank": 4, "exception": RAISED, "timestamp": "2026-11-28T10:00:00Z"}
    for said in (logged, beside):
        found = verdict(f"{json.dumps(said)}\n" + json.dumps({"level": "INFO", "rank": 1, "message": "waits"}) + "\n")
        assert (found.cause, found.culprits) == ("rank_raised", (4,))
        assert "/job/train.py:77" in found.summary


def test_who_was_interrupted_while_others_waited_has_printed_something() -> None:
    interrupted = RAISED.replace("ValueError: shard 17 is empty", "KeyboardInterrupt")
    assert verdict(timed_out("2.6", 0, 9) + timed_out("2.6", 1, 9) + ranked(interrupted, 3)).culprits == ()


def test_who_called_mpi_abort_is_named() -> None:
    assert told("MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD\nwith errorcode 1.\n") == (
        "rank_exited", (2,))  # fmt: skip
