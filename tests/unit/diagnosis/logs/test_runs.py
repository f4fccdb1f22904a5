"""Whole logs of runs that failed, or ended well, under many launchers: made from the formats, with known truth."""

import pytest

from tests.builders.texts import (
    ABORTED,
    AGENT,
    LAUNCHERS,
    OUT_OF_MEMORY,
    PEER_LOST,
    RAISED,
    SUMMARY,
    marked,
    ranked,
    timed_out,
    told,
    verdict,
)

Accepted = tuple[tuple[str, tuple[int, ...]], ...]
UNDECIDED: Accepted = (("undecided", ()),)
OVER: Accepted = (("job_ended", ()),)
STEPS = "".join(
    f"2026-11-20 08:05:{i:02d},101 - INFO - step {i} | loss {3.1 - i / 100:.4f} | lr 1e-4\n" for i in range(9)
)


def failed(*ranks: int) -> Accepted:
    return ("rank_raised", ranks), ("rank_exited", ranks)


def raising(text: str) -> str:
    return RAISED.replace("ValueError: shard 17 is empty", text)


def summary(rank: int, code: int = 1) -> str:
    signal = (
        f"Signal {-code} (SIGX) received by PID 5000" if code < 0 else "To enable traceback see: https://pytorch.org"
    )
    return SUMMARY.format(rank=rank, code=code, pid=5000, traceback=signal)


def waits(*ranks: int, seq: int = 884, **said: object) -> str:
    return "".join(timed_out("2.6", rank, seq, **said) for rank in ranks)  # type: ignore[arg-type]


LAUNCHERS_ERROR = (
    'Traceback (most recent call last):\n  File "/env/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n'
)
FAULTHANDLER = (
    "Fatal Python error: Segmentation fault\n\nThread 0x00007f1a2b3c4d00 (most recent call first):\n"
    '  File "/env/lib/python3.10/threading.py", line 324 in wait\n\n'
    "Current thread 0x00007f1a99999740 (most recent call first):\n"
    '  File "/env/lib/python3.10/site-packages/ops/native.py", line 9 in call\n'
    '  File "/job/fused.py", line 55 in fused\n  File "/job/train.py", line 350 in <module>\n\n'
    "Extension modules: numpy.core._multiarray_umath, torch._C (total: 2)\n"
)
PIN_MEMORY = (
    "Exception in thread Thread-3 (_pin_memory_loop):\nTraceback (most recent call last):\n"
    '  File "/env/lib/python3.10/multiprocessing/connection.py", line 384, in _recv\n'
    "ConnectionResetError: [Errno 104] Connection reset by peer\n"
)
USAGE = "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --learning-rate 1e-4\n"
HYDRA = (  # MPICH's and Intel's process manager
    "===================================\n=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
    "=   RANK {} PID 22811 RUNNING AT n03\n=   KILLED BY SIGNAL: {}\n===================================\n"
)
ABNORMAL = (
    "srun: First task exited 30s ago\nsrun: StepId=44.0 tasks 0-6: running\nsrun: StepId=44.0 task 7: exited "
    "abnormally\nsrun: Terminating StepId=44.0\nsrun: error: n0: tasks 0-6: Killed\n"
)
LIGHTNING = (
    "[rank: 1] Child process with PID 4321 terminated with code 1. Forcefully terminating all other processes to avoid "
    "zombies\n"
)
CANCELLED = "slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-11-20T08:15:40{} ***\n"
NO_MODULE = raising("ModuleNotFoundError: No module named 'apex'")
ENDED_ALIKE = summary(0).replace(
    "  <NO_OTHER_FAILURES>\n",
    "".join(
        f"[{rank}]:\n  time      : 2026-11-28_21:20:00\n  host      : node0\n"
        f"  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : 1 (pid: {5000 + rank})\n  error_file: <N/A>\n  traceback : To enable traceback see: https://x\n"
        for rank in (1, 2)
    ),
)

