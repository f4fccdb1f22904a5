"""What a process prints of another one's failure: whose it is, and that nobody who only passes it on is named."""

import pytest
from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import SHARED_LOG, Attempt
from tests.builders.heartbeat import heartbeat
from tests.builders.job import Rank, evidence
from tests.builders.texts import RAISED, marked, ranked, timed_out, told, verdict

FULL = "OSError: [Errno 28] No space left on device"
_CHECKPOINT = "/env/lib/python3.12/site-packages/torch/distributed/checkpoint"


def _checkpoint(*failed: int, why: str = FULL) -> str:
    """torch.distributed.checkpoint.api.CheckpointException, which each rank of the group raises."""
    last = "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys"
    own = RAISED.replace("ValueError: shard 17 is empty", f"{last}([{', '.join(map(str, failed))}])")
    of_others = "".join(
        f"Traceback (most recent call last): (RANK {rank})\n"
        f'  File "{_CHECKPOINT}/filesystem.py", line 640, in write_data\n    stream.flush()\n{why}\n'
        for rank in failed
    )
    return own + of_others + "\n"


@pytest.mark.parametrize("tellers", [(0,), (5,), (0, 5), (0, 1, 5, 7), tuple(range(8))])
def test_a_checkpoints_failure_is_the_rank_s_that_it_names(tellers: tuple[int, ...]) -> None:
    assert told("".join(ranked(_checkpoint(5), rank) for rank in tellers)) == ("rank_raised", (5,))


def test_a_checkpoint_names_all_that_failed() -> None:
    found = verdict("".join(ranked(_checkpoint(1, 2), rank) for rank in range(4)))
    assert (found.culprits, found.waiting) == ((1, 2), "0,3")
    assert "df -h" in found.next_steps[0]
    assert told(_checkpoint(3)) == ("rank_raised", (3,))


@pytest.mark.parametrize("tellers", [(4, 5, 6, 7), (2, 6), (9,)])
def test_of_a_group_that_is_not_the_whole_job_nobody_is_named(tellers: tuple[int, ...]) -> None:
    """It counts ranks within its group: the second of these four is rank 5."""
    assert told("".join(ranked(_checkpoint(1), rank) for rank in tellers)) == ("rank_raised", ())


def test_a_checkpoint_in_which_a_peer_had_gone_accuses_nobody() -> None:
    lost = "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:18849"
    assert told("".join(ranked(_checkpoint(1, why=lost), rank) for rank in range(3))) == ("undecided", ())


@pytest.mark.parametrize(("failed", "tellers"), [((2,), 4), ((1, 2), 4), ((), 4), ((1,), 1)])
def test_of_ranks_that_ended_of_it_those_are_named_that_failed(failed: tuple[int, ...], tellers: int) -> None:
    """The hooks tell the name of the exception alone, which is that of all; they share their launcher's log."""
    log = tuple("".join(ranked(_checkpoint(*failed), rank) for rank in range(tellers) if failed).splitlines())
    shared = (Attempt("log", 1, 1, True, SHARED_LOG),)
    ranks = []
    for rank in range(4):
        seen = Rank(rank, state="Z", exit_code=1, ended_ns=1000 + rank, log=log, wchan=None, looks=1).evidence()
        beat = heartbeat(rank, exception="CheckpointException", ended=True)
        ranks.append(replace(seen, heartbeat=(beat,), attempts=shared))
    found = judge(replace(evidence(), ranks=tuple(ranks))).verdicts[0]
    assert (found.cause, found.culprits, found.waiting) == ("rank_exited", failed, "")
    assert (FULL in found.summary) is bool(failed)
    assert any("df -h" in step for step in found.next_steps) is bool(failed)
    assert "lost the connection" not in found.summary


@pytest.mark.parametrize("number", ["{:6d}\t", "train.log:{}:"])
def test_a_checkpoint_s_failure_is_read_with_numbers_before_its_lines(number: str) -> None:
    lines = "".join(ranked(_checkpoint(5), rank) for rank in (0, 5, 7)).splitlines()
    assert told("".join(f"{number.format(at)}{line}\n" for at, line in enumerate(lines, 1))) == ("rank_raised", (5,))


@pytest.mark.parametrize("lost", [1])
def test_of_a_checkpoint_s_failure_whose_head_is_lost_nobody_is_named(lost: int) -> None:
    head = _checkpoint(5).index("Traceback (most recent call last): (RANK")
    assert told(ranked("\n".join(_checkpoint(5)[head:].splitlines()[lost:]), 0))[1] == ()


_MORE = " [repeated 7x across cluster]"
_WORKER = "(WorkerDict pid={}) "


def _of_worker(rank: int, more: str = "") -> str:
    log = RAISED.replace("ValueError: shard 17 is empty", f"RuntimeError: CUDA error: invalid argument{more}")
    return marked(ranked(log, rank), _WORKER.format(4700 + rank))


@pytest.mark.parametrize("texts", [(_of_worker(3, _MORE),), (_of_worker(3), _of_worker(5, _MORE))])
def test_of_what_several_workers_wrote_ray_shows_one_and_that_one_is_not_named(texts: tuple[str, ...]) -> None:
    """LogDeduplicator: lines of several processes that differ in numbers alone are one, with a count, after 5 s."""
    assert told("".join(texts)) == ("rank_raised", ())
    assert told(_of_worker(3)) == ("rank_raised", (3,))


def test_who_is_counted_among_those_that_wait_is_not_silent() -> None:
    waits = "step 40 loss 2.1\n" + "".join(timed_out("2.6", rank, 9) for rank in (0, 1, 3, 4, 6, 7))
    end = "E1128 21:20:00.100000 4990 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -6)"
    end += " local_rank: 0 (pid: 4700) of binary: /env/bin/python\n"
    assert told(waits + timed_out("2.6", 2, 9) + end) == ("not_entered", (5,))
    folded = timed_out("2.6", 2, 9).replace("\n", " [repeated 2x across cluster]\n")
    assert told(waits + folded + end) == ("undecided", ())
