from pathlib import Path

import pytest

from stallwatch.doctor.check import Inapplicable, Undetermined
from stallwatch.doctor.failed_run.logs import FailedRun, read_events
from stallwatch.doctor.finding import FindingRecord
from stallwatch.doctor.surroundings import Question
from stallwatch.errors import UnusableInput
from tests.unit.doctor.fakes import Node

BUNDLES = Path(__file__).parents[3] / "bundles"

PEER_LOST = (
    "[rank0]: Traceback (most recent call last):\n"
    '[rank0]:   File "/job/train.py", line 31, in <module>\n'
    "[rank0]:     dist.all_reduce(loss)\n"
    "[rank0]: RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:18849.\n"
)
RAISED = (
    "[rank2]: Traceback (most recent call last):\n"
    '[rank2]:   File "/job/train.py", line 77, in main\n'
    "[rank2]:     batch = next(it)\n"
    "[rank2]: KeyError: 'input_ids'\n"
)
TORCHRUN = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-27_23:39:17
  host      : node7
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 16537)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-27_23:39:16
  host      : node7
  rank      : 3 (local_rank: 3)
  exitcode  : -9 (pid: 16540)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 16540
============================================================
"""
WATCHDOG = (
    "[rank1]:[E1127 21:01:55.098 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds "
    "before timing out.\n"
    "[rank1]:[E1127 21:01:55.100 ProcessGroupNCCL.cpp:700] To avoid data inconsistency, we are taking the entire "
    "process down.\n"
)
IN_USE = (
    "[W1127 21:00:00.1 socket.cpp:460] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address "
    "already in use).\n"
)
OUT_OF_MEMORY = (
    "[rank5]: Traceback (most recent call last):\n"
    '[rank5]:   File "/job/train.py", line 90, in step\n'
    "[rank5]:     loss.backward()\n"
    "[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 5 has a total capacity of 79 "
    "GiB\n"
)


def diagnose(node: Node, *texts: str) -> tuple[FindingRecord, ...]:
    paths = tuple(node.write(f"rank{number}.log", text) for number, text in enumerate(texts))
    found = FailedRun().look(node.around(question=Question(logs=paths, log_events=read_events(paths))))
    for record in found:
        assert record.seen and record.why and record.remedy
    return found


def first(node: Node, *texts: str) -> str:
    return diagnose(node, *texts)[0].seen


def test_the_exception_of_one_rank_comes_before_what_peers_saw_of_it(node: Node) -> None:
    found = diagnose(node, PEER_LOST + RAISED)
    assert found[0].seen == "First cause: rank 2: KeyError: 'input_ids' at /job/train.py:77 in main"
    assert found[0].severity == "error"
    assert [record.severity for record in found[1:]] == ["info"]
    assert found[1].seen.startswith("Consequence: rank 0: RuntimeError")


def test_the_order_of_files_and_lines_is_irrelevant(node: Node) -> None:
    assert first(node, PEER_LOST, RAISED) == first(node, RAISED, PEER_LOST) == first(node, RAISED + PEER_LOST)


def test_a_killed_rank_is_the_cause_and_torchruns_secondary_failures_are_not(node: Node) -> None:
    found = diagnose(node, PEER_LOST + TORCHRUN)
    assert "rank 3: ended with signal 9 (pid 16540) on node7" in found[0].seen
    assert "out-of-memory killer" in found[0].why


def test_no_traceback_is_explained(node: Node) -> None:
    assert any("@record" in record.remedy for record in diagnose(node, TORCHRUN.replace("-9", "1")))


def test_a_taken_port_comes_before_everything(node: Node) -> None:
    unreachable = (
        "[W socket.cpp:601] [c10d] The client socket has failed to connect to [node1]:29500 (errno: 111 - x).\n"
    )
    found = diagnose(node, unreachable + RAISED + IN_USE + TORCHRUN)
    assert "Address already in use" in found[0].seen


def test_memory_that_ran_out_on_one_rank_only_says_so(node: Node) -> None:
    found = diagnose(node, PEER_LOST + OUT_OF_MEMORY + TORCHRUN)
    assert found[0].seen.startswith("First cause: rank 5: torch.OutOfMemoryError")
    assert "Only rank 5 did" in found[0].why


def test_a_timeout_alone_accuses_nobody(node: Node) -> None:
    found = diagnose(node, WATCHDOG)
    assert "ALLREDUCE" in found[0].seen
    assert "The rank that reports it is a waiting one" in found[0].why
    assert found[1].seen.startswith("Consequence: ")


def test_a_timeout_is_a_consequence_of_an_exception(node: Node) -> None:
    assert "KeyError" in first(node, WATCHDOG + RAISED)


def test_a_wrong_device_is_told_with_its_meaning(node: Node) -> None:
    text = RAISED.replace("KeyError: 'input_ids'", "RuntimeError: CUDA error: invalid device ordinal")
    assert "LOCAL_RANK" in diagnose(node, PEER_LOST + text)[0].remedy


def test_peers_alone_are_called_consequences(node: Node) -> None:
    found = diagnose(node, PEER_LOST)
    assert found[0].severity == "warning"
    assert "Only consequences" in found[0].seen


def test_a_recorder_that_was_off_is_told(node: Node) -> None:
    text = (
        WATCHDOG + "Stack trace of the failed collective not found, potentially because FlightRecorder is disabled.\n"
    )
    assert any("TORCH_FR_BUFFER_SIZE" in record.remedy for record in diagnose(node, text))


def test_a_log_without_a_known_failure_is_unknown_not_healthy(node: Node) -> None:
    with pytest.raises(Undetermined):
        diagnose(node, "step 1\nstep 2\n")


def test_without_logs_there_is_nothing_to_look_at(node: Node) -> None:
    with pytest.raises(Inapplicable):
        FailedRun().look(node.around())


def test_a_log_that_cannot_be_read_is_unusable(tmp_path: Path) -> None:
    with pytest.raises(UnusableInput):
        read_events((tmp_path / "absent.log",))


def test_real_logs_of_peers_of_a_killed_rank_accuse_none_of_them(node: Node) -> None:
    logs = tuple(sorted(BUNDLES.glob("gloo-killed/ranks/*/log.txt")))
    assert logs
    found = FailedRun().look(node.around(question=Question(logs=logs, log_events=read_events(logs))))
    assert "Only consequences" in found[0].seen
