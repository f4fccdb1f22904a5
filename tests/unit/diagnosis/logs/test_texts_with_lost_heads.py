"""Texts that begin or end within what torch and torchrun print, what launchers write beside their ranks, and marks of
mails and collectors before all lines: nobody is accused by what is lost, and nothing is lost by a mark."""

import pytest

from tests.builders.texts import AGENT, RAISED, SUMMARY, header, marked, ranked, timed_out, told, verdict

_OOM = "slurmstepd: error: Detected 1 oom_kill event in StepId=812.0. Some of the step tasks have been OOM Killed.\n"
_CANCELLED = "slurmstepd: error: *** STEP 7.0 ON node1 CANCELLED AT 2026-11-28T21:20:00 DUE TO TIME LIMIT ***\n"


@pytest.mark.parametrize("label", ["0: ", " 4: ", "12: "])
def test_a_steps_daemon_writes_behind_the_label_of_a_task_and_tells_of_the_step(label: str) -> None:
    assert told(marked(_OOM, label)) == ("rank_exited", ())
    assert told(marked(_CANCELLED, label)) == told(_CANCELLED)
    killed = "srun: error: node1: task 5: Out Of Memory\n"
    assert told(marked("step 4 loss 2.1\n" + _OOM, label) + killed) == ("rank_exited", (5,))
    assert told(marked(RAISED, "3: ") + marked(_OOM, label))[1] in ((3,), ())


_FAILED = (
    "Traceback (most recent call last):\n"
    '  File "/env/bin/accelerate", line 8, in <module>\n    sys.exit(main())\n'
    '  File "/env/lib/python3.10/site-packages/accelerate/commands/launch.py", line 1057, in launch_command\n'
    "    multi_gpu_launcher(args)\n"
    '  File "/env/lib/python3.10/site-packages/{}", line 90, in parse\n'
    "    raise ValueError(text)\n"
    "ValueError: unknown machine rank\n"
)


@pytest.mark.parametrize("inner", ["accelerate/utils/launch.py", "yaml/loader.py", "torch/distributed/run.py"])
def test_what_was_raised_beneath_a_launchers_code_ended_no_rank_whatever_library_raised_it(inner: str) -> None:
    assert told(_FAILED.format(inner)) == ("undecided", ())
    assert told(RAISED) == ("rank_raised", ())


@pytest.mark.parametrize("tree", ["/env/lib/python3.10/site-packages", "/workspace/pytorch", "/opt/pytorch/pytorch"])
def test_what_torchrun_raised_ended_no_rank_wherever_torch_lies(tree: str) -> None:
    raised = (
        "Traceback (most recent call last):\n"
        '  File "/usr/local/bin/torchrun", line 33, in <module>\n    sys.exit(main())\n'
        f'  File "{tree}/torch/distributed/run.py", line 909, in run\n    elastic_launch(config)\n'
        f'  File "{tree}/torch/distributed/launcher/api.py", line 138, in __call__\n    return launch_agent()\n'
        f'  File "{tree}/torch/distributed/elastic/agent/server/api.py", line 680, in run\n    self._invoke_run()\n'
        "OSError: [Errno 28] No space left on device\n"
    )
    assert told(raised) == ("undecided", ())
    assert f"{tree}/torch/distributed/elastic/agent/server/api.py:680" in verdict(raised).summary


def test_a_program_that_torchrun_runs_within_itself_raises_as_any_other() -> None:
    within = RAISED.replace(
        "Traceback (most recent call last):\n",
        "Traceback (most recent call last):\n"
        '  File "/env/lib/python3.10/site-packages/torch/distributed/run.py", line 701, in run_script_path\n'
        "    runpy.run_path(sys.argv[0], run_name='__main__')\n",
    )
    assert told(ranked(within, 2)) == ("rank_raised", (2,))


def test_the_place_of_a_launchers_exception_is_in_its_own_code() -> None:
    found = verdict(_FAILED.format("accelerate/utils/launch.py"))
    assert "accelerate/utils/launch.py:90" in found.summary
    assert "/env/bin/accelerate" not in found.summary


_BLOCK = (
    "[1]:\n  time      : 2026-11-28_21:20:00\n  host      : node0\n  rank      : {rank} (local_rank: {rank})\n"
    "  exitcode  : -{signal} (pid: 81{rank})\n  error_file: <N/A>\n  traceback : Signal {signal} received by PID 81\n"
)
_OTHER = _BLOCK.format(rank=0, signal=9) + _BLOCK.format(rank=1, signal=15)  # torchrun ended both
_TABLE = SUMMARY.replace("  <NO_OTHER_FAILURES>\n", _OTHER).format(
    rank=3, code=1, pid=812, traceback="To enable traceback see: https://pytorch.org"
)


def test_a_table_of_which_the_end_is_lost_names_nobody_for_the_first_failure_stands_last() -> None:
    assert told(_TABLE) == ("rank_exited", (3,))
    lost = _TABLE[: _TABLE.index("Root Cause")]
    assert _OTHER in lost
    assert told(lost)[1] == ()
    assert told(AGENT["2.4"].format(code=1, rank=3, pid=812) + lost) == ("rank_exited", (3,))
    assert told(lost + _TABLE.replace(_OTHER, "  <NO_OTHER_FAILURES>\n")) == ("rank_exited", (3,))


def _waits(*ranks: int) -> str:
    return "".join(timed_out("2.8", rank, 9, "_ALLGATHER_BASE", size=10, out=120) for rank in ranks)


_FRAME = "frame #3: c10d::ProcessGroupNCCL::Watchdog::run() + 0x14d (0x7f1c2b in /env/torch/lib/libtorch_cuda.so)\n"
_ENDED = AGENT["2.4"].format(code=-6, rank=5, pid=5001)


