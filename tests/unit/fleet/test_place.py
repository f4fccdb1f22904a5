"""What a meeting place promises: the one in memory, a directory, and a real server."""

import os
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stallwatch.fleet.directory_place import DirectoryPlace
from stallwatch.fleet.place import CLAIM_SECONDS, Key, Life, MeetingPlace, PlaceProblem, Published, Turn
from tests.builders.redis_server import SERVER
from tests.unit.fleet.memory_place import MemoryPlace

JOB = "train-0a1b2c3d"


def connect(url: str, username: str = "", password: str | None = None, key: str = "") -> Any:
    pytest.importorskip("redis")
    from stallwatch.fleet.redis_place import connect as connected

    return connected(url, username, password, "", key)


needs_redis = pytest.mark.skipif(SERVER is None, reason="redis-server is not installed")


class Hand:
    """The clock by which claims run out: the test's own; a server has its own, where a claim is made to run out."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


Run = Callable[[MeetingPlace, Key], None]


@pytest.fixture(params=["memory", "directory", pytest.param("redis", marks=needs_redis)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> MeetingPlace:
    if request.param == "memory":
        return MemoryPlace(Hand())
    if request.param == "directory":
        tmp_path.chmod(0o700)
        return DirectoryPlace(tmp_path, Hand())
    made: MeetingPlace = connect(request.getfixturevalue("server"))
    return made


@pytest.fixture
def job() -> str:
    return f"{JOB}-{secrets.token_hex(4)}"


def run_out(place: MeetingPlace, key: Key) -> None:
    """The claim's holder has not renewed it for long enough."""
    if isinstance(place, MemoryPlace | DirectoryPlace):
        hand = place._seconds if isinstance(place, MemoryPlace) else place._monotonic
        assert isinstance(hand, Hand)
        place.look(key, "watcher", whole=False)
        hand.seconds += CLAIM_SECONDS + 1
    else:
        client: Any = vars(place)["_client"]
        client.delete(f"stallwatch:{{{key.job}}}:{key.ordinal}:claim")


def test_it_can_be_tried(place: MeetingPlace) -> None:
    place.check()
    place.check()


def test_all_who_join_meet_in_the_same_incident(place: MeetingPlace, job: str) -> None:
    assert [place.join(job, node) for node in ("node0", "node1", "node0")] == [1, 1, 1]
    assert place.join(f"{job}-other", "node0") == 1


def test_after_its_end_the_next_is_opened(place: MeetingPlace, job: str) -> None:
    key = Key(job, place.join(job, "node0"))
    place.close(key)
    assert place.look(key, "node0", whole=False).closed
    assert place.join(job, "node1") == 2
    assert place.join(job, "node0") == 2


def test_the_last_who_leaves_ends_it(place: MeetingPlace, job: str) -> None:
    key = Key(job, place.join(job, "node0"))
    place.join(job, "node1")
    place.leave(key, "node0")
    assert not place.look(key, "node1", whole=False).closed
    place.leave(key, "node1")
    assert place.look(key, "node2", whole=False).closed
    assert place.join(job, "node0") == 2


# `seconds` below zero: such processes are younger than anything that is there.
@pytest.mark.parametrize("past", [0, 1])
def test_one_that_is_older_than_the_ranks_of_who_comes_is_left_as_it_is(
    place: MeetingPlace, job: str, past: int
) -> None:
    assert place.join(job, "node0", life=Life(60.0, begun=True)) == 1
    assert place.join(job, "node0", past, Life(-10.0, begun=True)) == 2
    assert place.join(job, "node1", 0, Life(0.5, begun=True)) == 2
    assert not place.look(Key(job, 1), "node0", whole=False).closed, "its end may be another's to tell"


def test_who_joins_later_is_no_other_life_for_it(place: MeetingPlace, job: str) -> None:
    assert [place.join(job, node, life=Life(age, begun=True)) for node, age in (("node0", 9.0), ("node1", 0.5))] == [
        1,
        1,
    ]
    assert place.join(job, "node2") == 1, "how old it is there is not known"


