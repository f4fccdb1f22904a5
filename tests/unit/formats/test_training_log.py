"""Lines as torch, gloo, NCCL and launchers wrote them (the issues are cited where the line comes from one)."""

from pathlib import Path

import pytest

from stallwatch.formats.log_prefix import read_line
from stallwatch.formats.training_log import parse
from stallwatch.model.log_event import LogEvent

BUNDLES = Path(__file__).parents[2] / "bundles"


def events(text: str) -> tuple[LogEvent, ...]:
    return parse(text.encode()).events


def only(text: str) -> LogEvent:
    (event,) = events(text)
    return event


@pytest.mark.parametrize(
    ("line", "group_rank", "rank", "numel_in"),
    [
        (
            "[E ProcessGroupNCCL.cpp:821] [Rank 3] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=12, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800123 milliseconds before timing "
            "out.",
            3,
            None,
            None,
        ),
        (
            # nccl#1610: the global rank is the prefix, "[Rank 1]" counts within the group
            "[rank13]:[E906 12:16:32.611181197 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation "
            "timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 "
            "milliseconds before timing out.",
            1,
            13,
            1,
        ),
    ],
)
def test_collective_timeout_of_old_and_new_torch(
    line: str, group_rank: int, rank: int | None, numel_in: int | None
) -> None:
    event = only(line)
    assert (event.kind, event.operation, event.seq) == ("collective_timeout", "ALLREDUCE", 12)
    assert (event.group_rank, event.rank, event.numel_in) == (group_rank, rank, numel_in)
    assert event.timeout_ms is not None


def test_blocking_wait_twin_of_the_timeout() -> None:
    event = only("[Rank 2] Work WorkNCCL(SeqNum=4, OpType=BROADCAST, Timeout(ms)=5000) timed out in blocking wait.")
    assert (event.kind, event.seq, event.group_rank) == ("collective_timeout", 4, 2)


@pytest.mark.parametrize(
    ("line", "group", "group_rank"),
    [
        ("[PG 1 Rank 1] Timeout at NCCL work: 7, last enqueued NCCL work: 9, last completed NCCL work: 6.", "1", 1),
        (
            "[PG 1 Rank 3] Exception (either an error or timeout) detected by watchdog at work: 7, last enqueued NCCL "
            "work: 9, last completed NCCL work: 6.",
            "1",
            3,
        ),
        (
            "[PG ID 11 PG GUID 119 Rank 1] Exception (either an error or timeout) detected by watchdog at work: 7, "
            "last enqueued NCCL work: 9, last completed NCCL work: 6.",
            "119",
            1,
        ),
        (
            "[rank118]:[E218 01:02:03.4 ProcessGroupNCCL.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 118]  failure "
            "detected by watchdog at work sequence id: 7 PG status: last enqueued work: 9, last completed work: 6",
            "default_pg",
            118,
        ),
    ],
)
def test_group_status_of_every_form(line: str, group: str, group_rank: int) -> None:
    event = only(line)
    assert (event.kind, event.seq, event.enqueued, event.completed) == ("group_status", 7, 9, 6)
    assert (event.group, event.group_rank) == (group, group_rank)


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "\x1b[31m",
        "[default3]:",
        "(WorkerDict pid=4711, ip=10.0.0.7) ",
        "(raylet pid=12) ",
        "[pod/trainer-0/main] ",
        "2026-11-27T21:01:55.123Z stderr F ",
        "Nov 27 21:01:55 node7 python3[811]: ",
        "  3: ",
        "[1,3]<stderr>:",
    ],
)
def test_prefixes_of_launchers_hide_nothing(prefix: str) -> None:
    event = only(f"{prefix}[rank3]: RuntimeError: x Timed out waiting 1800000ms for recv operation to complete")
    assert (event.kind, event.timeout_ms, event.rank) == ("gloo_timeout", 1_800_000, 3)


def test_of_launchers_within_each_other_the_innermost_counts_the_ranks() -> None:
    assert [read_line(f"{label}[1,2]<stderr>: x").task for label in ("", "0: ", "[1,0]<stderr>:")] == [2, 2, 2]
    assert read_line("3: [default2]:x").task == 3
    assert read_line("2026-11-27T21:01:55Z stderr F 2026-11-27 21:00:00,1 x").stamp == "2026-11-27T21:01:55Z"


def test_deaths_of_peers_are_no_first_causes() -> None:
    told = events(
        "RuntimeError: [/g/pair.cc:553] Connection closed by peer [127.0.0.1]:18849. This is typically caused by …\n"
        "RuntimeError: [/g/pair.cc:537] Read error [127.0.0.1]:55444: Connection reset by peer. This is typically …\n"
        "To avoid data inconsistency, we are taking the entire process down.\n"
        "[rank1]: Process group watchdog thread terminated with exception: [Rank 1] x\n"
    )
    assert [event.kind for event in told] == ["gloo_peer_closed"] * 2 + ["watchdog_end"] * 2
    assert all(event.secondary for event in told)
    assert told[0].peer == "127.0.0.1:18849"


