import queue
from collections.abc import Iterator

import msgspec
import pytest

from stallwatch.outputs.deadman import Deadman
from stallwatch.outputs.delivery import Delivered, Later
from tests.builders.clock import FakeClock
from tests.unit.outputs.notifier_bench import WAIT, FakePoster
from tests.unit.outputs.reports import node_report


class Switch:
    def __init__(self) -> None:
        self.clock, self.poster = FakeClock(), FakePoster()
        self.output = Deadman(self.poster, self.clock, 60.0)
        self.output.start()

    def sign(self) -> dict[str, object]:
        return msgspec.json.decode(self.poster.attempts.get(timeout=WAIT), type=dict[str, object])


@pytest.fixture
def switch() -> Iterator[Switch]:
    made = Switch()
    yield made
    made.output.close(WAIT)


def test_while_the_loop_publishes_there_is_a_sign_a_minute_and_a_loop_that_hangs_gives_none(switch: Switch) -> None:
    switch.poster.answers.put(Delivered("ok"))
    for _ in range(5):
        switch.output.publish(node_report())
        switch.clock.advance(10)
    assert switch.sign() == {"node": "gpu-node-17", "tick": 7, "ranks": 4}
    switch.clock.advance(600)
    with pytest.raises(queue.Empty):
        switch.poster.attempts.get(timeout=0.05)
    switch.poster.answers.put(Delivered("ok"))
    switch.output.publish(node_report())
    assert switch.sign()["tick"] == 7


def test_a_sign_that_does_not_arrive_is_a_problem_until_one_does(switch: Switch) -> None:
    """The next attempt begins when what became of the one before is noted."""
    for outcome, problem in (
        (Later("500"), None),
        (Delivered("ok"), "no sign of life sent: 500"),
        (Delivered("ok"), None),
    ):
        switch.output.publish(node_report())
        switch.sign()
        assert switch.output.problem() == problem
        switch.poster.answers.put(outcome)
        switch.clock.advance(60)
