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
