"""Who never joined: in rendezvous with gloo, in the creation of the communicator with NCCL, or a group."""

from typing import Any

import msgspec
import pytest

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import SHARED_LOG, Attempt, CodeFrame, Evidence, RankEvidence, ThreadState
from stallwatch.model.rendezvous import Apart, Rendezvous
from stallwatch.model.verdict import Verdict
from tests.builders.clock import SECOND_NS
from tests.builders.job import SLEEPS, Rank, evidence, loop, world

_UTILS = "/opt/venv/lib/python3.11/site-packages/torch/distributed/utils.py"
_C10D = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
MODULE = CodeFrame("<module>", "/srv/job/train.py", 60)
VERIFIES = (CodeFrame("_verify_param_shape_across_processes", _UTILS, 286), MODULE)
JOINS = (CodeFrame("init_process_group", _C10D, 1700), MODULE)
NO_DUMP = "answered without a dump: torch is not loaded or has no recorder"


def _asked(rank: Rank, detail: str = "", *, answered: bool = True, threads: tuple[str, ...] = ()) -> RankEvidence:
    """Evidence of a rank whose recorder was asked for, and which has these threads beside its main one."""
    told = rank.evidence()
    looks = tuple(
        msgspec.structs.replace(
            look,
            threads=(*look.threads, *(ThreadState(5000 + i, name, "S", 1, None) for i, name in enumerate(threads))),
        )
        for look in told.processes
    )
    attempts = (Attempt("flight_recorder", 1, 1, answered, detail),)
    return msgspec.structs.replace(told, processes=looks, attempts=attempts)


def _job(*ranks: RankEvidence) -> Evidence:
    return msgspec.structs.replace(evidence(*(Rank(rank.rank) for rank in ranks)), ranks=ranks)


def _joined(rank: int, calls: int = 0) -> RankEvidence:
    recorded = loop(world(4), calls)
    told = Rank(rank, recorded, frames=VERIFIES, state="R", wchan=None)
    return _asked(told, "nccl 118 bytes", threads=("pt_nccl_watchdg", "pt_nccl_heartbt"))


def test_with_nccl_the_others_stand_in_the_creation_of_a_communicator() -> None:
    absent = _asked(Rank(3, dumped=False, frames=SLEEPS), NO_DUMP)
    told = judge(_job(*(_joined(rank) for rank in range(3)), absent)).verdicts[0]
    assert (told.cause, told.culprits, told.confidence) == ("init_missing", (3,), "likely")
    assert told.waiting == "0-2"
    assert told.operation == "init_process_group"


def test_threads_tell_where_no_hook_answers() -> None:
    absent = _asked(Rank(3, dumped=False, frames=SLEEPS), "no hook", answered=False, threads=("cuda-EvtHandlr",))
    told = judge(_job(*(_joined(rank) for rank in range(3)), absent)).verdicts[0]
    assert (told.cause, told.culprits) == ("init_missing", (3,))


@pytest.mark.parametrize("thread", ["pt_nccl_watchdg", "pt_nccl2_heartb", "pt_gloo_runloop"])
def test_a_rank_with_a_process_group_has_joined_though_it_does_not_answer(thread: str) -> None:
    busy = _asked(Rank(3, dumped=False, frames=SLEEPS), "no answer", answered=False, threads=(thread,))
    told = judge(_job(*(_joined(rank) for rank in range(3)), busy)).verdicts[0]
    assert (told.cause, told.culprits) == ("not_entered", (3,))


def test_who_left_its_group_after_the_job_communicated_is_not_missing_from_its_start() -> None:
    left = _asked(Rank(3, dumped=False, frames=SLEEPS), NO_DUMP)
    told = judge(_job(*(_joined(rank, calls=3) for rank in range(3)), left)).verdicts[0]
    assert told.cause != "init_missing"


def test_with_gloo_the_others_stand_in_the_rendezvous() -> None:
    waiting = [Rank(rank, dumped=False, frames=JOINS, wchan="do_poll").evidence() for rank in range(3)]
    told = judge(_job(*waiting, Rank(3, dumped=False, frames=SLEEPS).evidence())).verdicts[0]
    assert (told.cause, told.culprits, told.waiting) == ("init_missing", (3,), "0-2")
    assert told.waiting_where == "init"
    all_wait = judge(_job(*waiting, Rank(3, dumped=False, frames=JOINS, wchan="do_poll").evidence())).verdicts[0]
    assert (all_wait.cause, all_wait.where, all_wait.waiting_where) == ("undecided", None, "init")
    assert judge(_job(Rank(0, frames=SLEEPS).evidence())).verdicts[0].waiting_where is None, "nobody waits"


_TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/srv/job/train.py", line 60, in <module>',
    "    dist.init_process_group()",
)
TIMED_OUT = (
    *_TRACEBACK,
    "torch.distributed.DistStoreError: wait timeout after 30000ms, keys: /default_pg/0//0//cpu//0",
)
OWN_ERROR = (*_TRACEBACK, "ValueError: no interface eth7")


@pytest.mark.parametrize(
    ("log", "cause", "culprits", "confidence"),
    [
        (TIMED_OUT, "init_missing", (3,), "likely"),
        ((), "init_missing", (3,), "possible"),
        (OWN_ERROR, "rank_exited", (1,), "certain"),
    ],
)
def test_a_time_out_at_the_start_is_no_cause(
    log: tuple[str, ...], cause: str, culprits: tuple[int, ...], confidence: str
) -> None:
    """Ranks 1 and 2 die of it, in a traceback that names nobody; their launcher then ends those that are left."""
    at_rendezvous: dict[str, Any] = {"dumped": False, "frames": JOINS, "wchan": "do_poll", "state": "X"}
    ended = [
        Rank(1, exit_code=1, ended_ns=SECOND_NS, log=log, **at_rendezvous),
        Rank(2, exit_code=1, ended_ns=SECOND_NS * 11 // 10, log=TIMED_OUT, **at_rendezvous),
        Rank(0, exit_signal=15, ended_ns=SECOND_NS * 3 // 2, **at_rendezvous),
    ]
    late = Rank(3, dumped=False, frames=SLEEPS, state="X", exit_signal=15, ended_ns=SECOND_NS * 3 // 2)
    told = judge(evidence(*ended, late)).verdicts[0]
    assert (told.cause, told.culprits, told.confidence) == (cause, culprits, confidence)


def test_who_ended_by_itself_before_it_came_is_the_cause_of_the_others_time_out() -> None:
    at_rendezvous: dict[str, Any] = {"dumped": False, "frames": JOINS, "wchan": "do_poll", "state": "X"}
    ended = [Rank(r, exit_code=1, ended_ns=SECOND_NS * 30, log=TIMED_OUT, **at_rendezvous) for r in range(3)]
    first = Rank(3, dumped=False, frames=SLEEPS, state="X", exit_code=1, ended_ns=SECOND_NS)
    told = judge(evidence(*ended, first)).verdicts[0]
    assert (told.cause, told.culprits) == ("rank_exited", (3,))


NO_ADDRESS = (
    "Traceback (most recent call last):",
    '  File "/srv/job/train.py", line 60, in <module>',
    "torch.distributed.DistStoreError: wait timeout after 80000ms, keys: /default_pg/0//cpu//0/3",
)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("log", [NO_ADDRESS, OWN_ERROR])
def test_who_ended_first_of_all_that_waited_for_each_other_is_not_to_blame(log: tuple[str, ...], shared: bool) -> None:
    """Rank 3's process came, too, as another rank: all ended when their time was over, rank 0 a moment sooner."""
    at_rendezvous: dict[str, Any] = {"dumped": False, "frames": JOINS, "wchan": "do_poll", "state": "X"}
    attempts = (Attempt("log", 1, 0, True, SHARED_LOG if shared else ""),)
    ended = [
        msgspec.structs.replace(
            Rank(r, exit_code=1, ended_ns=SECOND_NS + r * 10_000_000, log=log, **at_rendezvous).evidence(),
            attempts=attempts,
        )
        for r in range(4)
    ]
    told = judge(_job(*ended)).verdicts[0]
    if log is OWN_ERROR:
        assert told.cause == "rank_exited"
        return
    assert (told.cause, told.culprits, told.confidence) == ("init_missing", (), "possible")
    assert "waited at the rendezvous for rank 3 until their time-out ended them" in told.summary


def test_all_in_the_rendezvous_accuse_nobody() -> None:
    waiting = [Rank(rank, dumped=False, frames=JOINS, wchan="do_poll").evidence() for rank in range(4)]
    assert judge(_job(*waiting)).verdicts[0].culprits == ()


def _started_late(told: RankEvidence) -> RankEvidence:
    """The same rank, looked at once before: it was still making its CUDA context then."""
    starting = CodeFrame("_lazy_init", "/opt/venv/lib/python3.11/site-packages/torch/cuda/__init__.py", 410)
    later = tuple(msgspec.structs.replace(one, look=one.look + 1) for one in told.stacks)
    threads = tuple(
        msgspec.structs.replace(thread, frames=(starting, CodeFrame("build", "/srv/job/train.py", 12), MODULE))
        for thread in told.stacks[0].threads
    )
    return msgspec.structs.replace(
        told,
        stacks=(msgspec.structs.replace(told.stacks[0], threads=threads), *later),
        processes=tuple(msgspec.structs.replace(one, look=one.look + 1) for one in told.processes),
        recorders=tuple(msgspec.structs.replace(one, look=one.look + 1) for one in told.recorders),
    )


def test_ranks_that_were_still_starting_at_the_first_look_do_not_make_the_job_healthy_for_ever() -> None:
    absent = _asked(Rank(3, dumped=False, frames=SLEEPS), NO_DUMP)
    told = judge(_job(*(_started_late(_joined(rank)) for rank in range(3)), absent)).verdicts[0]
    assert (told.cause, told.culprits) == ("init_missing", (3,))


def test_all_at_the_rendezvous_are_told_what_to_compare() -> None:
    ranks = [_asked(Rank(r, frames=JOINS, dumped=False, wchan="do_poll"), NO_DUMP) for r in range(4)]
    verdict = judge(_job(*ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("undecided", ())
    assert "Ranks 0-3 wait at the rendezvous for each other" in verdict.summary
    assert "MASTER_PORT" in verdict.summary
    assert "MASTER_PORT" in verdict.next_steps[0]


def test_a_part_of_the_ranks_at_the_rendezvous_names_those_of_which_nothing_was_seen() -> None:
    ranks = [_asked(Rank(r, frames=JOINS, dumped=False, wchan="do_poll"), NO_DUMP) for r in (0, 1, 3)]
    verdict = judge(msgspec.structs.replace(_job(*ranks), world_size=4)).verdicts[0]
    assert "Ranks 0-1,3 wait at the rendezvous for rank 2, of which nothing was seen here" in verdict.summary


def test_the_only_rank_that_is_known_waits_for_others_and_not_for_each_other() -> None:
    """Lightning's own launcher: the script is rank 0 of one until its group is made."""
    verdict = judge(_job(_asked(Rank(0, frames=JOINS, dumped=False, wchan="do_poll"), NO_DUMP))).verdicts[0]
    assert "Rank 0 waits at the rendezvous for others, of which nothing was seen here" in verdict.summary


def _waits(rank: int) -> RankEvidence:
    return _asked(Rank(rank, dumped=False, frames=JOINS, wchan="poll_schedule_timeout"), NO_DUMP)


def _meeting(meeting: Rendezvous, *ranks: int) -> Verdict:
    return judge(
        msgspec.structs.replace(_job(*(_waits(rank) for rank in ranks)), world_size=4, meeting=meeting)
    ).verdicts[0]


def test_a_rank_that_has_no_process_where_alone_it_can_be_never_came() -> None:
    told = _meeting(Rendezvous("127.0.0.1:29500", never_seen=(2,)), 0, 1, 3)
    assert (told.cause, told.culprits, told.confidence, told.waiting) == ("init_missing", (2,), "likely", "0-1,3")


@pytest.mark.parametrize(
    "meeting",
    [
        Rendezvous("127.0.0.1:29500", never_seen=(2,)),
        Rendezvous("127.0.0.1:29500", apart=(Apart(2, "127.0.0.1:29501"),)),
    ],
)
def test_who_met_elsewhere_or_nowhere_is_the_cause_of_the_others_time_out(meeting: Rendezvous) -> None:
    at_rendezvous: dict[str, Any] = {"dumped": False, "frames": JOINS, "wchan": "do_poll", "state": "X"}
    ended = [Rank(r, exit_code=1, ended_ns=SECOND_NS * (9 + r) // 9, log=TIMED_OUT, **at_rendezvous) for r in (0, 1, 3)]
    told = judge(msgspec.structs.replace(evidence(*ended), world_size=4, meeting=meeting)).verdicts[0]
    assert (told.cause, told.culprits, told.waiting) == ("init_missing", (2,), "0-1,3")


def test_where_the_others_may_be_on_other_nodes_nobody_is_named() -> None:
    assert _meeting(Rendezvous("10.0.0.1:29500"), 0, 1, 3).cause == "undecided"


def test_one_that_meets_at_another_port_is_named_from_either_side() -> None:
    here, there = "127.0.0.1:29500", "127.0.0.1:29501"
    told = _meeting(Rendezvous(here, (Apart(2, there),)), 0, 1, 3)
    assert (told.cause, told.culprits) == ("init_missing", (2,))
    assert f"meets at {there}, while ranks 0-1,3 wait at {here}" in told.summary
    apart = tuple(Apart(rank, here) for rank in (0, 1, 3))
    told = _meeting(Rendezvous(there, apart), 2)
    assert (told.cause, told.culprits) == ("init_missing", (2,))
    assert f"meets at {there}, while ranks 0-1,3 wait at {here}" in told.summary


def test_of_two_halves_the_one_without_rank_0_is_at_the_wrong_place() -> None:
    told = _meeting(Rendezvous("a:1", (Apart(2, "b:1"), Apart(3, "b:1"))), 0, 1)
    assert (told.cause, told.culprits) == ("init_missing", (2, 3))


# Most ranks make a process group, which those that went on were to make as well.