def test_a_job_that_has_not_begun_is_one_with_those_that_wait_for_it(place: MeetingPlace, job: str) -> None:
    """A node of a rendezvous may come minutes after the others."""
    assert place.join(job, "node0", life=Life(60.0, begun=False)) == 1
    assert place.join(job, "node1", life=Life(-10.0, begun=False)) == 1


def test_a_place_that_has_lost_all_gives_no_ordinal_that_was_there_before(place: MeetingPlace, job: str) -> None:
    assert place.join(job, "node0", 4) == 5
    assert place.join(job, "node1", 4) == 5
    place.close(Key(job, 5))
    assert place.join(job, "node0", 2) == 6


def test_who_looks_without_having_joined_is_told_so(place: MeetingPlace, job: str) -> None:
    key = Key(job, place.join(job, "node0"))
    assert place.look(key, "node0", whole=False).member
    lost = Key(job, 7) if isinstance(place, DirectoryPlace) else key
    assert not place.look(lost, "node1", whole=False).member


def test_how_long_a_node_has_put_nothing_is_told_by_the_places_own_clock(place: MeetingPlace, job: str) -> None:
    key = Key(job, 0)
    assert place.dated_summaries(key) == ({}, {})
    place.put(key, "node0", b"pace")
    summaries, ages = place.dated_summaries(key)
    assert (summaries, set(ages)) == ({"node0": b"pace"}, {"node0"})
    assert 0.0 <= ages["node0"] < 60.0


def test_a_summary_replaces_the_one_before_and_is_counted(place: MeetingPlace, job: str) -> None:
    key = Key(job, place.join(job, "node0"))
    place.put(key, "node0", b"first")
    before = place.look(key, "node0", whole=True).puts
    place.put(key, "node0", b"second")
    place.put(key, "node1", b"other")
    assert place.summaries(key) == {"node0": b"second", "node1": b"other"}
    assert place.look(key, "node0", whole=True).puts not in (0, before)


def test_one_of_many_claims(place: MeetingPlace, job: str) -> None:
    key = Key(job, place.join(job, "node0"))
    assert place.look(key, "node0", whole=False).holder == ""
    assert [place.claim(key, node) for node in ("node1", "node0", "node2")] == [1, 0, 0]
    board = place.look(key, "node0", whole=False)
    assert (board.holder, board.generation) == ("node1", 1)
    assert place.renew(key, "node1", 1)
    assert not place.renew(key, "node0", 0)


def test_a_claim_that_is_not_renewed_is_anothers_in_the_next_generation(place: MeetingPlace, job: str) -> None:
    key = Key(job, place.join(job, "node0"))
    place.claim(key, "node0")
    assert place.renew(key, "node0", 1)
    run_out(place, key)
    assert place.look(key, "node1", whole=False).holder == ""
    assert place.claim(key, "node1") == 2
    assert not place.renew(key, "node0", 1)
    assert place.look(key, "node0", whole=False).holder == "node1"


def test_what_was_told_stands_and_one_whose_claim_ran_out_does_not_overwrite_it(place: MeetingPlace, job: str) -> None:
    key = Key(job, place.join(job, "node0"))
    place.claim(key, "node0")
    assert place.mark(key, 1, "told", b"by node0")
    run_out(place, key)
    place.claim(key, "node1")
    assert place.look(key, "node1", whole=False).told == b"by node0"
    assert place.mark(key, 2, "told", b"by node1")
    assert not place.mark(key, 1, "told", b"late")
    assert place.look(key, "node0", whole=False).told == b"by node1"


def test_who_told_alone_notes_it_where_nothing_is_noted(place: MeetingPlace, job: str) -> None:
    key = Key(job, place.join(job, "node0"))
    assert place.mark(key, 0, "told", b"alone")
    assert not place.mark(key, 0, "told", b"alone too")
    assert place.look(key, "node0", whole=False).told == b"alone"


def test_the_jobs_verdict_has_a_revision(place: MeetingPlace, job: str) -> None:
    key = Key(job, place.join(job, "node0"))
    assert place.report(key) == Published()
    place.claim(key, "node0")
    place.mark(key, 1, "report", b"first")
    revision, data, seconds = place.report(key)
    assert 0 <= seconds < 60
    assert (revision, data) == (place.look(key, "node1", whole=False).report_revision, b"first")
    place.mark(key, 1, "report", b"second")
    assert place.report(key)[:2] != (revision, b"first")
    assert place.look(key, "node1", whole=False).report_revision != revision


