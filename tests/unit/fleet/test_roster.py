"""A node that signs with another key is seen before anything stands, on each side."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stallwatch.clock import SECOND_NS
from stallwatch.encoding import msgpack_of
from stallwatch.errors import UsageError
from stallwatch.fleet.child import PlaceRequest, Talker
from stallwatch.fleet.directory_place import DirectoryPlace
from stallwatch.fleet.place import GREET_SECONDS, GREETED_SECONDS, MOST_ALIKE, Key, MeetingPlace
from stallwatch.fleet.place_settings import Settings
from stallwatch.fleet.roster import (
    DaemonId,
    Greeting,
    RosterSeat,
    RosterSeen,
    Stranger,
    apart_of,
    doubled_in,
    exchange_roster,
    this_boot,
    this_daemon,
)
from stallwatch.fleet.seal import key_id
from stallwatch.fleet.try_place import try_place
from tests.unit.fleet.memory_place import MemoryPlace
from tests.unit.fleet.test_place import Hand, connect, needs_redis

ONE, OTHER = b"the key of one side", b"the key of the other"
JOB = "train-0a1b2c3d"
OfKey = Callable[[bytes], MeetingPlace]


@pytest.fixture(params=["memory", "directory", pytest.param("redis", marks=needs_redis)])
def of_key(request: pytest.FixtureRequest, tmp_path: Path) -> OfKey:
    """The place as who signs with a key sees it."""
    if request.param == "memory":
        memory = MemoryPlace(Hand())
        return lambda secret: memory.of_key(key_id(secret))
    if request.param == "directory":
        tmp_path.chmod(0o700)

        def in_directory(secret: bytes) -> MeetingPlace:
            place = DirectoryPlace(tmp_path, key=key_id(secret))
            place.check()
            return place

        return in_directory
    url = request.getfixturevalue("server")
    connect(url)._client.flushall()
    return lambda secret: connect(url, key=key_id(secret))


def met(of_key: OfKey, secret: bytes, node: str = "", *jobs: tuple[str, int]) -> RosterSeen:
    return exchange_roster(of_key(secret), secret, Greeting(node, jobs))


def test_each_side_sees_who_signs_with_another_key_and_whose_jobs_those_are(of_key: OfKey) -> None:
    met(of_key, ONE, "node-a", (JOB, 0))
    met(of_key, OTHER, "node-b", (JOB, 8))
    assert met(of_key, ONE, "node-c").strangers == (Stranger("node-b", key_id(OTHER), ((JOB, 8),)),)
    seen = met(of_key, OTHER, "node-b", (JOB, 8))
    assert {one.node for one in seen.strangers} == {"node-a", "node-c"}
    assert (seen.alike, met(of_key, ONE).alike) == ((), ("node-a", "node-c"))
    assert key_id(ONE) in seen.problem() and "node-a, node-c sign with another key" in seen.problem()


def test_who_takes_the_others_key_is_a_stranger_no_more(of_key: OfKey) -> None:
    met(of_key, ONE, "node-a")
    met(of_key, OTHER, "node-b")
    met(of_key, ONE, "node-b")
    assert met(of_key, ONE, "node-a") == RosterSeen(key_id(ONE), ("node-b",))


def test_all_who_are_there_are_known_while_they_can_be_listed(of_key: OfKey) -> None:
    met(of_key, OTHER, "node-z")
    for number in range(12):
        met(of_key, ONE, f"node-{number:02}")
    known = met(of_key, ONE, "node-00").known
    assert sorted(known) == [*(f"node-{number:02}" for number in range(1, 12)), "node-z"]
    assert RosterSeen("aa", tuple(map(str, range(MOST_ALIKE)))).known == ()


def test_who_says_nothing_any_more_has_gone() -> None:
    hand = Hand()
    memory = MemoryPlace(hand)
    met(lambda secret: memory.of_key(key_id(secret)), OTHER, "node-b")
    hand.seconds += GREETED_SECONDS + 1
    assert met(lambda secret: memory.of_key(key_id(secret)), ONE, "node-a").strangers == ()


def test_nor_is_it_there_in_a_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    one, other = (DirectoryPlace(tmp_path, key=key) for key in ("aa", "bb"))
    for place, node in ((one, "node-a"), (other, "node-b")):
        place.check()
        place.greet(node, b"")
    long_ago = time.time() - GREETED_SECONDS - 1
    os.utime(tmp_path / ".nodes/bb/node-b", (long_ago, long_ago))
    assert [guest.node for guest in one.greet("node-a", b"")] == ["node-a"]


def test_sides_share_nothing_so_that_nobody_waits_for_a_claim_that_he_cannot_believe(of_key: OfKey) -> None:
    ones, others = of_key(ONE), of_key(OTHER)
    key = Key(JOB, ones.join(JOB, "node-a"))
    assert others.join(JOB, "node-b") == key.ordinal
    assert (ones.claim(key, "node-a"), others.claim(key, "node-b")) == (1, 1)
    ones.put(key, "node-a", b"a")
    assert others.summaries(key) == {}
    ones.post("mode", b"off", 60, anew=True)
    assert others.posted("")[1] in ([], None)


@pytest.mark.parametrize("word", [b"", b"\xc1", msgpack_of("x"), msgpack_of([["a", "b"]]), msgpack_of([[1, 2]] * 9)])
def test_what_a_stranger_says_of_its_jobs_may_be_anything(word: bytes) -> None:
    memory = MemoryPlace(Hand())
    memory.of_key("bb").greet("node-b", word)
    assert exchange_roster(memory.of_key(key_id(ONE)), ONE, Greeting("node-a")).strangers == (Stranger("node-b", "bb"),)


def test_only_nodes_of_the_job_are_lacking_in_its_verdict_and_the_side_of_the_lowest_rank_is_known() -> None:
    strangers = (Stranger("node-b", "bb", ((JOB, 4),)), Stranger("node-z", "cc", (("other", 0),)))
    seen = RosterSeen("aa", (), strangers)
    apart = apart_of(JOB, (8, 9), seen)
    assert apart is not None
    assert (apart.nodes, apart.lower) == (("node-b",), True)
    assert "node-b signs with another key" in apart.why
    first = apart_of(JOB, (0, 1), seen)
    assert first is not None and not first.lower
    assert apart_of("third", (0, 1), seen) is None


def test_it_is_said_at_once_when_a_job_comes_and_every_so_often() -> None:
    seat = RosterSeat("node-a")
    asked = [second for second in range(60) if seat.wish(second * SECOND_NS) == Greeting("node-a")]
    assert asked == [0, 5, 10, 30, 50]
    seat.jobs = ((JOB, 0),)
    assert seat.wish(60 * SECOND_NS) == Greeting("node-a", ((JOB, 0),))
    assert seat.wish(61 * SECOND_NS) is None
    assert seat.wish(int((60 + GREET_SECONDS) * SECOND_NS)) is not None


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "key").write_bytes(ONE)
    (tmp_path / "meeting").mkdir(mode=0o700)
    return Settings(f"file://{tmp_path / 'meeting'}", key_file=str(tmp_path / "key"))


def test_another_key_in_the_file_is_taken_without_a_restart(settings: Settings) -> None:
    talker = Talker()
    for secret in (ONE, OTHER):
        Path(settings.key_file).write_bytes(secret)
        seen = talker.answer(PlaceRequest(settings, "greet", greeting=Greeting("node-a"))).roster
        assert seen is not None and seen.key == key_id(secret)
    assert seen is not None and seen.strangers == (), "what this node said with the key before is gone"


@needs_redis
def test_another_password_in_the_file_is_tried_without_a_restart(server: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(ONE)
    password = tmp_path / "password"
    talker, admin = Talker(), connect(server)
    settings = Settings(server, password_file=str(password), key_file=str(tmp_path / "key"))
    admin._client.config_set("requirepass", "right")
    try:
        said = []
        for word in ("right", "wrong", "right"):
            password.write_text(word)
            said.append(talker.answer(PlaceRequest(settings, "greet", greeting=Greeting("node-a"))).advice)
    finally:
        connect(server, password="right")._client.config_set("requirepass", "")
    assert said == ["", "See fleet.username and fleet.password_file.", ""]


def test_a_trial_says_who_signs_with_another_key_and_fails_where_nobody_signs_alike(settings: Settings) -> None:
    Path(settings.key_file).chmod(0o400)
    assert try_place(settings, "node-a") == ([], f"well: {settings.url}, with no other node yet")
    place = DirectoryPlace(Path(settings.url.removeprefix("file://")), key=key_id(OTHER))
    place.check()
    place.greet("node-b", b"")
    with pytest.raises(UsageError, match="node-b signs with another key"):
        try_place(settings, "node-a")
    DirectoryPlace(Path(settings.url.removeprefix("file://")), key=key_id(ONE)).greet("node-c", b"")
    (warning,) = try_place(settings, "node-a").warnings
    assert "node-b signs with another key" in warning


def life(token: str, host: str = "h", machine: str = "m") -> DaemonId:
    return DaemonId(token, machine, host, "10.0.0.5", 1_800_000_000 * SECOND_NS)


class Living:
    """A daemon that says every 20 s who it is."""

    def __init__(self, of_key: OfKey, daemon: DaemonId, secret: bytes = ONE) -> None:
        self.seat = RosterSeat("node-a", daemon)
        self._of_key, self._secret = of_key, secret

    def greet(self, seconds: int) -> None:
        greeting = self.seat.wish(seconds * SECOND_NS)
        if greeting is not None:
            seen = exchange_roster(self._of_key(self._secret), self._secret, greeting)
            self.seat.heard(seen, seconds * SECOND_NS, seconds * SECOND_NS)


@pytest.mark.parametrize("secret", [ONE, OTHER])
def test_two_machines_of_one_name_are_known_to_both_until_one_has_another(of_key: OfKey, secret: bytes) -> None:
    one, two = Living(of_key, life("1", "host-1")), Living(of_key, life("2", "host-2"), secret)
    one.seat.jobs = two.seat.jobs = ((JOB, 0),)
    for second in range(60):
        one.greet(second)
        two.greet(second)
    for seat, other in ((one.seat, "host-2"), (two.seat, "host-1")):
        problem, mend = seat.problem()
        assert f"another machine calls itself node-a too (host {other} 10.0.0.5, since 2027-01-15 08:00:00" in problem
        assert "daemon.node" in mend
        assert problem == doubled_in(JOB, "node-a", seat.seen)
        assert doubled_in("of one of them alone", "node-a", seat.seen) == ""
    for second in range(60, 200):
        one.greet(second)
    assert one.seat.problem() == ("", "")


def test_a_daemon_that_is_started_again_is_no_other_machine_though_a_request_of_the_one_before_was_on_its_way(
    of_key: OfKey,
) -> None:
    before, after = Living(of_key, life("1")), Living(of_key, life("2"))
    for second in range(30):
        before.greet(second)
    after.greet(31)
    before.greet(50)
    for second in range(51, 200):
        after.greet(second)
        assert after.seat.problem() == ("", "")


def test_a_node_that_has_gone_is_named_with_when_it_was_there_last() -> None:
    seat = RosterSeat("node-a")
    for second, alike in enumerate([("node-b", "node-c"), ("node-b", "node-c"), ("node-c",), ()]):
        seat.heard(RosterSeen("aa", alike), second * SECOND_NS, (1_800_000_000 + second) * SECOND_NS)
        if second == 2:
            assert seat.seen is not None
            said = "well: redis://h, with node-c; node-b was here until 2027-01-15 07:58:52 UTC"
            assert seat.seen.well("redis://h") == said
    assert seat.seen is not None and "with no other node now; node-b was here until" in seat.seen.well("redis://h")
    seat.heard(RosterSeen("aa", ("node-b",)), 9 * SECOND_NS, 1_800_000_009 * SECOND_NS)
    assert seat.seen.gone == (("node-c", (1_800_000_000 + 3 - 70) * SECOND_NS),)


@pytest.mark.parametrize(("machine", "knows"), [("another boot", None), (this_boot(), life("2", "host-2"))])
def test_a_trial_fails_where_another_machine_has_the_name_of_this_node(
    settings: Settings, machine: str, knows: DaemonId | None
) -> None:
    place = DirectoryPlace(Path(settings.url.removeprefix("file://")), key=key_id(ONE))
    place.check()
    exchange_roster(place, ONE, Greeting("node-a", daemon=life("1", "host-2", machine), namesake=knows))
    with pytest.raises(UsageError, match=r"another machine calls itself node-a too \(host host-2"):
        try_place(settings, "node-a")
    assert try_place(settings, "node-b").well.endswith("with node-a")


def test_a_trial_beside_the_daemon_of_this_node_finds_no_other_machine(settings: Settings) -> None:
    place = DirectoryPlace(Path(settings.url.removeprefix("file://")), key=key_id(ONE))
    place.check()
    exchange_roster(place, ONE, Greeting("node-a", daemon=this_daemon()))
    assert try_place(settings, "node-a").warnings == []
