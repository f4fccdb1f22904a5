"""Two nodes' daemons' sides over a real directory, each through children of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stallwatch.errors import UsageError
from stallwatch.fleet.link import Link
from stallwatch.fleet.node_word import encode_word
from stallwatch.fleet.orders import News, Order
from stallwatch.fleet.place_settings import Settings
from stallwatch.fleet.position import Local, Position
from stallwatch.fleet.try_place import try_place
from stallwatch.model.incident import OutputTold, Told
from tests.chaos.fleet_story import scene, word_of

SECONDS = 60.0
JOB = "train-0a1b2c3d"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "key").write_text("a secret of at least sixteen bytes")
    (tmp_path / "meeting").mkdir(mode=0o700)
    return Settings(f"file://{tmp_path / 'meeting'}", key_file=str(tmp_path / "key"))


class Node:
    def __init__(self, number: int, settings: Settings) -> None:
        self.link = Link(settings, f"node{number}")
        report, summary = scene(2, 3, "stopped")[number][0], encode_word(word_of(2, 3, "stopped", number))
        self.local = Local(f"{JOB}-1", JOB, 4, (2 * number, 2 * number + 1), 1, report, summary, number == 1, Told())

    def step(self) -> Position:
        return self.link.step(time.monotonic_ns(), [self.local])[self.local.incident_id]

    def tells(self) -> None:
        told = Told({"slack": OutputTold(("told",), "process_stopped 3")})
        self.local = Local(**{name: getattr(self.local, name) for name in Local.__struct_fields__} | {"told": told})


@pytest.fixture
def nodes(settings: Settings) -> Iterator[list[Node]]:
    made = [Node(number, settings) for number in range(2)]
    yield made
    for node in made:
        node.link.close()


def until(nodes: list[Node], condition: Callable[[list[Position]], bool], what: str) -> list[Position]:
    end = time.monotonic() + SECONDS
    while True:
        positions = [node.step() for node in nodes]
        if condition(positions):
            return positions
        assert time.monotonic() < end, f"{what}: {positions}, {[node.link.problem for node in nodes]}"
        time.sleep(0.02)


def test_two_nodes_come_to_one_verdict_which_one_of_them_tells_and_both_show(nodes: list[Node]) -> None:
    found = until(nodes, lambda now: all(p.report and p.nodes == 2 for p in now), "the job's verdict on both nodes")
    assert [p.speaks for p in found] == [False, True], "the node with the proof"
    assert found[0].why == "node1 tells of it"
    reports = [p.report for p in found]
    assert reports[0] is not None and reports[1] is not None
    assert {r.verdicts[0].culprits for r in reports if r} == {(3,)}
    nodes[1].tells()
    found = until(nodes, lambda now: now[0].told is not None, "what was told is known to the other node")
    assert found[0].told == Told({"slack": OutputTold(("told",), "process_stopped 3")})


def test_what_is_said_on_one_node_for_all_is_heard_on_the_other(nodes: list[Node]) -> None:
    wall_ns, now_ns = time.time_ns(), time.monotonic_ns()
    nodes[0].link.book.give(Order("mode", mode="shadow", by="anna"), 600.0, wall_ns, now_ns)
    heard: list[News] = []

    def is_heard(positions: list[Position]) -> bool:
        heard.extend(nodes[1].link.news())
        return bool(heard)

    until(nodes, is_heard, "the mode on the other node")
    assert [(order.mode, order.by, order.node) for order, _ in heard] == [("shadow", "anna", "node0")]


def test_a_child_that_ends_costs_an_exchange_and_no_more(nodes: list[Node]) -> None:
    until(nodes, lambda now: all(p.ordinal for p in now), "both have joined")
    child = nodes[0].link._worker.pid
    assert child is not None
    os.kill(child, signal.SIGKILL)
    until(nodes, lambda now: nodes[0].link._worker.pid not in (None, child), "another child")
    until(nodes, lambda now: all(p.report for p in now), "the job's verdict on both nodes")


def test_a_place_that_can_be_used_passes_the_trial_and_one_that_cannot_says_why(settings: Settings) -> None:
    try_place(settings, "n0")
    Path(settings.url.removeprefix("file://")).chmod(0o755)
    with pytest.raises(UsageError, match="mode 0700") as refused:
        try_place(settings, "n0")
    assert "install -d" in refused.value.help


def test_a_key_that_is_not_there_or_no_secret_is_said(settings: Settings) -> None:
    Path(settings.key_file).write_text("short")
    with pytest.raises(UsageError, match="no secret"):
        try_place(settings, "n0")
    Path(settings.key_file).unlink()
    with pytest.raises(UsageError, match="key_file"):
        try_place(settings, "n0")


def test_where_no_meeting_place_is_set_nothing_of_it_is_imported() -> None:
    program = "import sys, stallwatch.cli.daemon, stallwatch.cli.spare_judge; " + (
        "print(*[name for name in sys.modules if name.startswith(('stallwatch.fleet', 'redis'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
