"""On real captures: order is irrelevant, and what is taken away accuses nobody."""

import json
import random
from functools import cache
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stallwatch.bundle.reader import load
from stallwatch.diagnosis import judge
from stallwatch.model.evidence import CodeFrame, Evidence, RankEvidence
from tests.builders.clock import SECOND_NS
from tests.builders.job import SLEEPS, Rank, loop, world

_BUNDLES = Path(__file__).parents[2] / "bundles"
_NAMES = sorted(path.parent.name for path in _BUNDLES.glob("*/truth.json"))
_settings = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@cache
def _evidence(name: str) -> Evidence:
    return load([_BUNDLES / name])


def _guilty(name: str) -> set[int]:
    truth = json.loads((_BUNDLES / name / "truth.json").read_text())
    return {rank for answer in (truth, *truth.get("accept", [])) for rank in answer["culprits"]}


@pytest.mark.parametrize("name", _NAMES)
def test_real_captures_are_judged_right(name: str) -> None:
    truth = json.loads((_BUNDLES / name / "truth.json").read_text())
    verdict = judge(_evidence(name)).verdicts[0]
    answers = [(answer["cause"], sorted(answer["culprits"])) for answer in (truth, *truth.get("accept", []))]
    assert (verdict.cause, list(verdict.culprits)) in answers


@_settings
@given(st.sampled_from(_NAMES), st.randoms(use_true_random=False))
def test_the_order_of_ranks_and_files_is_irrelevant(name: str, chance: random.Random) -> None:
    found = _evidence(name)
    ranks = [_shuffled(rank, chance) for rank in found.ranks]
    chance.shuffle(ranks)
    one, other = judge(found), judge(msgspec.structs.replace(found, ranks=tuple(ranks)))
    # The evidence that it hands on is as shuffled as it came.
    assert msgspec.structs.replace(one, ranks=()) == msgspec.structs.replace(other, ranks=())


