"""Public reports, rebuilt from the formats with other numbers: attempts that were started again, logs that go on after
what looks bad, older forms of NCCL's and the launchers' lines."""

import pytest

from stallwatch.diagnosis import judge
from stallwatch.formats.training_log import parse
from tests.builders.texts import AGENT, RAISED, dump_signal, marked, of_logs, ranked, timed_out, told, verdict

SUMMARY = (
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    "============================================================\ntrain.py FAILED\n"
    "------------------------------------------------------------\nFailures:\n  <NO_OTHER_FAILURES>\n"
    "------------------------------------------------------------\nRoot Cause (first observed failure):\n[0]:\n"
    "  time      : 2026-11-28_21:20:00\n  host      : node0\n  rank      : 3 (local_rank: 3)\n"
    "  exitcode  : 1 (pid: 106)\n  error_file: <N/A>\n  traceback : To enable traceback see: https://x\n"
    "============================================================\n"
)
FAILED = ranked(RAISED, 3) + AGENT["2.4"].format(code=1, rank=3, pid=106)
AGAIN = (
    "I1128 21:20:01.100000 4990 torch/distributed/elastic/agent/server/api.py:879] [default] Worker group FAILED. 3/3 "
    "attempts left; will restart worker group\n"
)
STEPS = "".join(f"step {number} | loss 2.{number}\n" for number in range(100, 170, 10))


@pytest.mark.parametrize("said", [AGAIN, ""], ids=["the agent says so", "it says nothing, as by default"])
def test_a_rank_that_failed_before_ranks_were_started_again_and_make_steps_is_no_culprit(said: str) -> None:
    found = verdict(FAILED + said + STEPS)
    assert (found.cause, found.culprits) == ("undecided", ())
    assert "started again" in found.summary
    assert any("ValueError" in fact.fact and "before" in fact.fact for fact in found.because)


@pytest.mark.parametrize("after", ["", SUMMARY, SUMMARY + STEPS, STEPS[: STEPS.index("step 120")]])
def test_it_is_one_where_nothing_tells_that_ranks_make_steps_again(after: str) -> None:
    assert told(FAILED + after) == ("rank_exited", (3,))


def test_of_an_attempt_that_fails_after_such_steps_only_that_ones_failure_is_told() -> None:
    later = ranked(RAISED.replace("ValueError", "KeyError"), 5) + AGENT["2.4"].format(code=1, rank=5, pid=218)
    assert told(FAILED + AGAIN + STEPS + later.replace("21:20:00", "21:29:00")) == ("rank_exited", (5,))


@pytest.mark.parametrize(("end", "wanted"), [
    ("mpirun noticed that process rank 5 with PID 99 on node n4 exited on signal 9 (Killed).\n", (5,)),
    ("[rank: 5] Child process with PID 218 terminated with code 1. Forcefully terminating all others\n", (5,)),
    ("ERROR 11-28 21:29:00 [multiproc_executor.py:140] Worker proc VllmWorker-5 died unexpectedly.\n", (5,)),
    ("/job/run.sh: line 7:  2233 Segmentation fault      (core dumped) python train.py\n", ()),
])  # fmt: skip
def test_an_end_after_such_steps_is_told_where_one_more_stood_in_a_buffer_then(
    end: str, wanted: tuple[int, ...]
) -> None:
    assert told(FAILED + AGAIN + STEPS + end + "step 170 | loss 2.0\n") == ("rank_exited", wanted)


def test_what_looks_like_an_error_and_has_enough_steps_behind_it_is_not_what_a_log_tells_first() -> None:
    retry = "tracker: Network error (ConnectionError), entering retry loop.\n"
    found = verdict(retry + STEPS)
    assert "the log ends with step 160" in found.summary
    assert "entering retry loop" in found.because[0].fact
    assert {event.kind for event in parse((STEPS + retry).encode()).events} == {"error_like"}


