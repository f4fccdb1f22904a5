import io
from pathlib import Path

import pytest
from msgspec.structs import replace

from stallwatch.bundle.reader import read
from stallwatch.doctor.check import Inapplicable
from stallwatch.doctor.check_result import FindingRecord
from stallwatch.doctor.failed_run.logs import FailedRun
from stallwatch.doctor.surroundings import Question
from stallwatch.formats import log_pieces
from stallwatch.formats.training_log import parse
from stallwatch.model.evidence import Evidence, NodeEvidence
from stallwatch.model.log_event import LogTail
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
    "[E1127 21:00:00.2 socket.cpp:500] [c10d] The server socket has failed to listen on any local network address.\n"
)
OUT_OF_MEMORY = (
    "[rank5]: Traceback (most recent call last):\n"
    '[rank5]:   File "/job/train.py", line 90, in step\n'
    "[rank5]:     loss.backward()\n"
    "[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 5 has a total capacity of 79 "
    "GiB\n"
)


def logs(*tails: LogTail, names: tuple[str, ...] = ()) -> Evidence:
    """What a job's logs tell, that name no rank by their own names."""
    files = names or tuple(f"log{number}.txt" for number in range(len(tails)))
    events = tuple(
        replace(event, source=name) for name, tail in zip(files, tails, strict=True) for event in tail.events
    )
    kernel = tuple(
        replace(event, source=name) for name, tail in zip(files, tails, strict=True) for event in tail.kernel
    )
    nodes = (NodeEvidence("unknown", (), kernel_events=kernel),) if kernel else ()
    return Evidence(None, None, (), nodes, (), log_events=events)


def examined(node: Node, evidence: Evidence) -> tuple[FindingRecord, ...]:
    found = FailedRun().look(node.around(question=Question(evidence=evidence)))
    for record in found:
        assert record.seen and record.why and record.remedy
    return found


def diagnose(node: Node, *texts: str) -> tuple[FindingRecord, ...]:
    return examined(node, logs(*(parse(text.encode()) for text in texts)))


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


def test_a_log_in_which_nothing_is_known_is_a_warning_with_its_last_lines_that_look_like_errors(node: Node) -> None:
    (found,) = diagnose(node, "step 1\nour_lib: error 17: the frobnicator is gone\nstep 2\n")
    assert (found.severity, found.subject) == ("warning", "log0.txt:2")
    assert "the frobnicator is gone" in found.seen


def test_of_a_log_without_any_the_last_lines_are_shown(node: Node) -> None:
    (found,) = diagnose(node, "step 1\nstep 2\n")
    assert (found.severity, "line 2: step 2" in found.seen) == ("warning", True)


def test_the_warnings_of_an_ordinary_end_are_quiet(node: Node) -> None:
    end = (
        "step 1000/1000\n[rank0]:[W1120 10:00:01.1 ProcessGroupNCCL.cpp:1538] Warning: destroy_process_group() "
        "was not called before program exit, which can leak resources.\n"
    )
    assert diagnose(node, end) == ()


def test_without_logs_there_is_nothing_to_look_at(node: Node) -> None:
    with pytest.raises(Inapplicable):
        FailedRun().look(node.around())


def test_real_logs_of_peers_of_a_killed_rank_accuse_none_of_them(node: Node) -> None:
    files = tuple(sorted(BUNDLES.glob("gloo-killed/ranks/*/log.txt")))
    assert files
    found = examined(node, logs(*(parse(file.read_bytes()) for file in files)))
    assert "Only consequences" in found[0].seen


ABORTED = WATCHDOG + TORCHRUN.replace("rank      : 3 (local_rank: 3)", "rank      : 1 (local_rank: 1)").replace(
    "exitcode  : -9 (pid: 16540)", "exitcode  : -6 (pid: 16540)"
)


def test_a_rank_that_its_watchdog_aborted_waited_and_is_no_cause_though_torchrun_saw_it_first(node: Node) -> None:
    found = diagnose(node, ABORTED)
    assert "Watchdog caught collective operation timeout" in found[0].seen
    assert "waiting one" in found[0].why


