"""What hangs cost, counted tick by tick."""

import msgspec
import pytest

from stallwatch.incidents.cost import Cost
from stallwatch.model.incident import Incident
from stallwatch.model.verdict import Slowness
from tests.unit.outputs.reports import JOB, diagnosis, finding, incident, verdict, view

SECOND_NS = 1_000_000_000
GPUS = tuple(view(rank, gpu_uuid=f"GPU-{rank}") for rank in range(4))
HANG = incident(since_ns=90 * SECOND_NS, findings=(finding(detector="stall"),))


def seconds(cost: Cost) -> dict[str, float]:
    return {one.cause: round(one.seconds, 6) for one in cost.totals}


def watched(*ticks: tuple[int, tuple[Incident, ...]]) -> Cost:
    cost = Cost().step(GPUS, (), {}, 50 * SECOND_NS)
    for at, incidents in ticks:
        cost = cost.step(GPUS, incidents, {}, at * SECOND_NS)
    return cost


def test_a_hang_counts_from_when_the_job_began_to_stand_until_it_ends() -> None:
    over = msgspec.structs.replace(HANG, state="resolved")
    assert seconds(watched((100, (HANG,)))) == {"not_entered": 40.0}  # 10 s that four GPUs stood
    assert seconds(watched((100, (HANG,)), (105, (HANG,)), (200, (over,)))) == {"not_entered": 60.0}


def test_what_stood_before_the_daemon_came_is_not_its_to_count() -> None:
    late = Cost().step(GPUS, (HANG,), {}, 100 * SECOND_NS)
    assert seconds(late.step(GPUS, (HANG,), {}, 101 * SECOND_NS)) == {"not_entered": 4.0}


def test_of_a_slow_rank_the_part_counts_that_is_lost() -> None:
    slowness = Slowness(0.05, 0.04, 0.06, 0.25, 100, 25.0)  # a step of 0.25 s would take 0.2 s without it
    report = diagnosis(verdict(cause="slow_rank", slowness=slowness))
    slow = incident(since_ns=90 * SECOND_NS, report=report, findings=(finding(detector="slow"),))
    assert seconds(watched((100, (slow,)))) == {"slow_rank": 8.0}  # a fifth of 40


def test_of_a_bound_that_says_little_nothing_counts_as_lost() -> None:
    bound = Slowness(0.24, 0.23, 0.25, 0.25, 100, 25.0, at_most=True)
    report = diagnosis(verdict(cause="slow_rank", slowness=bound))
    slow = incident(since_ns=90 * SECOND_NS, report=report, findings=(finding(detector="slow"),))
    assert seconds(watched((100, (slow,)))) == {}


@pytest.mark.parametrize("cause", ["waiting", "healthy", "job_ended"])
def test_what_is_no_fault_costs_nothing(cause: str) -> None:
    calm = msgspec.structs.replace(HANG, report=diagnosis(verdict(cause=cause)))
    assert watched((100, (calm,))).totals == ()


def test_two_ranks_on_a_gpu_are_one_gpu_and_a_node_without_counts_nothing() -> None:
    for views, expected in (
        ((view(0, gpu_uuid="a"), view(1, gpu_uuid="a")), {"not_entered": 10.0}),
        ((view(0, gpu_uuid=None),), {}),
    ):
        cost = Cost().step(views, (), {}, 50 * SECOND_NS).step(views, (HANG,), {}, 100 * SECOND_NS)
        assert seconds(cost) == expected


def test_a_job_is_named_as_its_other_metrics_are() -> None:
    cost = Cost().step(GPUS, (), {}, 0).step(GPUS, (HANG,), {JOB: "llama-7b#1"}, 100 * SECOND_NS)
    assert cost.totals[0].training_job == "llama-7b#1"
