"""Starts of jobs, and sides of a mismatch, as logs tell them."""

import pytest

from tests.builders.texts import DETAIL, RAISED, ranked, told, verdict


def test_the_one_that_all_wait_for_at_the_start_is_named() -> None:
    wait = (
        "torch.distributed.DistBackendError: [{0}] is setting up NCCL communicator and retrieving ncclUniqueId "
        "from [0] "
        "via c10d key-value store by key '0', but store->get('0') got error: Socket Timeout"
    )
    log = "".join(ranked(RAISED.replace("ValueError: shard 17 is empty", wait.format(rank)), rank) for rank in (1, 2))
    assert told(log) == ("not_entered", (0,))
    gloo = "torch.distributed.DistStoreError: wait timeout after 5000ms, keys: /default_pg/0//cpu//0/1"
    log = "".join(ranked(RAISED.replace("ValueError: shard 17 is empty", gloo), rank) for rank in (0, 2))
    assert told(log) == ("init_missing", (1,))


BARRIER = (
    "RuntimeError: Timed out initializing process group in store based barrier on rank: {}, for key: "
    "store_based_barrier_key:1 (world_size={}, worker_count={}, timeout=0:30:00)"
)


def test_as_many_as_came_have_said_so_the_others_are_missing() -> None:
    log = "".join(RAISED.replace("ValueError: shard 17 is empty", BARRIER.format(rank, 4, 3)) for rank in (0, 1, 3))
    assert told(log) == ("init_missing", (2,))


INFO = "[2022-02-08 19:04:39,700][torch.distributed.distributed_c10d][INFO] - "
CAME = INFO + "Added key: store_based_barrier_key:{1} to store for rank: {0}\n"
WAITS = (
    INFO + "Waiting in store based barrier to initialize process group for rank: {0}, key: store_based_barrier_key:{1} "
    "(world_size=4, worker_count=3, timeout=0:30:00)\n"
)
ALL_CAME = INFO + "Rank {0}: Completed store-based barrier for key:store_based_barrier_key:{1} with 4 nodes.\n"
STEPS = "".join(f"step {number} | loss 2.{number}\n" for number in range(1, 9))


def said(line: str, ranks: tuple[int, ...], number: int = 1) -> str:
    return "".join(line.format(rank, number) for rank in ranks)


WAITED = said(CAME, (0, 1, 3)) + said(WAITS, (0, 3))


def test_who_has_written_its_key_has_come_though_it_does_not_say_that_it_waits() -> None:
    assert told(WAITED) == ("init_missing", (2,))


@pytest.mark.parametrize("after", [
    said(CAME, (2,)) + said(ALL_CAME, (0, 1, 2, 3)), said(ALL_CAME, (0,)), STEPS,
], ids=["all say so", "one says so", "they make steps"])  # fmt: skip
def test_who_came_late_to_the_stores_barrier_is_not_missing(after: str) -> None:
    assert told(said(WAITS, (0, 1, 3)) + after)[1] == ()


def test_each_barrier_of_the_store_counts_by_itself() -> None:
    first = WAITED + said(CAME, (2,)) + said(ALL_CAME, (0, 1, 2, 3))
    assert told(first + said(CAME, (0, 2, 3), 2) + said(WAITS, (0, 3), 2)) == ("init_missing", (1,))


def test_more_at_the_store_than_the_job_has_ranks_accuses_nobody() -> None:
    found = verdict(RAISED.replace("ValueError: shard 17 is empty", BARRIER.format(0, 2, 3)))
    assert (found.cause, found.culprits) == ("undecided", ())
    assert "older job" in " ".join(fact.fact for fact in found.because)
    assert "MASTER_PORT" in found.next_steps[0]


INIT = (
    "n0:30{0}:1 [{0}] NCCL INFO ncclCommInitRank comm 0x1 rank {0} nranks 4 cudaDev {0} busId 1 commId 0xab{2} - Init "
    "{1}\n"
)


def test_a_communicator_that_all_began_and_none_completed_is_stuck_and_of_fewer_undecided() -> None:
    begun = "".join(INIT.format(rank, "START", 1) + INIT.format(rank, "COMPLETE", 1) for rank in range(4))
    begun += "".join(INIT.format(rank, "START", 2) for rank in range(4))
    assert told(begun) == ("comm_stuck", ())
    assert verdict("".join(INIT.format(rank, "START", 2) for rank in range(2))).culprits == ()


def test_both_sides_of_a_mismatch_that_detail_prints() -> None:
    found = verdict(DETAIL.format(0, 10, 1, 20))
    assert (found.cause, found.culprits) == ("collective_mismatch", ())
    assert found.mismatch is not None
    assert {found.mismatch.expected, found.mismatch.found} == {"shape [10]", "shape [20]"}
    assert "rank 0" in found.summary and "[20]" in found.summary
    majority = DETAIL.format(0, 10, 3, 20) + DETAIL.format(1, 10, 3, 20) + DETAIL.format(2, 10, 3, 20)
    assert told(majority) == ("collective_mismatch", (3,))


def test_a_log_that_only_stops_is_told_by_its_last_line() -> None:
    agent = "[INFO] 2026-11-28 12:28:26,10{} dynamic_rendezvous: {}\n"
    joins = "The node 'worker-0_8_0' attempts to join the next round of the rendezvous 'v2'."
    assert joins in verdict(agent.format(1, "Rendezvous'ing worker group") + agent.format(2, joins)).summary
