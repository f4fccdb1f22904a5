"""Ends as launchers and libraries beside torchrun print them, texts that lost a part, and logs that only stop."""

from pathlib import Path

import pytest

from stallwatch.bundle.reader import load
from stallwatch.diagnosis import judge
from stallwatch.errors import UnusableInput
from tests.builders.texts import AGENT, PEER_LOST, RAISED, SUMMARY, marked, ranked, told

CRASHED = ("rank_exited", ())
LAUNCH = (
    "Traceback (most recent call last):\n"
    '  File "/env/lib/python3.7/site-packages/torch/distributed/launch.py", line 259, in main\n'
    "    cmd=cmd)\n"
    "subprocess.CalledProcessError: Command '['/env/bin/python', '-u', 'train.py', '--local_rank=3', '--lr', '0.1']' "
)


@pytest.mark.parametrize(
    "line",
    [
        "[a1b2c3d4:4711 :0:4801] Caught signal 11 (Segmentation fault: address not mapped to object)\n",
        "[node7:22331] *** Process received signal ***\n[node7:22331] Signal: Bus error (7)\n",
        "*** SIGSEGV (@0x8) received by PID 4711 (TID 0x7f3e) from PID 8; stack trace: ***\n",
        "*** SIGBUS received at time=1763626531 on cpu 12 ***\n",
    ],
)
def test_a_handler_of_signals_tells_that_its_process_crashed(line: str) -> None:
    assert told("step 7 | loss 2.1\n" + line) == CRASHED


def test_a_signal_that_somebody_sent_is_no_crash() -> None:
    assert told("step 7 | loss 2.1\n*** SIGTERM received at time=1763626531 on cpu 12 ***\n")[0] != "rank_exited"


def test_the_old_launcher_prints_the_command_of_the_last_rank_whichever_failed() -> None:
    assert told(LAUNCH + "died with <Signals.SIGSEGV: 11>.\n") == CRASHED
    assert told(LAUNCH + "returned non-zero exit status 1.\n") == CRASHED


def test_a_block_of_a_summary_that_lost_its_head_tells_its_rank() -> None:
    whole = SUMMARY.format(rank=5, code=-11, pid=4711, traceback="Signal 11 (SIGSEGV) received by PID 4711")
    assert told(whole[whole.index("  rank ") :]) == ("rank_exited", (5,))


def test_of_two_agents_first_failures_the_one_that_is_clearly_later_follows() -> None:
    first = SUMMARY.format(rank=4, code=1, pid=81, traceback="To enable traceback see: https://pytorch.org/docs")
    second = SUMMARY.format(rank=0, code=1, pid=95, traceback="To enable traceback see: https://pytorch.org/docs")
    assert told(first, second.replace("21:20:00", "21:20:51")) == ("rank_exited", (4,))
    assert told(first, second.replace("21:20:00", "21:20:04")) == ("rank_exited", (0, 4))


STALLED = "Stalled ops:allreduce.{} [missing ranks: {}]\n"


def test_horovod_names_who_is_missing() -> None:
    assert told(STALLED.format("a", 2) + STALLED.format("b", "2, 5")) == ("not_entered", (2,))
    assert told(STALLED.format("a", 2) + STALLED.format("b", 0)) == ("undecided", ())
    assert told(STALLED.format("a", 2) + "step 8 | loss 2\nTraining completed.\n")[1] == ()


def test_a_store_that_nobody_answers_is_no_failure_of_the_one_that_asks() -> None:
    cause, culprits = told(ranked("Traceback (most recent call last):\n  File \"/job/t.py\", line 3, in main\n"
                                  "    store = TCPStore(\nRuntimeError: connect() timed out. Original timeout was "
                                  "60000 ms.\n", 1))  # fmt: skip
    assert (cause, culprits) == ("undecided", ())