@pytest.mark.parametrize("line", [
    "n8:795:822 [0] include/socket.h:409 NCCL WARN Net : Connect to 10.0.1.9<54263> failed : No route to host\n",
    "n8:795:822 [0] include/socket.h:403 NCCL WARN Connect to 10.0.1.9<54263> failed : Connection timed out\n",
])  # fmt: skip
def test_older_nccls_words_on_a_peer_that_it_does_not_reach(line: str) -> None:
    exit_barrier = RAISED.replace("ValueError: shard 17 is empty", "RuntimeError: Socket Timeout")
    found = verdict(line + exit_barrier)
    assert found.cause == "undecided"
    assert "10.0.1.9" in found.summary
    assert any("NCCL_SOCKET_IFNAME" in step for step in found.next_steps)


def test_an_address_that_was_never_filled_in_is_of_an_interface_that_is_not_there() -> None:
    reason = (
        "torch.distributed.DistBackendError: NCCL error in: /src/NCCLUtils.cpp:94, internal error - please report this "
        "issue to the NCCL developers, NCCL version 2.27.7\nncclInternalError: Internal check failed.\nLast error:\n"
        "ncclSocketInit: connecting to address  with family 59936 is neither AF_INET(2) nor AF_INET6(10)"
    )
    found = verdict(ranked(RAISED.replace("ValueError: shard 17 is empty", reason), 3))
    assert (found.cause, found.culprits) == ("rank_raised", (3,))
    assert any("NCCL_SOCKET_IFNAME" in step for step in found.next_steps)


def test_a_nodes_mark_is_learned_from_the_frames_of_a_traceback_whose_head_is_lost() -> None:
    lost = (
        '  File "/app/loader.py", line 158, in get_dataset\n    dist.barrier()\n'
        "RuntimeError: [15] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value "
        "store by key '0', but store->get('0') got error: Connection reset by peer. This may indicate a possible "
        "application crash on rank 0 or a network set up issue.\n"
    )
    events = parse(marked(lost, "gpu004: ").encode()).events
    assert [(event.exception, event.kind) for event in events if event.exception] == [("RuntimeError", "exception")]
    found = verdict(marked(lost, "gpu004: "))
    assert found.cause == "undecided"
    assert any("rank 0" in step for step in found.next_steps)


@pytest.mark.parametrize(("signal", "wanted"), [("SIGINT", "traceback"), ("SIGTERM", "last step")])
def test_a_job_whose_launcher_was_ended_is_over_whatever_that_launcher_raised_then(signal: str, wanted: str) -> None:
    stopped = (
        "[2026-11-28 20:29:14,854] [INFO] [launch.py:428:sigkill_handler] Killing subprocess 19380\n"
        'Traceback (most recent call last):\n  File "/env/lib/python3.8/site-packages/deepspeed/launcher/runner.py", '
        "line 548, in sigkill_handler\n    result_kill = subprocess.Popen(kill_cmd, env=env)\n"
        "NameError: free variable 'kill_cmd' referenced before assignment in enclosing scope\n"
        f"[2026-11-28 20:29:14,860] [INFO] [launch.py:437:sigkill_handler] Main process received {signal}, exiting\n"
    )
    found = verdict(stopped)
    assert (found.cause, found.culprits) == ("job_ended", ())
    assert any(wanted in step for step in found.next_steps)


