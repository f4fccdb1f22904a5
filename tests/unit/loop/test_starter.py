"""Children that wait to judge: who gets one."""

from pathlib import Path
from typing import cast

import pytest

from stallwatch.clock import Clock
from stallwatch.config import Config
from stallwatch.config_sections import DiagnosisSection
from stallwatch.loop.judging import JudgeRun
from stallwatch.loop.starter import ChildStarter
from stallwatch.model.incident import Incident
from stallwatch.model.snapshot import JobKey
from stallwatch.node.privileged_client import Privileged
from tests.unit.loop.fakes import node_clock


class FakeJudge:
    def __init__(self) -> None:
        self.alive = True
        self.bundle: Path | None = None
        self.cancelled = False
        self.expecting = False

    def expect(self) -> None:
        self.expecting = True

    def begin(self, bundle: Path) -> None:
        self.bundle = bundle

    def cancel(self) -> None:
        self.cancelled = True


class Node:
    def __init__(self) -> None:
        self.started: list[FakeJudge] = []
        self.clock = node_clock()
        self.free = 0.0
        self.starter = ChildStarter(Config(), self.clock, cast("Privileged", None), self.start, lambda: self.free)

    def start(self, limits: DiagnosisSection, clock: Clock) -> JudgeRun:
        self.started.append(FakeJudge())
        return cast("JudgeRun", self.started[-1])

    def ticks(self, count: int) -> None:
        for _ in range(count):
            self.starter.be_ready()
            self.clock.advance(1)

    def judge(self, owner: str) -> FakeJudge:
        incident = Incident("i-1", JobKey("job", "epoch", owner), "n", "open", "none", 0, 0, (), None, "/b")
        return cast("FakeJudge", self.starter.judge(incident))

    @property
    def waiting(self) -> list[FakeJudge]:
        return [one for one in self.started if one.bundle is None and not one.cancelled]


@pytest.fixture
def node() -> Node:
    return Node()


def test_one_waits_while_there_are_ranks(node: Node) -> None:
    node.ticks(3)
    (one,) = node.started
    assert node.judge("alice") is one
    assert one.bundle == Path("/b")


def test_where_cores_are_free_none_waits_until_something_is_looked_at(node: Node) -> None:
    node.free = 8.0
    node.ticks(3)
    assert node.started == []
    node.starter.expect()
    (one,) = node.started
    node.ticks(59)
    assert node.waiting == [one]
    node.ticks(2)
    assert node.waiting == []


def test_a_load_that_varies_starts_and_ends_none_each_time(node: Node) -> None:
    for free in (8.0, 4.0, 7.0):
        node.free = free
        node.ticks(10)
    assert node.started == []
    for free in (3.9, 4.0, 7.9, 5.0):
        node.free = free
        node.ticks(10)
    assert node.waiting == node.started and len(node.started) == 1
    node.free = 8.0
    node.ticks(10)
    assert node.waiting == []


def test_whose_incidents_are_many_leaves_the_last_that_waits_to_others(node: Node) -> None:
    node.ticks(1)
    node.judge("bob")
    node.ticks(1)
    (waits,) = node.waiting
    for _ in range(5):
        assert node.judge("bob") is not waits
    assert node.judge("alice") is waits


def test_whose_incidents_are_many_has_what_waits_beside_it(node: Node) -> None:
    node.ticks(1)
    node.judge("bob")
    node.ticks(2)
    first, second = node.waiting
    assert node.judge("bob") is second
    assert node.waiting == [first]


def test_when_nobody_has_had_one_for_a_while_one_waits_again(node: Node) -> None:
    node.ticks(1)
    node.judge("bob")
    node.ticks(5)
    assert len(node.waiting) == 2
    node.ticks(60)
    assert len(node.waiting) == 1
    node.starter.close()
    assert node.waiting == []


def test_one_that_has_died_waits_for_nobody(node: Node) -> None:
    node.ticks(1)
    node.started[0].alive = False
    assert node.judge("alice") is not node.started[0]


def test_who_waits_hears_that_something_is_looked_at(node: Node) -> None:
    node.ticks(1)
    (one,) = node.started
    assert not one.expecting, "what it would start is memory"
    node.starter.expect()
    assert one.expecting
