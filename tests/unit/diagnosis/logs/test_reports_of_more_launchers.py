"""Public reports whose launcher, or whose exception, names a rank that is not to blame; rebuilt with other numbers."""

import json

import pytest

from tests.builders.texts import PEER_LOST, RAISED, marked, ranked, timed_out, told, verdict

Accepted = tuple[tuple[str, tuple[int, ...]], ...]
UNDECIDED: tuple[str, tuple[int, ...]] = ("undecided", ())
GONE: tuple[str, tuple[int, ...]] = ("rank_exited", ())


def _raised(text: str, rank: int | None = None) -> str:
    log = RAISED.replace("ValueError: shard 17 is empty", text)
    return log if rank is None else ranked(log, rank)


def _spawned(place: int, text: str) -> str:
    head = RAISED[: RAISED.index("ValueError")]
    return f"{head}Exception: \n\n-- Process {place} terminated with the following error:\n{_raised(text)}"


def _hydra(*ends: tuple[int, str]) -> str:
    rule = "=" * 83
    return "".join(
        f"\n{rule}\n=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   RANK {rank} PID {7000 + rank} "
        f"RUNNING AT n1\n=   {how}\n{rule}\n"
        for rank, how in ends
    )


def _table(*ends: tuple[int, int]) -> str:
    """The first is what torchrun saw first."""
    blocks = [
        f"[{place}]:\n  time      : 2026-11-20_08:15:31\n  host      : n1\n  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : {code} (pid: {7000 + rank})\n  error_file: <N/A>\n  traceback : Signal {-code} received\n"
        for place, (rank, code) in enumerate(ends)
    ]
    return "Failures:\n" + "".join(blocks[1:]) + "Root Cause (first observed failure):\n" + blocks[0] + "=" * 60 + "\n"


_SHUT = (
    "RuntimeError: Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to "
    "allreduce, allgather or broadcast a tensor after one of the ranks finished execution."
)
_FIRST = "The first process to do so was:\n\n  Process name: [[31415,1],{}]\n  Exit code:    1\n"
_OUT_OF_SYNC = (
    "Exception: Unable to unpickle data from other workers. all_gather_list requires all workers to enter the function "
    "together, so this error usually indicates that the workers have fallen out of sync somehow. Workers can fall out "
    "of sync if one of them runs out of memory."
)
_NORMS = (
    "FloatingPointError: Fatal error: gradients are inconsistent between workers. Try --ddp-backend=no_c10d.\n---\n"
    "grad_norm across the workers:\nrank   0 = nan\nrank   1 = nan"
)
_MODELS = (
    "RuntimeError: DDP expects same model across all ranks, but Rank {} has {} params, while rank {} has inconsistent "
    "{} params."
)
_DIED = (
    "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker IP address: {} "
    "Worker port: 10005 Worker PID: {} Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits "
    "with a connection error code 2. End of file. There are some potential root causes.\n"
)
_KILL = "KILLED BY SIGNAL: 9 (Killed)"