def test_what_ray_passes_on_of_watchdogs_is_of_the_rank_that_the_whole_jobs_group_counts() -> None:
    def passed_on(rank: int, seq: int = 970, job: str = "ActorModel") -> str:
        return (
            f"({job}RayActor pid={3940 + rank}, ip=10.0.0.4) [2026-12-24 23:47:14,381 E {3940 + rank} 4620] "
            "logging.cc:101: Unhandled exception: N3c1016DistBackendErrorE. what(): [PG ID 0 PG GUID 0(default_pg) "
            f"Rank {rank}] Process group watchdog thread terminated with exception: [Rank {rank}] Watchdog caught "
            f"collective operation timeout: WorkNCCL(SeqNum={seq}, OpType=_ALLGATHER_BASE, NumelIn=524288, "
            "NumelOut=8388608, Timeout(ms)=7200000) ran for 7200017 milliseconds before timing out.\n"
        )

    found = verdict(passed_on(6) + passed_on(7) + passed_on(1))
    assert (found.cause, found.culprits, found.waiting) == ("undecided", (), "1,6-7")
    assert (found.operation, found.seq) == ("all_gather_into_tensor", 970)
    several = "".join(map(passed_on, range(4))) + passed_on(5, 55, "CriticModel")
    assert told(several) == ("undecided", ()), "ranks of two jobs, each with a group of that name"
    timed = passed_on(1, job="CriticModel")
    broke = f"{timed[: timed.index('[Rank 1] Watchdog')]}CUDA error: an illegal memory access was encountered\n"
    of_two = "".join(map(passed_on, range(4))) + broke
    assert told(of_two) == ("rank_raised", ()), "the critic's rank 1 did not wait with the actor's"
    assert told(of_two.replace("Critic", "Actor").replace(passed_on(1), "")) == ("rank_raised", (1,))


def test_ranks_of_which_nothing_is_told_are_named_as_what_is_missing_and_not_as_culprits() -> None:
    waits = "".join(timed_out("2.5", rank, 335785, "ALLGATHER") for rank in (1, 2, 4, 5, 6))
    found = verdict(waits)
    assert (found.cause, found.culprits) == ("undecided", ())
    assert any("ranks 0,3 did: nothing that was read tells it" in text for text in found.missing)
    assert not any(
        "what rank" in text for text in verdict("".join(timed_out("2.5", rank, 3) for rank in (4, 7))).missing
    )


def test_a_links_fault_is_of_the_rank_whose_process_the_driver_ended_for_it_on_that_gpu() -> None:
    kernel = (
        "[12034.1] NVRM: Xid (PCI:0000:{0}:00): 145, RLW_RXPIPE Fatal XC0 i0 Link 03 (0x0409a0c2 0x00000008 0x00000001 "
        "0x00000000 0x00100000 0x00000004)\n"
        "[12034.1] NVRM: Xid (PCI:0000:{1}:00): 45, pid=88112, name=python3, Ch 00000008 caused by previous Xid 145\n"
    )
    agent = AGENT["2.4"].format(code=1, rank=1, pid=88112)
    known = judge(of_logs(kernel.format("66", "66"), agent)).verdicts[0]
    assert (known.cause, known.culprits) == ("fabric_fault", (1,))
    elsewhere = judge(of_logs(kernel.format("66", "76"), agent)).verdicts[0]
    assert (elsewhere.cause, elsewhere.culprits) == ("fabric_fault", ())
    of_two = kernel.format("66", "66") + kernel.format("66", "66").splitlines(keepends=True)[1].replace(
        "88112", "88113"
    )
    both = judge(of_logs(of_two, agent, AGENT["2.4"].format(code=1, rank=0, pid=88113))).verdicts[0]
    assert (both.cause, both.culprits) == ("fabric_fault", (0, 1)), "they share that GPU"


NOT_TRIED = "n1:100:200 [0] misc/cudawrap.cc:36 NCCL WARN Cuda failure 3 'initialization error'\n"
MET = "n1:100:200 [0] NCCL INFO ncclCommInitRankConfig comm 0x1 rank 0 nranks 4 cudaDev 0 commId 0xa - Init COMPLETE\n"


def test_what_nccl_warns_of_and_trains_on_after_is_no_failure_of_its_rank() -> None:
    assert told(NOT_TRIED + MET) == ("rank_raised", (0,))
    assert told(NOT_TRIED + MET + STEPS)[1] == ()
    later = NOT_TRIED.replace("3 'initialization error'", "700 'an illegal memory access was encountered'")
    assert told(NOT_TRIED + MET + STEPS + ranked(RAISED, 3)) == ("rank_raised", (3,))
    assert told(NOT_TRIED + MET + STEPS + later + RAISED_BY_NCCL) == ("rank_raised", (0,))
    assert told(NOT_TRIED + MET + STEPS + "Training complete\n") == ("job_ended", ())
    watchdog = "[rank2]:[E1128 21:11:49.1 ProcessGroupNCCL.cpp:9] [PG ID 0 PG GUID 0(default_pg) Rank 2] Process group "
    ended = f"{watchdog}watchdog thread terminated with exception: CUDA error: unspecified launch failure\n"
    assert told(ended + STEPS) == ("rank_raised", (2,)), "steps that stood in another rank's buffer"


