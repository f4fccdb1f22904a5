"""What the daemon's side says of a meeting place that cannot be used."""

import contextlib
import os
import socket
from types import SimpleNamespace

import msgspec
import pytest

from stallwatch.clock import SECOND_NS
from stallwatch.encoding import Unpacker, pack
from stallwatch.fleet.child import PlaceRequest
from stallwatch.fleet.exchange import Seen, Wish, exchange
from stallwatch.fleet.judge_handle import JudgeHandle
from stallwatch.fleet.link import Link
from stallwatch.fleet.member import Member
from stallwatch.fleet.place import MOST_BYTES, Key
from stallwatch.fleet.place_settings import Settings
from stallwatch.fleet.position import Local
from stallwatch.model.incident import OutputTold, Step, Told
from tests.chaos.fleet_story import scene
from tests.unit.fleet.memory_place import MemoryPlace

JOB = "train-0a1b2c3d"


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


def test_an_incident_of_which_nothing_came_is_left_and_the_jobs_next_is_another() -> None:
    """What a node said in it (the start of a job, say) must not be heard when the job stands the next time."""
    ours, theirs = socket.socketpair()
    child = SimpleNamespace(
        pid=os.getpid(), returncode=0, poll=lambda: 0, wait=lambda timeout=None: 0, terminate=bool, kill=bool
    )
    place, asked = MemoryPlace(lambda: 0.0), []
    link = Link(Settings("redis://h"), "n0", lambda: SimpleNamespace(child=child, channel=ours), judge=_no_judge)
    theirs.setblocking(False)
    unpacker = Unpacker(1 << 20)

    def run(now: float, *locals_: Local) -> None:
        for step in range(8):
            link.step(int((now + step / 10) * SECOND_NS), locals_)
            with contextlib.suppress(BlockingIOError):
                for message in unpacker.feed(theirs.recv(1 << 16)):
                    request = msgspec.msgpack.decode(message, type=PlaceRequest)
                    seen = Seen()
                    if request.wish is not None:
                        asked.append(request.wish)
                        seen = exchange(place, b"sixteen bytes or more", request.wish)
                    theirs.sendall(pack(msgspec.msgpack.encode(seen)))

    report, summary = scene(2, 3, "sleeps")[0]
    one = Local("a-1", JOB, 4, (0, 1), 1, report, summary, False, Told())
    try:
        run(0, one)
        place.join(JOB, "n1")  # cut off since: it neither leaves nor looks on
        place.put(Key(JOB, 1), "n1", b"old")
        run(10)
        assert asked[-1].leaves
        run(20, msgspec.structs.replace(one, incident_id="a-2"))
        assert list(place.summaries(Key(JOB, 1))) == ["n1"]
        assert list(place.summaries(Key(JOB, 2))) == ["n0"]
    finally:
        link.close()
        theirs.close()


def _no_judge(question: object) -> JudgeHandle:
    raise OSError(1, "none here")


def test_one_that_was_told_goes_on_so_that_it_is_told_once() -> None:
    place = MemoryPlace(lambda: 0.0)
    secret = b"sixteen bytes or more"
    first = exchange(place, secret, Wish(JOB, "n0", claims=True, told=Told()))
    assert place.mark(Key(JOB, first.ordinal), 1, "told", b"x")
    assert exchange(place, secret, Wish(JOB, "n0", past=first.ordinal)).ordinal == first.ordinal


@pytest.mark.parametrize(
    ("slack", "webhook", "is_over"),
    [
        (("told", "ended"), ("told", "ended"), True),
        (("told", "resolved"), (), True),
        (("told", "escalated"), ("told", "ended"), False),
    ],
)
def test_a_job_that_was_ended_and_begun_anew_under_the_same_name_has_an_incident_of_its_own(
    slack: tuple[Step, ...], webhook: tuple[Step, ...], is_over: bool
) -> None:
    """By hand, on the same nodes, at the same address. Where its end is told, who took part in the incident and comes
    with one is of the next life, of which nobody has heard."""
    place, secret = MemoryPlace(lambda: 0.0), b"sixteen bytes or more"
    first = exchange(place, secret, Wish(JOB, "n0", claims=True))
    told = Told({"slack": OutputTold(slack, "x", ""), "webhook": OutputTold(webhook, "x", "")})
    assert exchange(place, secret, Wish(JOB, "n0", first.ordinal, generation=1, told=told)).told_noted
    again = exchange(place, secret, Wish(JOB, "n0", past=first.ordinal))
    assert (again.ordinal, again.told is None) == (first.ordinal + is_over, is_over)
    assert exchange(place, secret, Wish(JOB, "n1", past=first.ordinal)).ordinal == again.ordinal
    assert exchange(place, secret, Wish(JOB, "n2")).ordinal == again.ordinal, "one that was not there before"


def test_what_was_told_is_noted_though_what_this_node_says_is_too_much_to_be_put() -> None:
    place, secret = MemoryPlace(lambda: 0.0), b"sixteen bytes or more"
    first = exchange(place, secret, Wish(JOB, "n0", claims=True))
    told = Told({"slack": OutputTold(("told",), "not_entered 3", "7")})
    wish = Wish(JOB, "n0", first.ordinal, generation=1, told=told, summary=os.urandom(MOST_BYTES))
    assert "cannot be put" in exchange(place, secret, wish).problem
    assert exchange(place, secret, Wish(JOB, "n1", first.ordinal)).told == told


@pytest.mark.parametrize(
    ("ranks", "suspects", "speaks"), [((4, 5), True, True), ((0, 1), False, True), ((4, 5), False, False)]
)
def test_who_can_share_nothing_of_a_job_tells_as_where_the_place_is_away(
    ranks: tuple[int, ...], suspects: bool, speaks: bool
) -> None:
    report, summary = scene(2, 3, "sleeps")[0]
    member = Member("node-a", 0)
    local = Local("a-1", JOB, 8, ranks, 1, report, summary, False, Told(), suspects=suspects, alone="two have its name")
    assert member.wish(SECOND_NS, local) is None
    position = member.position(SECOND_NS, local)
    assert (position.speaks, position.away, position.report) == (speaks, "two have its name", None)
    assert speaks or "two have its name" in position.why
    assert member.wish(2 * SECOND_NS, msgspec.structs.replace(local, alone="")) is not None