RUNS: dict[str, tuple[str, Accepted]] = {
    "a pod's mark before the agent's words, too": (
        marked(ranked(RAISED, 9) + AGENT["2.4"].format(code=1, rank=1, pid=5000) + LAUNCHERS_ERROR + summary(9),
               "[pod/llama-worker-1/pytorch] ") + marked(STEPS, "[pod/llama-master-0/pytorch] "), failed(9)),
    "a node's mark before its agent": (
        marked(ranked(RAISED, 11) + LAUNCHERS_ERROR + summary(11), "1: ") + marked(STEPS, "0: "), failed(11)),
    "a process manager of MPI": (HYDRA.format(3, "9 (Killed)") + HYDRA.format(0, "15 (Terminated)"), failed(3)),
    "ALPS": (
        STEPS + "_pmiu_daemon(SIGCHLD): [NID 00123] [c0-0c0s14n3] [Fri Nov 27 12:31:45 2026] PE RANK 37 exit signal "
        "Killed\n[NID 00123] 2026-11-27 12:31:45 Apid 5012345: initiated application termination\n", failed(37)),
    "PALS": (STEPS + "x1c0s1b0n0: rank 37 exited with code 1\nx1c0s1b0n0: rank 0 died from signal 15\n", failed(37)),
    "Open MPI 5 in two lines": (
        "prterun noticed that process rank 4 with PID 22211 on node n2 exited on\nsignal 11 (Segmentation fault).\n",
        failed(4)),
    "Open MPI 5 about an abort": (
        "prterun has exited due to process rank 2 with PID 0 on node n1 calling\n\"abort\".\n", failed(2)),
    "a node that Ray has lost": (
        "WARNING worker.py:2052 -- The node with node id: 0aa and address: 10.0.0.9 and node name: 10.0.0.9 has been "
        "marked dead because the detector has missed too many heartbeats from it.\n", (("rank_exited", ()),)),
    "srun about a task": (STEPS + ABNORMAL, failed(7)),
    "srun about two": (marked(RAISED, "9: ") + "srun: error: n2: task 9: Exited with exit code 1\nsrun: Terminating "
                       "StepId=44.0\nsrun: error: n1: tasks 0-7: Exited with exit code 1\n", failed(9)),
    "arguments refused on all": (USAGE * 3 + ENDED_ALIKE, failed(0, 1, 2)),
    "the same exception of all, without marks": (NO_MODULE * 3 + ENDED_ALIKE, failed(0, 1, 2)),
    "a crash in native code": (marked(FAULTHANDLER, "[default2]:") + summary(2, -11), failed(2)),
    "a loader's thread after its rank's end": (
        ranked(RAISED, 1) + ranked(PIN_MEMORY, 1) + ranked(PEER_LOST, 0) + ranked(PEER_LOST, 2), failed(1)),
    "Lightning": ("Epoch 0:  12%|#   | 37/308 [00:21<02:37,  1.72it/s, v_num=3]" + ranked(RAISED, 1) + LIGHTNING,
                  failed(1)),
    "a full disk": (ranked(raising("OSError: [Errno 28] No space left on device"), 0) + waits(1, 2, 3), failed(0)),
    "memory of another maker's GPU": (ranked(raising("torch.OutOfMemoryError: HIP out of memory."), 1), failed(1)),
    "two alike": (ranked(RAISED, 4) + ranked(RAISED, 6) + waits(0, 1, 2, 3, 5, 7), failed(4, 6)),
    "memory before time-outs": (ranked(OUT_OF_MEMORY, 3) + waits(0, 1, 2) + ABORTED, failed(3)),
    "an adapter that gave up on a rank that had failed": (
        "n1:4:5 [1] NCCL WARN NET/IB : Got completion from peer 10.0.0.3<4431> with status=12 opcode=0 len=0 vendor "
        "err 129 (Recv)\n" + ranked(OUT_OF_MEMORY, 9), failed(9)),
    "a container's name alone before the lines": (marked(ranked(RAISED, 4), "pytorch "), failed(4)),
    "Mellanox's plugin of NCCL": (
        "gpu-7:411:520 [3] transport/net_ib_p2p.cc:411 NCCL WARN NET/IBP:Got completion from peer 7.6.13.83<36315> "
        "with status=12 opcode=32698 len=32696 vendor err 129 (Send)\n" + waits(*range(8)), (("fabric_fault", ()),)),
    "NCCL's own word of a mismatch": (
        "n4:8811:8901 [3] init.cc:1247 NCCL WARN Mismatched collective detected, please check your collective calls at "
        "and around rank 39.\n", (("collective_mismatch", ()),)),
    "kubectl exec": (STEPS + "command terminated with exit code 137\n", (("rank_exited", ()),)),
    "a traceback that the log has lost": (STEPS + RAISED[: RAISED.index("ValueError")], UNDECIDED),
    "a time limit": (STEPS + CANCELLED.format(" DUE TO TIME LIMIT"), OVER),
    "a preemption": (STEPS + CANCELLED.format(" DUE TO PREEMPTION"), OVER),
    "scancel": (STEPS + "srun: Job step aborted: Waiting up to 32 seconds\n" + CANCELLED.format(""), OVER),
    "a rendezvous that closed late": (
        STEPS + "Training complete\nW1120 09:00:00.1 44 torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1267"
        "] The node 'n1_44_0' has failed to shutdown the rendezvous 'none' due to an error of type "
        "RendezvousConnectionError.\n", OVER),
    "trackers' troubles": (
        "wandb: Network error (ConnectionError), entering retry loop.\n" + STEPS + "Training finished.\n", OVER),
}  # fmt: skip


