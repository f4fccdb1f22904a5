"""What stands last in a text and names nobody: a store that went away, a shell's word, a launcher's own exception; and
words of dresses in which texts come."""

import pytest

from tests.builders.texts import AGENT, RAISED, SUMMARY, marked, ranked, timed_out, told, verdict

_STORE = (
    "[rank2]:[W1120 10:15:17.5 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=7, remote=[n0]:29500): {}\n"
)
_GONE = ("Connection reset by peer", "Failed to recv, got 0 bytes. Connection was likely closed.")
_CLEAN = "[rank0]:[W1120 10:15:16.1 ProcessGroupNCCL.cpp:1538] WARNING: destroy_process_group() was not called before "


@pytest.mark.parametrize("why", _GONE)
def test_a_store_that_went_away_alone_is_no_ordinary_end(why: str) -> None:
    assert told(_STORE.format(why)) == ("undecided", ())
    assert told(f"step 40 loss 2.1\n{_CLEAN}program exit\n{_STORE.format(why)}") == ("job_ended", ())


_ID = (
    "torch.distributed.DistBackendError: [8] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via "
    "c10d key-value store by key '0', but store->get('0') got error: {}\n"
)


def test_who_lost_the_store_while_it_asked_tells_not_that_rank_0_did_not_come() -> None:
    assert told(ranked(_ID.format("Socket Timeout"), 8)) == ("not_entered", (0,))
    for why in ("Connection reset by peer. This may indicate a possible application crash on rank 0", "Broken pipe"):
        assert told(ranked(_ID.format(why), 8)) == ("undecided", ())


@pytest.mark.parametrize("word", ["Killed", "Segmentation fault (core dumped)", "Bus error"])
def test_a_shells_word_is_an_end_where_nothing_else_is_told(word: str) -> None:
    assert told(f"step 4 loss 2.1\n{word}\n") == ("rank_exited", ())
    assert told(f"{RAISED}{word}\n") == ("rank_raised", ())
    assert told(f"{timed_out('2.6', 1, 5)}{word}\n")[0] == "undecided"


def test_an_engine_that_kills_its_tree_after_a_child_has_failed_was_killed_by_itself() -> None:
    stuck = "".join(
        f"[2026-03-09 00:57:1{rank} TP{rank}] Watchdog timeout (self.watchdog_timeout=300)\n" for rank in range(4)
    )
    found = verdict(f"{stuck}[2026-03-09 00:57:20] Received sigquit from a child process. It usually failed.\nKilled\n")
    assert (found.cause, found.culprits) == ("undecided", ())
    assert "Watchdog timeout" in found.summary


@pytest.mark.parametrize("words", ["8 oom-kill event(s) in step 59137.batch", "1 oom_kill event in StepId=7.0"])
def test_slurms_older_word_for_a_kill_is_one_too(words: str) -> None:
    slurm = f"slurmstepd: error: Detected {words} cgroup. Some of your processes may have been killed by the handler.\n"
    assert told(slurm) == ("rank_exited", ())
    assert told(f"{RAISED.replace('ValueError', 'ray.tune.error.TuneError')}{slurm}") == ("rank_exited", ())


_DIED = "subprocess.CalledProcessError: Command '{}' died with <Signals.{}>."
_FFMPEG = RAISED.replace("ValueError: shard 17 is empty", _DIED.format("['ffmpeg', '-i', 'a.mp4']", "SIGKILL: 9"))


@pytest.mark.parametrize(
    "command",
    [
        "['deepspeed', '--no_local_rank', '--num_gpus', '8', 'train.py']",
        "accelerate launch train.py",
        "['/env/bin/python', '-m', 'torch.distributed.run', '--nproc_per_node', '2', 'train.py']",
        "['/env/bin/python3.11', '-u', '/env/bin/torchrun', 'train.py']",
    ],
)
def test_a_launcher_that_crashed_is_an_end(command: str) -> None:
    assert told(RAISED.replace("ValueError: shard 17 is empty", _DIED.format(command, "SIGSEGV: 11"))) == (
        "rank_exited", (),
    )  # fmt: skip


@pytest.mark.parametrize(
    "code", ["accelerate/commands/launch.py", "deepspeed/launcher/runner.py", "torch/distributed/launch.py"]
)
def test_what_a_launcher_says_of_the_program_that_it_ran_is_an_end(code: str) -> None:
    said = (
        "Traceback (most recent call last):\n"
        '  File "/env/bin/launcher", line 8, in <module>\n    sys.exit(main())\n'
        f'  File "/env/lib/python3.10/site-packages/{code}", line 637, in simple_launcher\n'
        "    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)\n"
        + _DIED.format("['/env/bin/python', 'train.py']", "SIGSEGV: 11")
        + "\n"
    )
    assert told(said) == ("rank_exited", ())
    assert told(said.replace(code, "tool/convert.py")) != ("rank_exited", ())