@pytest.mark.parametrize(
    ("before", "silent"),
    [
        ("", (2,)),  # what a job wrote to stderr alone
        ("```\n", (2,)),
        ("step 40 loss 2.1\n", (2,)),
        ("step 40 loss 2.1\n" + _FRAME, (2,)),
        ("W1126 01:00:00.000000 100 torch/distributed/run.py:792] Setting OMP_NUM_THREADS\n", (2,)),
        (_FRAME, ()),
        (_FRAME[40:], ()),
        ("  what():  [Rank 2] Watchdog caught a time-out\n" + _FRAME, ()),
        ("ut has been set to 600000 milliseconds before timing out.\n", ()),
        (_waits(2).splitlines()[0][90:] + "\n", ()),
        (_waits(2).splitlines()[1][-6:] + "\n", ()),
    ],
)
def test_a_text_that_begins_within_what_a_watchdog_wrote_lacks_whose_words_are_lost(
    before: str, silent: tuple[int, ...]
) -> None:
    """Whoever has no line in it may have had those that are lost; a job's own line shows that none is."""
    waits = _waits(*(rank for rank in range(12) if rank != 2))
    assert told(before + waits + _ENDED)[1] == silent
    assert told(waits.split("\n", 1)[1] + _ENDED)[1] == ()


def test_of_a_text_that_begins_with_waits_not_several_are_silent_nor_who_is_heard_later() -> None:
    """A cut between the words of two ranks leaves the same text; that it took one rank's and no more is unlikely."""
    waits = _waits(*(rank for rank in range(12) if rank not in (2, 7)))
    assert told(f"step 40 loss 2.1\n{waits}{_ENDED}")[1] == (2, 7)
    assert told(waits + _ENDED)[1] == ()
    one = _waits(*(rank for rank in range(12) if rank != 2))
    stuck = (
        header("2.8", 2)
        + "[PG ID 0 PG GUID 0(default_pg) Rank 2] ProcessGroupNCCL's watchdog got stuck for 480 seconds\n"
    )
    assert told(one + stuck + _ENDED)[1] == ()


_XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=77, name=python3, GPU has fallen off the bus.\n"
_OFF_BUS = (
    "[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0\n               NVRM: (PCI ID: 10de:26b5) installed in this "
    "system has\n               NVRM: fallen off the bus and is not responding to commands.\n"
)


@pytest.mark.parametrize("line", ["[ 1843.308145] " + _XID, "[Thu Nov 26 03:11:02 2026] " + _XID, _OFF_BUS])
@pytest.mark.parametrize(
    "mark",
    [
        "2026-11-28T10:00:00.5Z stderr F ",
        "2026-11-28T10:00:00.5Z ",
        "trainer-1  | ",
        "[pod/train-worker-3/dmesg] ",
        "Nov 28 10:00:00 node17 dmesg[4321]: ",
        "> ",
    ],
)
def test_a_kernels_line_says_the_same_behind_a_collectors_mark(line: str, mark: str) -> None:
    assert told(marked(line, mark)) == ("gpu_fault", ())


@pytest.mark.parametrize("mark", ["> ", ">", "> > "])
@pytest.mark.parametrize(
    "text",
    [
        _TABLE,
        "step 4 loss 2.1\nKilled\n",
        marked(RAISED, "[1,3]<stderr>:"),
        "  Process name: [[29973,1],0]\n  Exit code:    1\n",
        "RuntimeError: cuda runtime error (39) : uncorrectable ECC error encountered at /pytorch/aten/src/THC.cpp:50\n",
    ],
)
def test_a_text_that_a_mail_quotes_says_the_same(text: str, mark: str) -> None:
    assert told(marked(text, mark)) == told(text)


def test_a_task_of_slurm_is_no_rank_where_an_agents_table_stands() -> None:
    left = "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n"
    assert told(f"{left}srun: error: n1: task 0: Exited with exit code 1\n") == ("rank_exited", ())


@pytest.mark.parametrize("label", ["0: ", "[1,0]<stderr>:"])
def test_a_task_in_which_a_higher_rank_of_a_group_writes_is_no_rank(label: str) -> None:
    """torch up to 2.1 marks no tracebacks; the number in a group is never above that in the job."""
    ended = "[E ProcessGroupNCCL.cpp:916] [Rank {}] NCCL watchdog thread terminated with exception: CUDA error: bad\n"
    assert told(marked(RAISED + ended.format(1), label))[1] in ((), (1,))
    assert told(marked(RAISED + ended.format(0), label)) == ("rank_raised", (0,))


def test_an_engine_tells_that_one_of_its_schedulers_died_and_not_which_was_the_first() -> None:
    dead = "[12-16 14:27:08] Rank 0 scheduler is dead. Please check if there are relevant logs.\n"
    assert told(dead + "[12-16 14:27:10] Exit code: -9\n") == ("rank_exited", ())
    assert told(RAISED + dead) == ("rank_raised", ())


@pytest.mark.parametrize("between", ["INFO:train:cache is warm\n", "12% of shards\nINFO:train:cache is warm\n"])
def test_a_traceback_goes_on_behind_the_lines_of_others_that_stand_within_it(between: str) -> None:
    lines = _FAILED.format("yaml/loader.py").splitlines(keepends=True)
    for at in (3, 5):
        assert told("".join(lines[:at]) + between + "".join(lines[at:])) == ("undecided", ()), at
    own = RAISED.splitlines(keepends=True)
    found = verdict("".join(own[:3]) + between + '  File "/env/lib/python3.11/queue.py", line 9, in get\n' + own[-1])
    assert found.cause == "rank_raised"
    assert "queue.py" not in found.summary
