"""What the daemon's side says of a meeting place that cannot be used."""

import os
import socket
from types import SimpleNamespace

import msgspec
import pytest

from stallwatch.fleet.exchange import Seen
from stallwatch.fleet.link import Link
from stallwatch.fleet.settings import Settings
from stallwatch.node.frames import pack


@pytest.mark.parametrize(
    ("problem", "advice"),
    [("redis://h refuses", "Is it up?"), ("It refuses.", "Start it."), ("It refuses", ""), ("It refuses.", "")],
)
def test_a_problem_and_its_advice_are_sentences_with_one_stop_between_them(problem: str, advice: str) -> None:
    ours, theirs = socket.socketpair()
    child = SimpleNamespace(
        pid=os.getpid(), returncode=0, poll=lambda: 0, wait=lambda timeout=None: 0, terminate=bool, kill=bool
    )
    link = Link(Settings("redis://h"), "n0", lambda: SimpleNamespace(child=child, channel=ours))
    try:
        link.step(0, ())
        theirs.sendall(pack(msgspec.msgpack.encode(Seen(problem=problem, advice=advice))))
        link.step(1, ())
        assert link.problem == ". ".join(filter(None, (problem.rstrip("."), advice.rstrip("."))))
    finally:
        link.close()
        theirs.close()