def attempt(agent: int, rank: int, error: str) -> str:
    return (
        f"[rank{rank}]: Traceback (most recent call last):\n"
        f'[rank{rank}]:   File "/job/train.py", line {rank + 1}, in main\n'
        f"[rank{rank}]: {error}\n"
        f"E1128 02:00:1{rank}.000 {agent} torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) "
        f"local_rank: {rank} (pid: {agent + rank}) of binary: /usr/bin/python\n"
    )


def test_restarts_are_told_apart_and_the_last_attempt_is_the_runs(node: Node) -> None:
    log = attempt(140, 1, "torch.OutOfMemoryError: CUDA out of memory.") + attempt(140, 2, "ValueError: loss is nan")
    found = diagnose(node, log)
    assert found[0].seen.startswith("First cause: rank 2: ValueError: loss is nan")
    assert found[1].seen.startswith("Attempt 1 of 2 ended by: rank 1: torch.OutOfMemoryError")
    assert "another cause" in found[1].why


def test_two_agents_that_fail_once_are_one_attempt(node: Node) -> None:
    found = diagnose(
        node, attempt(140, 1, "KeyError: 'x'") + attempt(900, 2, "RuntimeError: Connection closed by peer")
    )
    assert found[0].seen.startswith("First cause: rank 1: KeyError")
    assert not any("Attempt" in one.seen for one in found)


def test_folders_of_torchrun_tell_attempt_and_rank(node: Node) -> None:
    text = 'Traceback (most recent call last):\n  File "/t.py", line {}, in m\n{}\n'
    texts = text.format(1, "OSError: stale file handle"), text.format(2, "ValueError: loss is nan")
    names = "run/attempt_0/1/stderr.log", "run/attempt_1/3/stderr.log"
    found = examined(node, logs(*(parse(told.encode()) for told in texts), names=names))
    assert found[0].seen.startswith("First cause: rank 3: ValueError: loss is nan at /t.py:2")
    assert found[1].seen.startswith("Attempt 1 of 2 ended by: rank 1: OSError")


@pytest.mark.parametrize(
    ("line", "told", "why"),
    [
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM Killed.",
         "oom_kill", "host memory"),
        ("srun: error: node2: task 3: Out Of Memory", "task 3", "host memory"),
        ("[4] Memory cgroup out of memory: Killed process 812 (python) total-vm:1kB", "killed it", "host memory"),
        ("slurmstepd: error: *** JOB 999 ON node1 CANCELLED AT 2026-11-28T02:00:00 DUE TO TIME LIMIT ***", "TIME LIMIT",
         "ended the job"),
        ("Nov 28 02:00:00 node1 kernel: NVRM: Xid (PCI:0000:61:00): 79, pid=1, name=x, GPU has fallen off the bus.",
         "Xid", "off the bus"),
        ("node1 kernel: nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 32 LTSSM Fault Up", "SXid",
         "switch"),
        ("[rank1]: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000", "Duplicate GPU", "same GPU"),
    ],
)  # fmt: skip
def test_what_schedulers_the_kernel_and_nccl_say_is_a_cause(node: Node, line: str, told: str, why: str) -> None:
    found = diagnose(node, line + "\n" + PEER_LOST)
    assert (told in found[0].seen, why in found[0].why) == (True, True), found[0]


@pytest.mark.parametrize(
    "line",
    ["slurmstepd: error: *** STEP 123.0 ON node1 CANCELLED AT 2026-11-28T02:00:00 ***",
     "kernel: NVRM: Xid (PCI:0000:61:00): 45, pid=1, name=python, Ch 00000008",
     "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 46 egress non-posted PRIV error (First)"],
)  # fmt: skip
def test_what_follows_from_any_failure_is_no_cause(node: Node, line: str) -> None:
    assert "KeyError" in first(node, line + "\n" + RAISED)


def test_an_unused_parameter_gets_its_own_remedy(node: Node) -> None:
    text = RAISED.replace(
        "KeyError: 'input_ids'", "RuntimeError: Expected to have finished reduction in the prior iter"
    )
    assert "TORCH_DISTRIBUTED_DEBUG=DETAIL" in diagnose(node, text)[0].remedy


def test_a_log_that_begins_in_the_midst_of_a_traceback_is_read(node: Node) -> None:
    cut = RAISED.partition("\n")[2]
    assert first(node, cut).startswith("First cause: rank 2: KeyError: 'input_ids' at /job/train.py:77")