def test_a_tool_of_the_job_that_died_is_an_exception_like_any_other() -> None:
    went_on = "".join(f"[rank{rank}]: step {step} loss 2.1\n" for step in (5, 6, 7) for rank in range(3))
    failed = ranked(RAISED.replace("shard 17 is empty", "bad shard 7"), 1)
    assert told(f"{ranked(_FFMPEG, 2)}{went_on}{failed}") == ("rank_raised", (1,))
    other = _FFMPEG.replace("died with <Signals.SIGKILL: 9>", "returned non-zero exit status 1")
    assert told(f"{_FFMPEG}step 5 loss 2.1\nstep 6 loss 2.0\n") == ("undecided", ())
    assert told(ranked(_FFMPEG, 2)) == told(ranked(other, 2))
    assert told(_FFMPEG) == told(other)
    assert told(_FFMPEG.replace("ffmpeg", "convert', '--deepspeed', 'torchrun")) == told(other)


def test_firmware_that_does_not_answer_is_a_gpus_fault_without_an_xid() -> None:
    line = "[   24.302465] NVRM: GPU6 _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 81 heartbeat 18\n"
    assert told(line) == ("gpu_fault", ())


_UNUSED = (
    "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.\n"
    "making sure all `forward` function outputs participate in calculating loss. \n"
    "Parameter indices which did not receive grad for rank {}: 1\n"
)


def test_ddp_tells_whose_parameters_got_no_gradient() -> None:
    assert told(_UNUSED.format(2)) == ("rank_raised", (2,))
    assert told(ranked(_UNUSED.format(0), 1)) == ("rank_raised", (1,))


def test_what_a_launcher_raises_in_its_own_code_ended_no_rank() -> None:
    own = (
        "Traceback (most recent call last):\n"
        '  File "/env/lib/python3.8/site-packages/deepspeed/launcher/runner.py", line 548, in sigkill_handler\n'
        "    result_kill = subprocess.Popen(kill_cmd, env=env)\n"
        "NameError: free variable 'kill_cmd' referenced before assignment in enclosing scope\n"
    )
    assert told(own) == ("undecided", ())
    assert told(own.replace("deepspeed/launcher", "deepspeed/runtime")) == ("rank_raised", ())


def test_an_engine_passes_on_what_its_worker_raised() -> None:
    logger = "(EngineCore pid=1113) ERROR 08-27 22:16:31 [core.py:1365] "
    passed = (
        "    raise e from None\n    ^^^^^^^^^^^^^^^^^\n"
        "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace\n"
    )
    found = verdict(marked(passed, logger))
    assert (found.cause, found.culprits) == ("undecided", ())
    assert "WorkerProc initialization failed" in found.summary
    assert told("ERROR 10-27 08:12:30 [core_client.py:564] Engine core proc EngineCore_DP0 died unexpectedly.\n") == (
        "rank_exited", (),
    )  # fmt: skip


_ANOTHER = (
    "[1]:\n  time      : 2026-11-28_21:20:00\n  host      : node0\n  rank      : 5 (local_rank: 5)\n"
    "  exitcode  : 1 (pid: 814)\n  error_file: <N/A>\n  traceback : To enable traceback see: https://pytorch.org\n"
)
_SUMMARY = SUMMARY.replace("  <NO_OTHER_FAILURES>\n", _ANOTHER).format(
    rank=3, code=1, pid=812, traceback="To enable traceback see: https://pytorch.org"
)


@pytest.mark.parametrize("text", [_SUMMARY, AGENT["2.4"].format(code=1, rank=3, pid=812), ranked(RAISED, 3)])
@pytest.mark.parametrize("indent", ["    ", "\t", "      "])
def test_a_text_that_a_page_indented_says_the_same(text: str, indent: str) -> None:
    assert told(marked(text, indent)) == told(text)


def test_a_word_before_each_line_of_a_launchers_table_is_taken_away() -> None:
    assert told(marked(_SUMMARY, "stderr: ")) == told(_SUMMARY) == ("rank_exited", (3,))


@pytest.mark.parametrize("mark", ["0: ", "[default0]:", "[1,0]<stderr>:", "(TaskRunner pid=77) "])
def test_who_tells_of_an_actors_death_is_not_who_died(mark: str) -> None:
    by_ray = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."
    died = RAISED.replace("ValueError: shard 17 is empty", by_ray)
    assert told(marked(died, mark)) == ("rank_exited", ())


def test_torchs_word_at_a_process_end_alone_tells_not_that_it_ended_well() -> None:
    """torch warns so at the end of any interpreter, behind an exception, too: a cut may have left nothing else."""
    warned = f"{_CLEAN}program exit\n{_CLEAN.replace('rank0', 'rank1')}program exit\n"
    assert told(warned) == ("undecided", ())
    assert told(ranked(RAISED, 0) + warned) == ("rank_raised", (0,))
    assert told(f"step 40 loss 2.1\n{warned}") == ("job_ended", ())
    assert told(f"Training complete.\n{warned}") == ("job_ended", ())