RAISED_BY_NCCL = ranked(RAISED.replace("ValueError: shard 17 is empty", (
    "torch.distributed.DistBackendError: NCCL error in: /src/NCCLUtils.cpp:94, unhandled cuda error (run with "
    "NCCL_DEBUG=INFO for details), NCCL version 2.27.7"
)), 0)  # fmt: skip


@pytest.mark.parametrize(("log", "wanted"), [
    (NOT_TRIED.replace("3 'init", "214 'uncorrectable ECC error encountered', once 'init") + MET + STEPS, "gpu_fault"),
    (NOT_TRIED.replace("3 'initialization error'", "700 'an illegal memory access was encountered'") + MET + STEPS,
     "rank_raised"),
    (NOT_TRIED.replace("3 'init", "1 'invalid argument', once 'init") + MET + RAISED_BY_NCCL + STEPS, "rank_raised"),
    (NOT_TRIED.replace("3 'init", "1 'invalid argument', once 'init") + MET + STEPS + RAISED_BY_NCCL, "rank_raised"),
], ids=["no more CUDA: memory", "no more CUDA: access", "raised, then a buffer", "raised after a buffer"])  # fmt: skip
def test_what_nccl_warns_of_and_the_rank_does_not_survive_is_its_failure(log: str, wanted: str) -> None:
    assert told(log) == (wanted, (0,))


@pytest.mark.parametrize("line", [
    "[rank2]: RuntimeError: CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error\n",
    "[rank2]:[E1128 21:11:49.1 ProcessGroupNCCL.cpp:1515] [PG ID 0 PG GUID 0(default_pg) Rank 2] Process group "
    "watchdog thread terminated with exception: CUDA error: Invalid access of peer GPU memory over nvlink or a "
    "hardware error\n",
    "[rank2]: alloc.cc:414] cudaFreeAsync failed: CUDA_ERROR_CONTAINED: Invalid access of peer GPU memory over nvlink "
    "or a hardware error\n",
    "[rank2]: alloc.cc:414] cuMemcpy failed: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered\n",
])  # fmt: skip
def test_what_cuda_says_of_a_link_or_of_memory_that_failed_is_a_fault_of_that_ranks_gpu(line: str) -> None:
    waits = "".join(timed_out("2.8", rank, 9) for rank in (0, 1, 3))
    found = verdict(line + waits)
    assert (found.cause, found.culprits) == ("gpu_fault", (2,))
    assert any("drain the node" in step for step in found.next_steps)


@pytest.mark.parametrize(("failed", "code", "wanted"), [
    (ranked(RAISED, 3), None, "rank_raised"), (ranked(RAISED, 3), 1, "rank_exited"),
    ("[rank3]: Fatal Python error: Segmentation fault\n", -11, "rank_exited"),
])  # fmt: skip
def test_memory_of_a_rank_that_had_failed_is_no_fault_of_the_gpus_that_reached_for_it(
    failed: str, code: int | None, wanted: str
) -> None:
    words = "RuntimeError: CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error"
    reached = "".join(ranked(RAISED.replace("ValueError: shard 17 is empty", words), rank) for rank in (0, 1))
    agent = AGENT["2.4"].format(code=code, rank=3, pid=106) if code else ""
    assert told(failed + reached + agent) == (wanted, (3,))
    assert told(reached + ranked(RAISED, 3)) == ("gpu_fault", (0, 1)), "before it"