@pytest.mark.parametrize("mark", ["[default{}]:", "{}: ", "(Worker pid={}) "])
def test_tracebacks_that_interleave_are_told_apart_by_what_the_launcher_writes(node: Node, mark: str) -> None:
    one, two = mark.format(1), mark.format(2)
    start = "Traceback (most recent call last):\n"
    log = (
        f'{one}{start}{two}{start}{one}  File "/a.py", line 1, in f\n{two}  File "/b.py", line 2, in g\n'
        f"{two}RuntimeError: Connection closed by peer\n{one}KeyError: 'x'\n"
    )
    assert "KeyError: 'x' at /a.py:1" in first(node, log)


def test_the_first_cause_is_found_anywhere_in_a_long_log_with_its_line(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_pieces, "_BLOCK_BYTES", 700)
    monkeypatch.setattr(log_pieces, "_END_BYTES", 100)
    step = "step 17 loss 0.25\n"
    text = (step * 100 + RAISED + step * 900 + PEER_LOST + step * 300).encode()
    found = examined(node, logs(log_pieces.parse_pieces(io.BytesIO(text).read)))
    assert found[0].seen.startswith("First cause: rank 2: KeyError")
    assert found[0].subject.endswith(":104")
    assert any(one.subject.endswith(":1008") for one in found[1:])


def test_a_folder_stands_for_the_logs_below_it(node: Node) -> None:
    node.write("run/attempt_0/0/stderr.log", PEER_LOST)
    node.write("run/attempt_0/2/stderr.log", RAISED)
    node.write("run/attempt_0/2/model.pt", b"\0" * 100)
    found = examined(node, read([node.root / "run"])[0])
    assert found[0].seen.startswith("First cause: rank 2: KeyError")
    assert found[0].subject.endswith("attempt_0/2/stderr.log:4")


AGENT = (
    "E1128 03:50:01.000 140 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0 "
    "(pid: 812) of binary: /usr/bin/python\n"
)
FAILED_FIRST = TORCHRUN.replace("rank      : 3 (local_rank: 3)", "rank      : 0 (local_rank: 0)").replace(
    "exitcode  : -9 (pid: 16540)", "exitcode  : 1 (pid: 812)"
)


@pytest.mark.parametrize(
    ("exception", "told"),
    [
        ("RuntimeError: [/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 5000ms for recv operation to "
         "complete", "Timed out waiting"),
        ("RuntimeError: [enforce fail at /gloo/transport/tcp/device.cc:85] ifa != nullptr. Unable to find address for: "
         "^lo", "Unable to find address for: ^lo"),
    ],
)  # fmt: skip
def test_the_exit_code_of_a_rank_whose_exception_says_why_is_no_cause(node: Node, exception: str, told: str) -> None:
    log = PEER_LOST.rpartition("[rank0]: ")[0] + f"[rank0]: {exception}\n" + AGENT + FAILED_FIRST
    assert told in first(node, log)


def test_a_rank_that_left_without_a_word_is_no_reason_to_accuse_its_peers(node: Node) -> None:
    assert diagnose(node, PEER_LOST + AGENT + FAILED_FIRST)[0].seen.startswith("Only consequences")


def test_an_exit_code_without_a_word_is_the_cause_where_peers_only_lost_it(node: Node) -> None:
    left = AGENT.replace("exitcode: 1) local_rank: 0", "exitcode: 3) local_rank: 1")
    assert first(node, PEER_LOST + left).startswith("First cause: rank 1: ended with exit code 3")


def test_a_rank_that_is_missing_at_init_is_named_by_the_key_that_others_wait_for(node: Node) -> None:
    log = PEER_LOST.rpartition("[rank0]: ")[0] + (
        "[rank0]: torch.distributed.DistStoreError: wait timeout after 5000ms, keys: /default_pg/0//cpu//0/1\n"
    )
    found = diagnose(node, log + AGENT + FAILED_FIRST)[0]
    assert found.seen.startswith("First cause: rank 0: torch.distributed.DistStoreError: wait timeout")
    assert found.why.startswith("Rank 1 had not come")
