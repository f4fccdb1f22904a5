"""What a slow rank costs, in words."""

import pytest
from msgspec.structs import replace

from stallwatch.model.verdict import Slowness, cost_of
from stallwatch.outputs.headline import cost_share
from tests.unit.outputs.reports import verdict

COST = Slowness(0.06, 0.05, 0.07, 0.26, 80, 22.0)


def test_what_nobody_has_seen_the_job_without_costs_so_much_at_most() -> None:
    at_most = replace(COST, at_most=True)
    assert cost_of(COST).startswith("each step takes 0.26 s, 0.06 s longer than if all ranks were as fast (+30 %;")
    assert "0.26 s, at most 0.06 s longer than if all ranks were as fast (at most +30 %;" in cost_of(at_most)
    assert [cost_share(verdict(slowness=one)) for one in (COST, at_most)] == [" +30%", " up to +30%"]


@pytest.mark.parametrize(("cost_seconds", "share"), [(0.24, "92%"), (0.26, "100%"), (0.3, "100%")])
def test_a_bound_that_tells_nobody_what_the_job_loses_is_not_printed(cost_seconds: float, share: str) -> None:
    """Of a host that ran ahead of its device, seen from its first steps on, "at most +700 %" was told of +30 %, and
    +0 % where the others waited all the time, which is less than people want to know of."""
    bound = replace(COST, cost_seconds=cost_seconds, at_most=True)
    said = f"{cost_of(bound)} {cost_share(verdict(slowness=bound))}"
    assert "+" not in said
    assert f"({share}) the others wait for it; how long one is without that nobody has seen" in said
    assert said.endswith(f", waited for {share} of each step")
    assert bound.share > 1.5
    known = replace(bound, at_most=False)
    assert "+" in cost_of(known) and not known.says_little