@pytest.mark.parametrize(
    "log",
    [
        "step 118 | loss 2.31\nstep 119 | loss 2.30\n",
        marked("waiting for the others\n" * 3, "2026-11-20 08:15:31,120 "),
        "(Engine pid=77) INFO 10-22 09:43:49 [queue.py:466] no block for 60 seconds\n",
        " 12%|#2   | 1200/9000 [10:00<50:00,  2.0it/s]\n",
    ],
)
def test_a_log_that_only_stops_is_undecided(log: str, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(log)
    found = judge(load([tmp_path])).verdicts[0]
    assert (found.cause, found.culprits) == ("undecided", ())


def test_a_text_that_is_no_log_is_none(tmp_path: Path) -> None:
    (tmp_path / "README.txt").write_text("How to train: see the other page.\n")
    with pytest.raises(UnusableInput):
        load([tmp_path])


def test_what_a_pod_prints_is_of_no_one_rank_where_an_agent_writes_there() -> None:
    crash = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x7f1 (most recent call first):\n"
    crash += '  File "/a.py", line 7 in collate\n'
    log = crash + ranked(PEER_LOST, 1) + AGENT["2.4"].format(code=-11, rank=0, pid=5000)
    log += SUMMARY.format(rank=0, code=-11, pid=5000, traceback="Signal 11 (SIGSEGV) received by PID 5000")
    assert told(marked(log, "[pod/train-0/main] ")) == ("rank_exited", (0,))


SKIPPED = ranked(RAISED, 2) + "".join(f"step {i} | loss 2.{i}\n" for i in range(9)) + "Training completed.\n"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\x1b[0m\n"])
def test_steps_tell_that_training_went_on_in_whatever_form_lines_end(end: str) -> None:
    begin = "\x1b[31m" if "\x1b" in end else ""
    assert told("".join(f"{begin}{line}{end}" for line in SKIPPED.splitlines())) == ("job_ended", ())


@pytest.mark.parametrize("mark", ["[2026-11-20 08:15:36,123][rank 2][ERROR] ", "(worker2, rank=2, pid=3312) "])
def test_a_traceback_in_a_box_is_read_behind_a_loggers_mark(mark: str) -> None:
    box = (
        "╭─────────────── Traceback (most recent call last) ────────────────╮\n"
        "│ /app/train.py:77 in main                                         │\n"
        "╰──────────────────────────────────────────────────────────────────╯\n"
        "ValueError: shard 17 is empty\n"
    )
    assert told(marked(box, mark) + ranked(PEER_LOST, 0)) == ("rank_raised", (2,))


def test_a_crash_at_a_local_rank_is_of_the_rank_that_its_launcher_saw_crash_there() -> None:
    crash = marked('Fatal Python error: Segmentation fault\n\nCurrent thread 0x7f1 (most recent call first):\n'
                   '  File "/a.py", line 7 in collate\n', "[default1]:")  # fmt: skip
    other = SUMMARY.format(rank=4, code=-15, pid=70, traceback="Signal 15 (SIGTERM) received by PID 70")
    end = SUMMARY.format(rank=9, code=-11, pid=81, traceback="Signal 11 (SIGSEGV) received by PID 81")
    end = end.replace("(local_rank: 9)", "(local_rank: 1)").replace("node0", "node1")
    assert told(crash + other + end) == ("rank_exited", (9,))
    assert told(crash)[0] == "rank_exited"


def test_jsrun_names_the_rank_that_it_first_saw_end() -> None:
    log = ranked(PEER_LOST, 0) + "ERROR:  One or more process (first noticed rank 5) terminated with signal 9\n"
    assert told(log) == ("rank_exited", (5,))


@pytest.mark.parametrize("mark", ["`", '"', "'", "> `", "\u201c"])
def test_a_line_that_somebody_put_into_quotes_is_its_rank_s(mark: str) -> None:
    first = "[rank2]:[E1126 03:11:02.1 ProcessGroupNCCL.cpp:1414] [PG 2 Rank 2] Process group watchdog thread "
    first += "terminated with exception: CUDA error: an illegal memory access was encountered\n"
    assert told(mark + first) == ("rank_raised", (2,))
    assert told(marked(ranked(RAISED, 2), mark)) == ("rank_raised", (2,))


def test_what_srun_says_of_a_task_is_not_of_the_task_whose_mark_it_has() -> None:
    memory = "srun: error: n3: task 11: Out Of Memory\n"
    assert told(marked(memory, "0: ")) == told(memory) == ("rank_exited", (11,))


LISTED_STALLS = (
    "[2026-11-28 15:36:43.594972: W horovod/common/stall_inspector.cc:105] One or more tensors were submitted to be "
    "reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 "
    "seconds. This may indicate that different ranks are trying to submit different tensors or that only subset of "
    "ranks is submitting tensors, which will cause deadlock. \nStalled ranks:\n6: [horovod_allreduce.0, "
    "horovod_allreduce.1 ...]\n9: [horovod_allreduce.0]\n"
)


@pytest.mark.parametrize("mark", ["", "[1,0]<stderr>:"])
def test_horovods_list_of_stalled_ranks_names_who_has_not_come(mark: str) -> None:
    assert told(marked(LISTED_STALLS, mark)) == ("not_entered", (6, 9))


def test_a_task_that_prints_a_list_behind_it_has_not_stalled() -> None:
    assert told(LISTED_STALLS + "epoch 3\n12: [0.1, 0.2]\n") == ("not_entered", (6, 9))