def _shuffled(rank: RankEvidence, chance: random.Random) -> RankEvidence:
    def mixed(items: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(chance.sample(items, len(items)))

    return msgspec.structs.replace(
        rank,
        recorders=mixed(rank.recorders),
        stacks=mixed(rank.stacks),
        processes=mixed(rank.processes),
    )


@_settings
@given(st.sampled_from(_NAMES), st.randoms(use_true_random=False), st.sampled_from([0.1, 0.3, 0.6]))
def test_taking_evidence_away_never_accuses_an_innocent_rank(name: str, chance: random.Random, share: float) -> None:
    found = _evidence(name)
    ranks = tuple(_thinned(rank, chance, share) for rank in found.ranks if chance.random() > share / 2)
    nodes = found.nodes if chance.random() > share else ()
    verdict = judge(msgspec.structs.replace(found, ranks=ranks, nodes=nodes)).verdicts[0]
    if verdict.confidence != "possible":
        assert set(verdict.culprits) <= _guilty(name)


def _thinned(rank: RankEvidence, chance: random.Random, share: float) -> RankEvidence:
    has_log = chance.random() > share
    return msgspec.structs.replace(
        rank,
        recorders=tuple(item for item in rank.recorders if chance.random() > share),
        stacks=tuple(item for item in rank.stacks if chance.random() > share),
        processes=tuple(item for item in rank.processes if chance.random() > share),
        log=rank.log if has_log else (),
        log_events=rank.log_events if has_log else (),
    )


@_settings
@given(st.sampled_from(_NAMES), st.integers(0, 3))
def test_a_rank_of_which_nothing_is_known_is_never_accused(name: str, hidden: int) -> None:
    found = _evidence(name)
    blank = RankEvidence(rank=hidden, host=None, pid=None)
    ranks = tuple(blank if rank.rank == hidden else rank for rank in found.ranks)
    verdict = judge(msgspec.structs.replace(found, ranks=ranks, nodes=())).verdicts[0]
    assert hidden not in verdict.culprits


def test_a_number_out_of_all_reason_costs_neither_memory_nor_the_verdict() -> None:
    steps = loop(world(3), 6)
    ranks = [
        Rank(rank, steps[: 12 - (rank == 2)], 11, frames=SLEEPS if rank == 2 else ()).evidence() for rank in range(3)
    ]
    spoiled = tuple(
        msgspec.structs.replace(
            recorder,
            operations=(
                *recorder.operations,
                msgspec.structs.replace(recorder.operations[-1], collective_seq_id=2**40),
            ),
        )
        for recorder in ranks[0].recorders
    )
    ranks[0] = msgspec.structs.replace(ranks[0], recorders=spoiled)
    verdict = judge(Evidence(3, "nccl", tuple(ranks), (), (), looks=2)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("not_entered", (2,))


def test_the_first_fact_is_the_wait_that_the_culprit_holds_up() -> None:
    """Ranks 0 and 2 wait too, in groups of their own, behind rank 3."""
    verdict = judge(load([_BUNDLES / "nccl-tp_dp"])).verdicts[0]
    assert verdict.culprits == (1,)
    assert "rank 3 waits" in verdict.because[0].fact


def _one_early_look() -> list[RankEvidence]:
    """Rank 3 sleeps, the others have waited for some steps, and nobody has looked twice."""
    steps = loop(world(4), 12)
    told = [Rank(r, (*steps, steps[0]), len(steps), looks=1).evidence() for r in range(3)]
    told.append(Rank(3, steps, frames=SLEEPS, looks=1).evidence())
    begun_ns = max(o.created_ns or 0 for rank in told for recorder in rank.recorders for o in recorder.operations)
    return [msgspec.structs.replace(rank, captured_at_ns=begun_ns + 2 * SECOND_NS) for rank in told]


@pytest.mark.parametrize(("dated", "culprits"), [(True, ()), (False, (3,))])
def test_one_look_at_a_wait_that_is_not_old_names_a_rank_only_where_somebody_else_dumped(
    dated: bool, culprits: tuple[int, ...]
) -> None:
    """A job that moves looks the same for a moment. torch writes dumps without a time, when it has waited in vain."""
    told = [rank if dated else msgspec.structs.replace(rank, captured_at_ns=None) for rank in _one_early_look()]
    verdict = judge(Evidence(4, "nccl", tuple(told), (), (), looks=1)).verdicts[0]
    assert (verdict.culprits, verdict.confidence == "certain") == (culprits, False)


@pytest.mark.parametrize("age_seconds", [2, 30])
def test_one_look_at_a_call_that_all_have_entered_is_stuck_only_if_it_is_old(age_seconds: int) -> None:
    steps = loop(world(4), 12)
    told = [Rank(r, steps, len(steps) - 1, looks=1).evidence() for r in range(4)]
    begun_ns = max(o.created_ns or 0 for rank in told for recorder in rank.recorders for o in recorder.operations)
    told = [msgspec.structs.replace(rank, captured_at_ns=begun_ns + age_seconds * SECOND_NS) for rank in told]
    verdict = judge(Evidence(4, "nccl", tuple(told), (), (), looks=1)).verdicts[0]
    assert verdict.cause == ("comm_stuck" if age_seconds > 3 else "undecided")


_C10D = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def _runs(rank: RankEvidence, active: bool) -> RankEvidence:
    stacks = (
        msgspec.structs.replace(
            look, threads=tuple(msgspec.structs.replace(thread, active=active) for thread in look.threads)
        )
        for look in rank.stacks
    )
    processes = (
        msgspec.structs.replace(
            look,
            threads=tuple(msgspec.structs.replace(t, cpu_ticks=100 + 400 * active * look.look) for t in look.threads),
        )
        for look in rank.processes
    )
    return msgspec.structs.replace(rank, stacks=tuple(stacks), processes=tuple(processes))


@pytest.mark.parametrize(
    ("state", "looks", "culprits"), [("R", (1,), ()), ("S", (2,), ()), ("R", (1, 2), (3,)), ("S", (1, 2), (3,))]
)
def test_of_stacks_of_one_moment_one_that_all_others_wait_for_may_come_and_is_not_named(
    state: str, looks: tuple[int, ...], culprits: tuple[int, ...]
) -> None:
    """All others wait for it, as in every step of a job that moves. A look is one, be it the second."""
    inside = (CodeFrame("all_reduce", _C10D, 3000), *SLEEPS[1:])
    told = [Rank(r, dumped=False, frames=inside, wchan="futex_do_wait").evidence() for r in range(3)]
    adam = CodeFrame("_single_tensor_adam", "/opt/venv/lib/python3.11/site-packages/torch/optim/adam.py", 500)
    frames, wchan = ((adam, *SLEEPS[1:]), None) if state == "R" else (SLEEPS, "hrtimer_nanosleep")
    told.append(_runs(Rank(3, dumped=False, frames=frames, state=state, wchan=wchan).evidence(), state == "R"))
    kept = [
        msgspec.structs.replace(
            rank,
            stacks=tuple(look for look in rank.stacks if look.look in looks),
            processes=tuple(look for look in rank.processes if look.look in looks),
        )
        for rank in told
    ]
    assert judge(Evidence(4, "nccl", tuple(kept), (), (), looks=max(looks))).verdicts[0].culprits == culprits


@pytest.mark.parametrize("dumped", [True, False])
def test_one_look_at_a_young_wait_of_no_more_than_half_of_the_ranks_names_nobody(dumped: bool) -> None:
    """Some come back from an evaluation before others. By stacks alone no wait has an age."""
    inside = (CodeFrame("all_reduce", _C10D, 3000), *SLEEPS[1:])
    told = [rank for rank in _one_early_look() if rank.rank in (0, 3)]
    stacks = Rank(0, frames=inside, looks=1).evidence().stacks
    told[0] = msgspec.structs.replace(told[0], stacks=stacks)
    if not dumped:
        told = [msgspec.structs.replace(rank, recorders=()) for rank in told]
    verdict = judge(Evidence(4, "nccl", tuple(told), (), (), looks=1)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("undecided", ()), verdict.summary


@_settings
@given(st.randoms(use_true_random=False), st.sampled_from([0.3, 0.6]))
def test_with_less_than_that_it_is_no_surer(chance: random.Random, share: float) -> None:
    ranks = tuple(_thinned(rank, chance, share) for rank in _one_early_look())
    verdict = judge(Evidence(4, "nccl", ranks, (), (), looks=1)).verdicts[0]
    assert verdict.confidence == "possible" or not verdict.culprits
