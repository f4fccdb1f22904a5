"""A GPU whose driver gives it up, as NVML tells at the look."""

from typing import Any

import msgspec
import pytest

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import NodeEvidence
from tests.builders.job import Rank, evidence, loop, world
from tests.builders.node import gpu_of

STEPS = loop(world(4), 6)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"unavailable": "GPU is lost"}, "GPU is lost"),
        ({"recovery_action": 2}, "asks for recovery action 2"),
        ({"unavailable": "utilisation is Not Supported"}, ""),
        ({"recovery_action": 0}, ""),
    ],
)
def test_a_gpu_that_its_driver_gives_up_is_a_fault_of_the_rank_that_uses_it(fields: dict[str, Any], said: str) -> None:
    """What a device does not support is no fault of it."""
    gpus = [gpu_of(i, utilization_percent=100.0, power_watts=170.0 + i % 2, compute_pids=(1000 + i,)) for i in range(4)]
    gpus[1] = msgspec.structs.replace(gpus[1], **fields)
    node = NodeEvidence("node0", (0, 1, 2, 3), (tuple(gpus),))
    waiting = [Rank(rank, (*STEPS, STEPS[0]), len(STEPS)) for rank in range(4)]
    verdict = judge(evidence(*waiting, nodes=(node,))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == (("gpu_fault", (1,)) if said else ("comm_stuck", ()))
    assert said in verdict.because[0].fact


@pytest.mark.parametrize(
    ("percents", "culprits"),
    [
        ((18.182, 0.758, 18.182, 18.182), (1,)),  # an endless kernel of one block
        ((18.182, 18.182, 96.6, 18.182), (2,)),  # a matrix product
        ((18.182, 18.182, 18.182, 18.182), None),
        ((18.182, 18.0, 18.3, 18.182), None),
        ((18.182, 0.758, 0.758, 18.182), None),  # no majority
        ((18.182, 0.758, 12.0, 18.182), None),
        ((18.182, None, 18.182, 18.182), None),
        ((18.182, 0.758, None, 18.182), None),
    ],
)
def test_the_gpu_that_occupies_other_multiprocessors_than_those_in_the_collective_runs_something_else(
    percents: tuple[float | None, ...], culprits: tuple[int, ...] | None
) -> None:
    """All ranks have issued it; that of one lies behind a kernel that does not end."""
    gpus = [
        gpu_of(i, utilization_percent=100, power_watts=122.0, multiprocessors_percent=percent)
        for i, percent in enumerate(percents)
    ]
    node = NodeEvidence("node0", (0, 1, 2, 3), (tuple(gpus),))
    waiting = [Rank(rank, (*STEPS, STEPS[0]), len(STEPS)) for rank in range(4)]
    verdict = judge(evidence(*waiting, nodes=(node,))).verdicts[0]
    if culprits is None:
        assert (verdict.cause, verdict.culprits) == ("comm_stuck", ())
    else:
        assert (verdict.cause, verdict.culprits, verdict.confidence) == ("gpu_kernel_stuck", culprits, "likely")
        assert "of its multiprocessors, those of the others 18.2" in verdict.because[0].fact


def test_what_a_gpu_occupies_tells_nothing_where_another_program_is_on_it() -> None:
    gpus = [
        gpu_of(i, utilization_percent=100, power_watts=122.0, multiprocessors_percent=0.758 if i == 1 else 18.182)
        for i in range(4)
    ]
    gpus[1] = msgspec.structs.replace(gpus[1], compute_pids=(1001, 77))
    node = NodeEvidence("node0", (0, 1, 2, 3), (tuple(gpus),))
    waiting = [Rank(rank, (*STEPS, STEPS[0]), len(STEPS)) for rank in range(4)]
    assert judge(evidence(*waiting, nodes=(node,))).verdicts[0].cause == "comm_stuck"