REPORTS: dict[str, tuple[str, Accepted]] = {
    "horovod/horovod 1421": (marked(_raised(_SHUT), "[1,2]<stderr>:") + _FIRST.format(0), (("rank_exited", (0,)),)),
    "horovod/horovod 1421, without mpirun's word": (marked(_raised(_SHUT), "[1,2]<stderr>:"), (UNDECIDED,)),
    "Kay1794/Aware-of-the-history 2": (
        "mpirun noticed that process rank 1 with PID xxxxxx on node xxxxxxxx exited on signal 9 (Killed).\n",
        (("rank_exited", (1,)),)),
    "horovod/horovod 489": (
        "[n1:7000] Signal: Aborted (6)\n[n1:7000:0] Caught signal 11 (Segmentation fault: address not mapped to "
        "object at address 0x565391a57a40)\n", (GONE,)),
    "intel/torch-ccl 71": (
        _hydra((0, _KILL), (1, "KILLED BY SIGNAL: 11 (Segmentation fault)"), (2, _KILL)), (("rank_exited", (1,)),)),
    "facebookresearch/fairseq 1821": (_spawned(8, _OUT_OF_SYNC), (UNDECIDED,)),
    "facebookresearch/fairseq 1372": (_spawned(3, _NORMS), (UNDECIDED,)),
    "huggingface/diffusers 10160": (
        _raised(_MODELS.format(0, 776, 1, 0), 0) + timed_out("2.5", 2, 1, "ALLGATHER", 776, out=3104), (UNDECIDED,)),
    "determined-ai/determined 8915": (_raised(_MODELS.format(2, 161, 0, 163), 2), (UNDECIDED,)),
    "open-mmlab/mmsegmentation 3106": (_table((0, -6), (1, -6), (2, -6)), (UNDECIDED,)),
    "verl-project/verl 2995": (
        _DIED.format("10.0.0.7", 833) + marked(timed_out("2.6", 62, 3318), "(WorkerDict pid=833, ip=10.0.0.9) "),
        (UNDECIDED, GONE)),
    "NVIDIA/nccl 1730, with RAS' report above": (timed_out("2.6", 118, 2398459), (UNDECIDED,)),
}  # fmt: skip


def test_of_ranks_that_hydra_killed_alike_nothing_tells_which_was_the_first() -> None:
    assert told(_hydra((0, _KILL), (1, _KILL), (2, _KILL))) == UNDECIDED
    assert told(_hydra((0, _KILL), (1, "EXIT STATUS: 1"), (2, _KILL))) == ("rank_exited", (1,))
    lost = _hydra((0, _KILL), (1, _KILL)).replace(f"=   {_KILL}\n", "", 1)
    assert told(lost) == UNDECIDED


@pytest.mark.parametrize("code", [-6, -15])
def test_several_ends_by_one_signal_that_follows_tell_no_first_one(code: int) -> None:
    assert told(_table((2, code), (1, code))) == UNDECIDED


def test_ranks_that_all_ran_out_of_shared_memory_are_all_named() -> None:
    """tloen/alpaca-lora#338: SIGBUS of each. A crash of another kind may follow from a peer's."""
    assert told(_table((2, -7), (1, -7), (3, -7))) == ("rank_exited", (1, 2, 3))
    assert told(_table((2, -11), (1, -11))) == ("rank_exited", (2,))


def test_an_abort_of_which_nothing_tells_why_may_be_a_watchdog_s_that_waited() -> None:
    """bghira/SimpleTuner#759: rank 1's, which waited for rank 0's validation."""
    assert told(_table((2, -6))) == UNDECIDED
    assert told(_table((2, -15))) == ("rank_exited", (2,))
    lost = ranked(PEER_LOST, 0) + ranked(PEER_LOST, 1)
    assert told(lost + _table((2, -6))) == ("rank_exited", (2,))


_TERMINATE = "terminate called after throwing an instance of '{}'\n  what():  {}\n"
_OWN_ABORTS = (
    _TERMINATE.format("std::bad_alloc", "std::bad_alloc"),
    _TERMINATE.format("c10::Error", "CUDA error: an illegal memory access was encountered"),
    "malloc(): corrupted top size\n",
    "python: /src/loader.cc:12: int next(): Assertion `shard > 0' failed.\n",
)


@pytest.mark.parametrize("text", _OWN_ABORTS)
def test_what_native_code_said_before_the_only_abort_is_of_the_rank_that_aborted(text: str) -> None:
    assert told(text + _table((2, -6)))[1] == (2,)
    # Every process that aborts so says so: of several the launcher's first is not known to have said this.
    waited = _TERMINATE.format("c10::DistBackendError", "[Rank 0] Watchdog caught collective operation timeout: x")
    assert told(waited + text + _table((2, -6)))[1] == ()


def test_of_whom_only_the_launcher_tells_that_he_ended_it_is_not_said_that_he_waits() -> None:
    assert "wait" not in verdict(_hydra((0, _KILL), (1, "EXIT STATUS: 1"))).summary