def test_a_turn_is_all_of_it_at_once_and_of_who_does_not_hold_the_claim_only_what_is_anybodys(
    place: MeetingPlace, job: str
) -> None:
    key = Key(job, place.join(job, "n0"))
    place.join(job, "n1")
    first = place.turn(key, "n0", Turn(summary=b"one", claims=True, report=b"early"))
    assert (first.generation, first.report_noted, first.told_noted) == (1, True, False)
    assert (first.board.holder, first.board.puts > 0, first.report) == ("n0", True, b"")
    other = place.turn(key, "n1", Turn(summary=b"two", claims=True, report=b"not mine", told=b"nor this", generation=7))
    assert (other.generation, other.report_noted, other.told_noted, other.report) == (0, False, False, b"early")
    held = place.turn(key, "n0", Turn(told=b"told", generation=1, report=b"late", closes=True))
    assert (held.generation, held.told_noted, held.report_noted, held.board.told) == (1, True, True, b"told")
    seen = place.turn(key, "n1", Turn(known_report=first.board.report_revision))
    assert (seen.board.closed, seen.report) == (True, b"late")
    assert place.turn(key, "n1", Turn(known_report=seen.board.report_revision)).report == b""
    assert place.summaries(key) == {"n0": b"one", "n1": b"two"}


def test_a_server_that_is_not_there_is_a_sentence() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        place = connect(f"redis://127.0.0.1:{closed.getsockname()[1]}")
        with pytest.raises(PlaceProblem, match="refused") as problem:
            place.check()
    assert "Is the server up" in problem.value.help


@pytest.mark.parametrize("url", ["redis://", "redis+sentinel://a,b", "redis://host:99999999"])
def test_an_address_that_cannot_be_one_is_refused(url: str) -> None:
    with pytest.raises(PlaceProblem, match=r"fleet\.url"):
        connect(url)