@pytest.mark.parametrize("run", RUNS)
def test_what_a_log_of_a_whole_run_tells(run: str) -> None:
    log, accepted = RUNS[run]
    found = verdict(log)
    assert (found.cause, found.culprits) in accepted, found.summary


def test_a_crash_in_native_code_is_told_with_the_jobs_own_line() -> None:
    found = verdict(RUNS["a crash in native code"][0])
    assert any("/job/fused.py:55 in fused" in fact.fact for fact in found.because), found


def test_the_exception_that_ended_a_rank_is_told_and_not_what_its_threads_or_launcher_said_later() -> None:
    for run in ("a pod's mark before the agent's words, too", "a loader's thread after its rank's end"):
        assert "ValueError: shard 17 is empty" in verdict(RUNS[run][0]).summary


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launchers_own_exception_ends_no_rank_of_its_log(launcher: str) -> None:
    mark = LAUNCHERS[launcher]
    log = marked(RAISED, mark(2)) + marked(LAUNCHERS_ERROR + summary(2), mark(2))
    found = verdict(log)
    assert (found.cause, found.culprits) in failed(2), found


def test_a_fault_that_the_kernel_tells_of_a_pid_is_of_the_rank_that_the_launcher_knows_by_it() -> None:
    kernel = "[99211.2] NVRM: Xid (PCI:0000:3b:00): {}, pid=5000, name=python, Ch 00000008\n"
    log = ranked(raising("RuntimeError: CUDA error: an illegal memory access was encountered"), 3) + summary(3)
    for number in (31, 48):
        found = verdict(log, kernel.format(number))
        assert (found.cause, found.culprits) == ("gpu_fault", (3,)), found
        # What the job's own kernel did is no reason to lose a node.
        assert any("out of service" in step for step in found.next_steps) is (number == 48), found.next_steps


def test_a_processs_end_is_told_by_its_signal_and_place_whoever_tells_it() -> None:
    for run in ("Open MPI 5 in two lines", "a process manager of MPI"):
        found = verdict(RUNS[run][0])
        assert any("ended with signal" in fact.fact and "on n" in fact.fact for fact in found.because), found


def test_agents_of_one_pid_in_several_containers_end_one_attempt() -> None:
    """All ranks of two pods lost a peer; each pod's agent has pid 1, and says so in the same second."""

    def failed(rank: int, at: str) -> str:
        return (
            f"E1128 21:20:0{at} 1 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) "
            + (f"local_rank: {rank % 8} (pid: {5000 + rank}) of binary: /env/bin/python\n")
            + SUMMARY.format(rank=rank, code=1, pid=5000 + rank, traceback="To enable traceback see: torch")
        )

    lost = ranked(PEER_LOST, 4) + ranked(PEER_LOST, 13)
    assert told(lost + failed(13, "0.100000") + failed(4, "1.200000"))[1] == ()


def test_a_crash_without_a_rank_is_that_of_the_only_one_that_died_of_such_a_signal() -> None:
    crash = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x7f (most recent call first):\n"
    end = SUMMARY.format(rank=2, code=-11, pid=5002, traceback="Signal 11 (SIGSEGV) received by PID 5002")
    assert told(crash + ranked(PEER_LOST, 1) + end) == ("rank_exited", (2,))


def _nodes_agent(node: int, rank: int, code: int, at: str) -> str:
    """torchrun's agent of a node, whose pid is the same in every container, and what it lists."""
    said = AGENT["2.4"].format(code=code, rank=rank % 8, pid=5000 + rank).replace("21:20:00", at)
    return (
        f"{said}torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n{'=' * 60}\n/app/train.py FAILED\n"
        f"{'-' * 60}\nFailures:\n  <NO_OTHER_FAILURES>\n{'-' * 60}\nRoot Cause (first observed failure):\n[0]:\n"
        f"  time      : 2026-11-28_{at}\n  host      : node{node}\n  rank      : {rank} (local_rank: {rank % 8})\n"
        f"  exitcode  : {code} (pid: {5000 + rank})\n  error_file: <N/A>\n  traceback : To enable traceback see: x\n"
        f"{'=' * 60}\n"
    )


def test_agents_of_two_nodes_with_one_pid_are_no_two_attempts() -> None:
    """What ended the one node's ranks ended the other's ten minutes later: it happened in this attempt."""
    log = ranked(RAISED, 8) + _nodes_agent(1, 8, 1, "21:20:00") + timed_out("2.6", 0, 31)
    log += _nodes_agent(0, 0, -6, "21:30:00")
    assert told(log) in failed(8)