def test_a_worker_of_ray_has_its_rank_by_its_pid_on_its_own_host() -> None:
    waits = marked(timed_out("2.6", 3, 9), "(WorkerDict pid=833, ip=10.0.0.9) ")
    assert "rank 3: a worker" in verdict(waits + _DIED.format("10.0.0.9", 833)).because[1].fact


def test_who_told_an_end_is_named_and_no_command_that_says_nothing_of_it() -> None:
    deepspeed = "[ERROR] [launch.py:321:sigkill_handler] ['python', '--local_rank=1'] exits with return code = -7\n"
    assert "a process of this node ended with signal 7" in verdict(deepspeed).summary
    mpirun = verdict(_FIRST.format(0))
    assert "the first that mpirun saw" in mpirun.because[0].fact


def test_what_decides_nothing_begins_with_what_says_most() -> None:
    child = RAISED.replace("ValueError: shard 17 is empty", "torch.distributed.elastic.errors.ChildFailedError:")
    assert "rank 0: ended with signal 6" in verdict(child + _table((0, -6), (1, -6))).summary


_RAY = "(TrainController pid=900) "


def test_ray_names_the_worker_before_what_it_raised() -> None:
    """ray#51199: the controller of Ray Train prints each worker's rank, and its own exception last."""
    header = f"{_RAY}Training failed due to worker errors:\n{_RAY}[Rank 2]\n"
    assert told(header + marked(RAISED, _RAY) + timed_out("2.6", 0, 77)) == ("rank_raised", (2,))


def test_rays_structured_log_tells_the_world_rank() -> None:
    """ray#52223; python/ray/train, structured logging: one object a line."""
    said = {"asctime": "2026-11-28 21:01:00,000", "message": f"Error in training function:\n{RAISED}", "world_rank": 1}
    assert told(json.dumps(said) + "\n" + timed_out("2.6", 0, 77)) == ("rank_raised", (1,))


def test_slurm_counts_kills_when_the_step_is_over_and_not_when_they_were() -> None:
    waits = "".join(timed_out("2.6", rank, 55) for rank in (0, 1, 2, 3, 4, 6, 7))
    end = (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=812.0. Some of the step tasks have been OOM Killed.\n"
        "srun: error: gn017: task 5: Out Of Memory\nsrun: error: gn016: tasks 0-3: Aborted (core dumped)\n"
    )
    assert told(waits + end) == ("rank_exited", (5,))


_LISTED = (
    "[{0}]:\n  time      : 2026-09-07_13:0{1}\n  host      : n1\n  rank      : {0} (local_rank: {0})\n"
    "  exitcode  : {2} (pid: 1469{0})\n  error_file: <N/A>\n  traceback : see above\n"
)


@pytest.mark.parametrize(("at", "rank"), [("3:29", 3), ("2:59", 0)])
def test_whom_a_table_lists_as_killed_when_the_grace_of_sigterm_was_over_is_no_root(at: str, rank: int) -> None:
    """torchrun kills after 30 s who does not heed SIGTERM; somebody else kills sooner. The root stands last."""
    others = f"Failures:\n{_LISTED.format(0, at, -9)}"
    root = f"Root Cause (first observed failure):\n{_LISTED.format(3, '2:58', 1)}"
    assert told(f"{others}{root}{12 * '='}\n") == ("rank_exited", (rank,))
    assert told(f"{others}{_LISTED.format(2, '2:58', 1)}{12 * '='}\n") == ("undecided", ()), "its root is lost"


def test_whom_composer_killed_beside_a_rank_that_crashed_is_no_root() -> None:
    ended = "Global rank {} (PID 20886{}) exited with code {}\n"
    swept = ended.format(1, 1, -15) + ended.format(3, 3, -9)
    assert told(swept + "ERROR:composer.cli.launcher:" + ended.format(0, 0, -11)) == ("rank_exited", (0,))
    assert told(ended.format(3, 3, -9) + ended.format(1, 1, -15)) == ("rank_exited", (3,))