def test_ranks_absent_from_a_monitored_barrier() -> None:
    event = only("RuntimeError: [Rank 0]: Ranks 1, 5, 12 failed to pass monitoredBarrier in 5000 ms")
    assert (event.kind, event.ranks, event.timeout_ms) == ("barrier_absent", (1, 5, 12), 5000)


def test_missing_clients_at_rendezvous() -> None:
    event = only("torch.distributed.DistStoreError: Timed out after 7 seconds waiting for clients. 1/2 clients joined.")
    assert (event.kind, event.message) == ("init_timeout", "1 of 2 joined")
    event = only(
        "Timed out initializing process group in store based barrier on rank: 5, for key: store_based_barrier_key:1 "
        "(world_size=8, worker_count=3, timeout=0:10:00)"
    )
    assert (event.kind, event.rank, event.message) == ("init_timeout", 5, "3 of 8 joined")


def test_completion_errors_of_every_nccl() -> None:
    told = events(
        "n1:12:34 [0] NCCL WARN NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129\n"
        "[2026-11-27 21:01:55] n1:12:34 [0] NCCL WARN NET/IB: Got completion from peer 10.0.0.2<4791> with status=12 "
        "opcode=0 len=0 vendor err 129 (Recv) localGid x remoteGids y [hca mlx5_10]\n"
        "n1:12:34 [0] NCCL WARN NET/IB: Got completion from peer 10.0.0.2<4791> with "
        "status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129 x hca mlx5_3\n"
    )
    assert [event.kind for event in told] == ["nccl_completion_error"] * 3
    assert [event.message for event in told] == ["12", "12", "IBV_WC_RETRY_EXC_ERR(12)"]
    assert [event.device for event in told] == [None, "mlx5_10", "mlx5_3"]


def test_traceback_gives_exception_and_the_jobs_own_line() -> None:
    log = (BUNDLES / "gloo-killed" / "ranks" / "0" / "log.txt").read_bytes()
    exception = next(event for event in parse(log).events if event.kind == "exception")
    assert exception.exception == "RuntimeError"
    assert exception.secondary, "a peer that closed its connection is a follow-on"
    assert exception.frame is not None
    assert (exception.frame.name, exception.frame.line) == ("train_step", 94)
    assert exception.rank == 0


def test_interleaved_tracebacks_of_two_ranks_stay_apart() -> None:
    told = events(
        "[rank0]: Traceback (most recent call last):\n"
        "[rank1]: Traceback (most recent call last):\n"
        '[rank0]:   File "/app/a.py", line 1, in one\n'
        '[rank1]:   File "/app/b.py", line 2, in two\n'
        "[rank1]:     boom()\n"
        "[rank0]: ValueError: first\n"
        "[rank1]: my.pkg.CustomError\n"
    )
    assert [(e.rank, e.exception, e.message) for e in told] == [
        (0, "ValueError", "first"),
        (1, "my.pkg.CustomError", None),
    ]
    assert [e.frame.filename for e in told if e.frame] == ["/app/a.py", "/app/b.py"]


SUMMARY = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-27_21:01:56
  host      : node0
  rank      : 3 (local_rank: 3)
  exitcode  : 1 (pid: 18805)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-27_21:01:55
  host      : node0
  rank      : 2 (local_rank: 2)
  exitcode  : -9 (pid: 18804)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 18804
============================================================
"""


@pytest.mark.parametrize("indent", ["", "[default0]:"])
def test_torchrun_names_the_first_observed_failure(indent: str) -> None:
    told = events("".join(f"{indent}{line}\n" for line in SUMMARY.splitlines()))
    failures = [event for event in told if event.kind == "launcher_failure"]
    assert [(e.rank, e.exit_code, e.exit_signal, e.first) for e in failures] == [
        (3, 1, None, False),
        (2, None, 9, True),
    ]
    assert failures[1].host == "node0"
    assert failures[1].pid == 18804


def test_newer_torchrun_appends_the_signals_name() -> None:
    told = events(SUMMARY.replace("-9 (pid: 18804)", "-9 (pid: 18804)  (SIGKILL)"))
    assert [event.exit_signal for event in told if event.first] == [9]


def test_agent_lines_of_torchrun_and_deepspeed() -> None:
    event = only("E1127 api.py:869] failed (exitcode: -6) local_rank: 0 (pid: 55017) of binary: /usr/bin/python")
    assert (event.kind, event.exit_signal, event.local_rank, event.pid) == ("process_failed", 6, 0, 55017)
    event = only("[2026-01-01 00:00:00,000] [ERROR] [launch.py:321:sigkill_handler] [x] exits with return code = -9")
    assert (event.kind, event.exit_signal) == ("process_failed", 9)


def test_quiet_log_says_nothing_and_keeps_its_tail() -> None:
    tail = parse(("step 1 loss 0.5\r\n" * 1000).encode())
    assert {event.kind for event in tail.events} == {"last_line"}
    assert 0 < len(tail.lines) <= 400
    assert tail.lines[-1] == "step 1 loss 0.5"


def test_bytes_that_are_not_text_do_no_harm() -> None:
    assert {event.kind for event in parse(b"\xff\xfe\x00WorkNCCL(\n" * 10).events} == {"last_line"}
