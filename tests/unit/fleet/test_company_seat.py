"""Jobs of several nodes that stand at one mount are one message, whoever tells it, and nobody is left out."""

import contextlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from msgspec.structs import replace

from stallwatch.clock import SECOND_NS
from stallwatch.encoding import Unpacker, msgpack_of, pack
from stallwatch.errors import StallwatchError
from stallwatch.fleet.child import PlaceRequest, Talker
from stallwatch.fleet.company_seat import SILENT_SECONDS, Companies, CompanyWord, exchange_company
from stallwatch.fleet.link import Link
from stallwatch.fleet.place import Key
from stallwatch.fleet.place_settings import Settings
from stallwatch.fleet.seal import key_id, seal
from stallwatch.incidents.delivery_steps import Step
from stallwatch.model.incident import Companion, Incident, NodeReport, StandsAt
from stallwatch.outputs.company import beside
from stallwatch.outputs.notifier import Notifier
from tests.builders.clock import FakeClock
from tests.unit.fleet.memory_place import MemoryPlace
from tests.unit.outputs.notifier_bench import FakePoster, PlainSpoolFile, PlainWords
from tests.unit.outputs.reports import node_report
from tests.unit.outputs.test_company import MOUNT, at

SECRET = b"sixteen bytes or more"


class Words(PlainWords):
    """Notes what is told, by its incident, its step and whom it names."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, tuple[str, ...]]] = []

    def message(self, incident: Incident, step: Step, report: NodeReport) -> Mapping[str, object]:
        names = tuple(sorted(one.training_job for one in beside(incident, report)))
        self.told.append((incident.job.training_job, step, names))
        return {}


class Node:
    """A daemon as far as this goes: its loop asks the place, and hands its output what comes of it."""

    def __init__(self, name: str, place: MemoryPlace, folder: Path, words: Words) -> None:
        self.name, self.place, self.folder, self.words = name, place, folder, words
        self.clock = FakeClock(SECOND_NS)
        self.incidents: tuple[Incident, ...] = ()
        self.begin()

    def begin(self) -> None:
        file = PlainSpoolFile(self.folder / f"{self.name}.json")
        self.notifier = Notifier("slack", self.words, FakePoster(), self.clock, file, "warning")
        self.notifier._spool = file.load()
        self.companies = Companies(self.name)

    def restart(self) -> None:
        self.notifier._file.save(self.notifier._spool)
        self.begin()

    def tick(self, now: float) -> None:
        now_ns = int(now * SECOND_NS)
        self.clock.now_ns = now_ns
        self.companies.step(now_ns, self.notifier.stands(self.incidents))
        while (wish := self.companies.wish(now_ns)) is not None:
            try:
                self.companies.heard(wish, exchange_company(self.place, SECRET, wish), now_ns)
            except StallwatchError:
                break
        report = replace(node_report(*self.incidents), meetings=self.companies.meetings(now_ns))
        self.notifier.publish(report)


class Site:
    def __init__(self, folder: Path, nodes: int = 3) -> None:
        self.now = 1.0
        self.place = MemoryPlace(lambda: self.now)
        self.words = Words()
        self.nodes = [Node(f"node{number}", self.place, folder, self.words) for number in range(nodes)]
        self.dead: set[int] = set()
        self.teller = ""

    def stand(self, **jobs: Incident) -> None:
        """Who stands now, by node: n0=incident."""
        for name, one in jobs.items():
            self.nodes[int(name[1:])].incidents = (one,)

    def run(self, seconds: float) -> list[tuple[str, str, tuple[str, ...]]]:
        """What people are told meanwhile."""
        before, end = len(self.words.told), self.now + seconds
        while self.now < end:
            self.now += 0.5
            for number, node in enumerate(self.nodes):
                if number not in self.dead:
                    node.tick(self.now)
        return self.words.told[before:]


def untold(name: str) -> Incident:
    return at(name, severity="none")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def told(site: Site) -> Site:
    """Three jobs of three nodes stand there, and one of them has told of all."""
    site.stand(n0=at("a"), n1=at("b"), n2=at("c"))
    (first,) = site.run(20)
    site.teller = first[0]
    return site


def test_jobs_of_several_nodes_at_one_mount_are_one_message(site: Site) -> None:
    site.stand(n0=untold("a"), n1=untold("b"), n2=untold("c"))
    assert site.run(10) == []
    site.stand(n0=at("a"))
    assert site.run(10) == [("a", "told", ("b", "c"))]
    site.stand(n1=at("b"), n2=at("c"))
    assert site.run(60) == []


def test_that_all_tell_at_the_same_moment_makes_no_second_message(site: Site) -> None:
    site.stand(n0=at("a"), n1=at("b"), n2=at("c"))
    ((first, step, names),) = site.run(60)
    assert (step, sorted((first, *names))) == ("told", ["a", "b", "c"])


def test_who_stalls_a_moment_later_is_in_the_message(site: Site) -> None:
    site.stand(n0=at("a"))
    assert site.run(2) == []
    site.stand(n1=untold("b"))
    assert site.run(10) == [("a", "told", ("b",))]


def test_another_mount_is_another_message(site: Site) -> None:
    site.stand(n0=at("a"), n1=at("b", on="nfs4 filer:/other"))
    assert {(job, names) for job, _, names in site.run(30)} == {("a", ()), ("b", ())}


def test_who_comes_later_is_told_of_once_and_names_those_who_are_not(site: Site) -> None:
    site.stand(n0=at("a"))
    assert site.run(20) == [("a", "told", ())]
    site.stand(n1=at("b"), n2=at("c"))
    (second,) = site.run(60)
    assert set(second[2]) == {"a", "b", "c"} - {second[0]}


def test_who_is_alone_waits_for_nobody_for_long(site: Site) -> None:
    site.stand(n0=at("a"))
    assert site.run(8) == [("a", "told", ())]


def test_where_the_place_is_away_each_tells_for_itself(site: Site) -> None:
    site.place.problem = "it is away"
    site.stand(n0=at("a"), n1=at("b"))
    assert site.run(24) == []
    assert {job for job, _, _ in site.run(6)} == {"a", "b"}


def test_when_the_teller_dies_who_is_left_is_told_of_in_one_message(told: Site) -> None:
    told.dead.add("abc".index(told.teller))
    assert told.run(SILENT_SECONDS - 10) == []
    (again,) = told.run(60)
    assert set(again[2]) == {"a", "b", "c"} - {again[0], told.teller}


def test_when_the_tellers_job_is_well_who_is_left_is_told_of_in_one_message(told: Site) -> None:
    mine = told.nodes["abc".index(told.teller)]
    mine.incidents = tuple(replace(one, state="resolved") for one in mine.incidents)
    end, again = told.run(60)
    assert end[:2] == (told.teller, "resolved")
    assert (again[1], set(again[2])) == ("told", {"a", "b", "c"} - {again[0], told.teller})


def test_jobs_that_are_well_again_one_after_another_are_one_message_more(told: Site) -> None:
    order = sorted(range(3), key=lambda number: "abc"[number] != told.teller)
    said = []
    for number in order:
        node = told.nodes[number]
        node.incidents = tuple(replace(one, state="resolved") for one in node.incidents)
        said += told.run(8)
    assert [(job, step) for job, step, _ in said + told.run(60)] == [(told.teller, "resolved")]


def test_who_alone_becomes_critical_is_told_of(told: Site) -> None:
    other = (told.teller == "a") * 1
    told.stand(**{f"n{other}": at("abc"[other], severity="critical")})
    ((job, step, _),) = told.run(60)
    assert (job, step) == ("abc"[other], "escalated")
    (third,) = {"a", "b", "c"} - {told.teller, job}
    told.stand(**{f"n{'abc'.index(third)}": at(third, severity="critical")})
    assert told.run(60) == []


@pytest.mark.parametrize("first", range(3))
def test_all_that_become_critical_within_seconds_are_one_message_more(told: Site, first: int) -> None:
    """As seen live: of one place, told as critical by the teller, and a second later by another whom it had named."""
    again = []
    for number in (first, *(other for other in range(3) if other != first)):
        told.stand(**{f"n{number}": at("abc"[number], severity="critical")})
        again += told.run(3)
    again += told.run(60)
    assert [(job, step) for job, step, _ in again] == [(told.teller, "escalated")]


def test_all_that_become_critical_together_are_one_message_more(told: Site) -> None:
    told.stand(**{f"n{number}": at(name, severity="critical") for number, name in enumerate("abc")})
    again = told.run(60)
    assert [step for _, step, _ in again] == ["escalated"]


def test_a_daemon_that_begins_again_does_not_tell_what_another_has(told: Site) -> None:
    told.place.problem = "it is away"
    for node in told.nodes:
        node.restart()
    assert told.run(60) == []
    told.place.problem = ""
    assert told.run(60) == []


def test_while_the_place_is_away_nothing_that_was_told_is_told_again(told: Site) -> None:
    told.place.problem = "it is away"
    assert told.run(120) == []
    told.place.problem = ""
    assert told.run(120) == []


def test_what_is_not_signed_or_of_another_form_is_not_believed(site: Site) -> None:
    site.stand(n0=untold("a"))
    site.run(5)
    seat = next(iter(site.nodes[0].companies._seats.values()))
    key = Key(seat.name, 0)
    evil = msgpack_of(CompanyWord((Companion("x-1", "x", tells=True, named=("a-1",)),)))
    site.place.put(key, "evil", seal(evil, b"another secret of sixteen", "company", key, "evil"))
    site.place.put(key, "other", seal(msgspec.msgpack.encode([1]), SECRET, "company", key, "other"))
    site.place.put(key, "node9", seal(evil, SECRET, "company", key, "node8"))
    site.stand(n0=at("a"))
    assert site.run(20) == [("a", "told", ())]
    assert "is not believed" in site.nodes[0].companies.problem


def test_what_a_later_version_says_is_heard_as_far_as_it_is_known_and_its_claim_holds(site: Site) -> None:
    """Its word has fields and an urgency that this version does not know, and one incident is of another form."""
    site.stand(n0=untold("a"))
    site.run(5)
    key = Key(next(iter(site.nodes[0].companies._seats.values())).name, 0)
    later = {"incident_id": "x-1", "training_job": "x", "severity": "page", "tells": True, "named": ["a-1"], "more": 1}
    standing = [3, {"incident_id": 7}, later]
    word = msgspec.msgpack.encode({"standing": standing, "since": 12, "schema": 2})
    site.place.put(key, "node9", seal(word, SECRET, "company", key, "node9"))
    site.place.claim(key, "node9")
    site.stand(n0=at("a"))
    assert site.run(8) == []
    meeting = site.nodes[0].companies.meetings(int(site.now * SECOND_NS))[0]
    assert [(one.incident_id, one.severity, one.named) for one in meeting.others] == [("x-1", "warning", ("a-1",))]
    assert not meeting.speaks


def test_what_this_version_says_is_read_by_one_that_knows_less_of_it_and_by_one_that_knows_more() -> None:
    class Before(msgspec.Struct):
        incident_id: str
        training_job: str

    class After(Before):
        named: tuple[str, ...]
        rack: str = "unknown"

    word = msgpack_of(CompanyWord((Companion("a-1", "a", "critical", tells=True, named=("b-1",)),)))
    (said,) = msgspec.msgpack.decode(word)["standing"]
    assert msgspec.convert(said, Before).incident_id == "a-1"
    assert msgspec.convert(said, After).named == ("b-1",)


def test_who_stands_nowhere_any_more_leaves_nothing_there(told: Site) -> None:
    for node in told.nodes:
        node.incidents = ()
    told.run(5)
    keys = [key for key in told.place._incidents if key.job.startswith("waits-on.")]
    assert keys and not any(told.place.summaries(key) for key in keys)


def test_the_link_asks_by_its_child_over_a_real_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "key").write_bytes(SECRET)
    settings = Settings(f"file://{tmp_path}", key_file=str(tmp_path / "key"))
    ours, theirs = socket.socketpair()
    child = SimpleNamespace(
        pid=os.getpid(), returncode=0, poll=lambda: 0, wait=lambda timeout=None: 0, terminate=bool, kill=bool
    )
    link, talker, unpacker = (
        Link(settings, "n0", lambda: SimpleNamespace(child=child, channel=ours)),
        Talker(),
        Unpacker(1 << 20),
    )
    theirs.setblocking(False)
    wants = StandsAt(MOUNT, "#ops", Companion("a-1", "a"), wants=True)
    try:
        for step in range(60):
            now_ns = step * SECOND_NS // 4
            link.companies.step(now_ns, [wants])
            link.step(now_ns, ())
            with contextlib.suppress(BlockingIOError):
                for message in unpacker.feed(theirs.recv(1 << 16)):
                    seen = talker.answer(msgspec.msgpack.decode(message, type=PlaceRequest))
                    theirs.sendall(pack(msgspec.msgpack.encode(seen)))
            (meeting,) = link.companies.meetings(now_ns)
            if meeting.speaks:
                break
        assert (meeting.waits_on, meeting.readers, meeting.known, meeting.speaks) == (MOUNT, "#ops", True, True)
        (key,) = [path for path in (tmp_path / key_id(SECRET)).iterdir() if path.name.startswith("waits-on.")]
        assert (key / "0" / "summaries" / "n0").exists()
    finally:
        link.close()
        theirs.close()
