"""What a slow rank costs, in words."""

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
