"""The watchdog of nccl2, torch's NCCL back end from 2.15 on (from 2.14 on by TORCH_DIST_USE_NCCL2): it names its group,
and neither the operation nor its number. Texts of WorkNCCL.cpp and ProcessGroupNCCL.cpp in c10d/nccl2, and of its first
form in 2.14."""

import pytest

from stallwatch.formats.training_log import parse
from tests.builders.texts import AGENT, RAISED, ranked, told, verdict

_TIMED_OUT = (
    "[rank{0}]:[E1129 20:10:0{0}.123456789 WorkNCCL.cpp:214] [TC][rank={1}][name={2}] "
    "Operation timed out after 600003 ms\n"
)
_ABORTS = {
    "2.14": "Aborting process due to timeout on rank {1} - timeout watchdog detected operation timeout",
    "2.15": "Aborting process on rank {1} due to timeout - timeout watchdog detected operation timeout",
}
_ERROR = (
    "[rank{0}]:[E1129 20:00:00.123456789 WorkNCCL.cpp:190] [TC][rank={0}][name=0] CUDA error during end event query: "
    "CUDA error: an illegal memory access was encountered\n"
    "[rank{0}]:[E1129 20:00:00.2 ProcessGroupNCCL.cpp:702] [TC][rank={0}][name=0] Aborting process on rank {0} due to "
    "error - timeout watchdog detected operation error\n"
)
_PEER_WENT = (
    "[rank{0}]:[E1129 20:00:00.123456789 ProcessGroupNCCLUtils.cpp:330] [TC][rank={0}][name=0] nccl hit async error on "
    "rank {0}: remote process exited or there was a network error\n"
)


def _waits(rank: int, place: int | None = None, name: str = "0", version: str = "2.15") -> str:
    place = rank if place is None else place
    header = f"[rank{rank}]:[E1129 20:10:0{rank}.223456789 ProcessGroupNCCL.cpp:702] [TC][rank={place}][name={name}] "
    return _TIMED_OUT.format(rank, place, name) + header + _ABORTS[version].format(rank, place) + "\n"


def test_a_time_out_is_read_with_its_group() -> None:
    event = parse(_waits(6, 2, "mesh_tp").encode()).events[0]
    assert (event.kind, event.rank, event.group_rank, event.group) == ("collective_timeout", 6, 2, "mesh_tp")
    assert (event.seq, event.operation) == (None, None)


@pytest.mark.parametrize("version", _ABORTS)
def test_ranks_that_all_wait_accuse_nobody(version: str) -> None:
    found = verdict("".join(_waits(rank, version=version) for rank in (2, 0, 3, 1)) + _agent(2))
    assert (found.cause, found.culprits) in (("comm_stuck", ()), ("undecided", ()))
    assert any("Operation timed out after 600003 ms" in fact.fact for fact in found.because)


def test_who_says_nothing_where_all_others_wait_has_not_come() -> None:
    found = verdict("step 40 loss 2.1\n" + "".join(_waits(rank) for rank in (0, 1, 3)) + _agent(0))
    assert (found.cause, found.culprits, found.seq) == ("not_entered", (2,), None)


def test_who_waits_in_another_group_is_not_silent() -> None:
    text = "step 40 loss 2.1\n" + "".join(_waits(rank) for rank in (0, 1, 3)) + _waits(2, 0, "mesh_tp") + _agent(0)
    assert verdict(text).culprits == ()


@pytest.mark.parametrize(("own", "cause"), [(_ERROR.format(1), "rank_raised"), (ranked(RAISED, 1), "rank_raised")])
def test_a_rank_with_an_error_of_its_own_is_told_and_not_those_that_wait(own: str, cause: str) -> None:
    assert told(own + "".join(_waits(rank) for rank in (0, 2, 3))) == (cause, (1,))


@pytest.mark.parametrize("of_type", ["RuntimeError", "torch.distributed.DistBackendError"])
@pytest.mark.parametrize("text", ["NCCL operation timed out", "Watchdog caught collective operation timeout: NCCL "
                                  "operation timed out"])  # fmt: skip
def test_what_the_training_thread_raises_of_a_time_out_is_of_a_rank_that_waits(of_type: str, text: str) -> None:
    """What 2.15 raises at the next call, where it does not abort; the log may lack the watchdog's line."""
    raised = [ranked(RAISED.replace("ValueError: shard 17 is empty", f"{of_type}: {text}"), rank) for rank in range(3)]
    assert told(raised[0])[1] == ()
    assert told("".join(raised))[1] == ()
    assert told("".join(raised) + ranked(RAISED, 3)) == ("rank_raised", (3,))


def test_a_communicator_that_lost_its_peer_follows_from_the_peers_end() -> None:
    text = "".join(_PEER_WENT.format(rank) for rank in range(3)) + AGENT["2.4"].format(code=-11, rank=3, pid=4003)
    assert told(text) == ("rank_exited", (3,))


def _agent(first: int) -> str:
    return AGENT["2.4"].format(code=-6, rank=first, pid=4000 + first)