@needs_redis
def test_nodes_that_try_it_at_one_moment_do_not_take_each_other_for_a_fault_of_it(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart of the server thousands do."""
    place, other = connect(server), connect(server)
    claim = place._client.set

    def claim_while_another_tries(*arguments: Any, **options: Any) -> Any:
        other.check()
        return claim(*arguments, **options)

    monkeypatch.setattr(place._client, "set", claim_while_another_tries)
    place.check()


@needs_redis
def test_a_server_that_takes_seconds_for_each_answer_is_not_taken_for_one_that_lets_claim_twice(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, claimed = connect(server), []
    claim = place._client.set

    def claim_and_note(key: str, *arguments: Any, **options: Any) -> Any:
        done = claim(key, *arguments, **options)
        claimed.append(place._client.pttl(key))
        return done

    monkeypatch.setattr(place._client, "set", claim_and_note)
    place.check()
    assert min(claimed) > 2 * 3_000, "as long as two answers may take"
    assert not place._client.keys("stallwatch:probe*")


@needs_redis
def test_a_connection_begins_with_who_we_are_and_asks_for_nothing_more(server: str) -> None:
    watcher, place = connect(server), connect(server)
    watcher._client.config_resetstat()
    place.posted("")
    asked = set(watcher._client.info("commandstats"))
    for one in (watcher, place):
        one.hang_up()
    assert not {one for one in asked if "setinfo" in one or "maint" in one}, asked


@needs_redis
def test_a_full_server_and_a_replica_say_so(server: str) -> None:
    place = connect(server)
    client = place._client
    try:
        client.config_set("maxmemory", "1")
        with pytest.raises(PlaceProblem) as full:
            place.join(JOB, "node0")
        assert "full" in full.value.help
        with pytest.raises(PlaceProblem, match=r"'maxmemory'$"):
            place.greet("node0", b"word")
        client.config_set("maxmemory", "0")
        client.config_set("min-replicas-to-write", "1")
        with pytest.raises(PlaceProblem) as alone:
            place.join(JOB, "node0")
        assert "replicas" in alone.value.help
    finally:
        client.config_set("maxmemory", "0")
        client.config_set("min-replicas-to-write", "0")


def test_of_a_server_that_does_not_speak_tls_only_silence_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis waits for the rest of a command that it takes the greeting for."""
    redis_place = pytest.importorskip("stallwatch.fleet.redis_place")
    monkeypatch.setattr(redis_place, "_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for scheme in ("redis", "rediss"):
            with pytest.raises(PlaceProblem) as found:
                redis_place.connect(f"{scheme}://127.0.0.1:{silent.getsockname()[1]}", "", None, "").check()
            assert ("does not speak TLS" in found.value.help) == (scheme == "rediss")


@needs_redis
def test_a_user_whose_rights_end_at_our_keys_is_enough(server: str) -> None:
    connect(server)._client.execute_command(
        "ACL", "SETUSER", "stallwatch", "reset", "on", ">secret", "~stallwatch:*", "+@all", "-@dangerous", "-@admin"
    )
    place = connect(server, "stallwatch", "secret")
    place.check()
    key = Key(JOB, place.join(JOB, "node0"))
    place.put(key, "node0", b"1")
    assert place.summaries(key) == {"node0": b"1"}
    with pytest.raises(PlaceProblem) as refused:
        connect(server, "stallwatch", "wrong").check()
    assert "fleet.password_file" in refused.value.help


def test_who_joins_after_an_outage_meets_those_who_had_joined_before_it(place: MeetingPlace, job: str) -> None:
    key = Key(job, place.join(job, "node0"))
    if isinstance(place, MemoryPlace):
        assert isinstance(place._seconds, Hand)
        place._seconds.seconds += 60
    elif isinstance(place, DirectoryPlace):
        seen = time.time() - 60
        for path in (*(place._root / job).rglob("*"), place._root / job / "1"):
            os.utime(path, (seen, seen))
    else:
        vars(place)["_client"].zadd(f"stallwatch:{{{job}}}:1:members", {"node0": time.time() - 60})
    assert place.join(job, "node1") == key.ordinal


def test_what_is_posted_for_all_stands_for_its_time_and_its_revision_tells_whether_it_is_news(
    place: MeetingPlace, job: str
) -> None:
    before, _ = place.posted("")
    place.post(f"mute-{job}", b"one", 3600, anew=True)
    place.post(f"mute-{job}", b"two", 3600, anew=False)
    revision, standing = place.posted(before)
    ours = [one for one in standing or [] if one.name == f"mute-{job}"]
    assert [one.data for one in ours] == [b"one"], "what stands is kept where it is not posted anew"
    assert 3500 < ours[0].seconds <= 3600
    assert place.posted(revision) == (revision, None)
    place.post(f"mute-{job}", b"three", 3600, anew=True)
    after, standing = place.posted(revision)
    assert after != revision
    assert after.partition(":")[0] == revision.partition(":")[0], "nothing was lost"
    assert b"three" in [one.data for one in standing or []]


@pytest.mark.parametrize("kind", ["directory", pytest.param("redis", marks=needs_redis)])
def test_what_has_run_out_is_gone(kind: str, tmp_path: Path, request: pytest.FixtureRequest, job: str) -> None:
    if kind == "directory":
        tmp_path.chmod(0o700)
        place: MeetingPlace = DirectoryPlace(tmp_path)
        place.post(f"mode-{job}", b"x", 3600, anew=True)
        os.utime(tmp_path / ".orders" / f"mode-{job}", (1, 1))
    else:
        place = connect(request.getfixturevalue("server"))
        place.post(f"mode-{job}", b"x", 3600, anew=True)
        vars(place)["_client"].zadd("stallwatch:{:fleet}:until", {f"mode-{job}": 1})
    assert f"mode-{job}" not in [one.name for one in place.posted("")[1] or []]


def test_what_a_node_said_goes_with_it(place: MeetingPlace, job: str) -> None:
    key = Key(job, place.join(job, "node0"))
    place.join(job, "node1")
    place.put(key, "node0", b"zero")
    place.put(key, "node1", b"one")
    place.leave(key, "node0")
    assert list(place.summaries(key).values()) == [b"one"]