@pytest.mark.parametrize(("state", "wanted"), [
    ("OUT_OF_ME+    0:125", "rank_exited"), ("NODE_FAIL      1:0", "rank_exited"), ("TIMEOUT      0:0", "job_ended"),
])  # fmt: skip
def test_the_state_that_slurm_lists_of_a_job_is_its_end(state: str, wanted: str) -> None:
    head = "JobID           JobName  Partition    Account  AllocCPUS      State ExitCode\n"
    assert told(f"{head}91234             train        gpu       acct        128 {state}\n") == (wanted, ())
    assert told(f"   JobState={state.split()[0].replace('+', 'MORY')} Reason=None Dependency=(null)\n") == (wanted, ())


def test_a_line_that_begins_with_a_number_and_speaks_of_a_time_out_is_no_state_of_a_job() -> None:
    assert told("2026-11-28 21:00:00 WARNING TIMEOUT of the tracker, goes on\n" + STEPS) == ("undecided", ())


SACCT = "JobID           JobName  Partition    Account  AllocCPUS      State ExitCode\n"


@pytest.mark.parametrize("line", [
    "3 hosts: 2 in TIMEOUT since 10:30\n", "tracker State: TIMEOUT, reconnecting\n",
    "INFO peer n4 State=TIMEOUT retry\n", "12 PREEMPTED leases of the store renewed at 10:30\n",
])  # fmt: skip
def test_what_else_is_in_a_state_is_no_job_of_slurm(line: str) -> None:
    assert told(line + STEPS) == ("undecided", ())


@pytest.mark.parametrize("line", [
    "91234_7      train   gpu   acct   128 OUT_OF_ME+  0:125\n", "91234.batch  batch  acct  128  OUT_OF_ME+  0:125\n",
    "91234+1   train   OUT_OF_MEMORY   1-02:00:11   0:125\n", "State: OUT_OF_MEMORY (exit code 0)\n",
])  # fmt: skip
def test_forms_in_which_slurm_tells_a_state(line: str) -> None:
    assert told(line) == ("rank_exited", ())


def test_of_a_listing_of_several_jobs_no_state_is_the_end_of_the_one_that_the_logs_are_of() -> None:
    listed = [f"9123{job}      train    gpu       acct        128 {state}\n" for job, state in enumerate(
        ("OUT_OF_ME+    0:125", "NODE_FAIL      1:0", "RUNNING      0:0")
    )]  # fmt: skip
    waits = "".join(timed_out("2.5", rank, 50) for rank in (0, 1, 3)) + dump_signal("2.5", 2, 49)
    assert told(SACCT + "".join(listed), waits) == ("not_entered", (2,))
    steps = listed[0] + "91230.batch  batch      acct        128 OUT_OF_ME+    0:125\n"
    assert told(SACCT + steps, waits)[0] == "rank_exited", "one job's steps"


def test_ranks_of_several_jobs_of_ray_whose_groups_have_one_name_are_not_compared() -> None:
    actors = "".join(marked(timed_out("2.5", rank, 970), f"(ActorModelRayActor pid={rank + 40}) ") for rank in range(4))
    critic = marked(timed_out("2.5", 5, 55), "(CriticModelRayActor pid=94) ")
    assert told(actors + critic)[1] == ()
    of_one = marked(timed_out("2.5", 5, 55), "(ActorModelRayActor pid=94) ")
    assert told(actors + of_one) == ("collective_mismatch", (5,))


@pytest.mark.parametrize(
    "mark", ["(Trainer-{0} pid=4{0}) ", "(rank_{0} pid=4{0}, ip=10.0.0.4) ", "(Worker_TP{0} pid=4{0}) "]
)
def test_actors_of_one_job_that_are_named_by_their_ranks_are_compared(mark: str) -> None:
    calls = ("ALLREDUCE", "ALLREDUCE", "ALLREDUCE", "BROADCAST")
    waits = "".join(marked(timed_out("2.5", rank, 970, call), mark.format(rank)) for rank, call in enumerate(calls))
    assert told(waits) == ("collective_mismatch", (3,))
