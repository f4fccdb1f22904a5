"""Who compares the paces of a job's nodes, and who hears of it."""

from pathlib import Path

from stallwatch.clock import SECOND_NS
from stallwatch.errors import StallwatchError
from stallwatch.fleet.child import PlaceRequest, Talker
from stallwatch.fleet.judge_child import JudgeQuestion, answer_to
from stallwatch.fleet.pace_seat import JobPace, PaceSeat, PaceWish, exchange_pace
from stallwatch.fleet.pace_verdict import PaceVerdict, believed_paces, encode_pace
from stallwatch.fleet.place import Key
from stallwatch.fleet.place_settings import Settings, open_place
from tests.unit.fleet.memory_place import MemoryPlace
from tests.unit.fleet.paces import SHARE
from tests.unit.fleet.test_pace_verdict import pace

SECRET = b"sixteen bytes or more"
JOB = "train-0a1b2c3d"
SLOW = PaceVerdict((2,), ("node2",), "confirmed", "rank 2 holds the others back")


class Fleet:
    def __init__(self, nodes: int = 3) -> None:
        self.now = 0.0
        self.place = MemoryPlace(lambda: self.now)
        self.seats = {f"node{number}": PaceSeat(f"node{number}") for number in range(nodes)}
        self.judges: list[str] = []
        self.finds = SLOW

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 0.5
            now_ns = int(self.now * SECOND_NS)
            for number, (node, seat) in enumerate(self.seats.items()):
                if seat.wants_verdict(now_ns):
                    self.judges.append(node)
                    seat.judging(now_ns)
                    seat.judged(self.finds, now_ns)
                wish = seat.wish(now_ns, JobPace(JOB, encode_pace(pace(number)), 3))
                if wish is not None:
                    try:
                        seat.heard(wish, exchange_pace(self.place, SECRET, wish), now_ns)
                    except StallwatchError:
                        continue

    def found(self) -> list[PaceVerdict | None]:
        return [seat.found(int(self.now * SECOND_NS)) for seat in self.seats.values()]


def test_one_node_judges_and_all_hear_what_it_found() -> None:
    fleet = Fleet()
    fleet.run(40)
    assert fleet.found() == [SLOW] * 3
    assert len(set(fleet.judges)) == 1
    assert 2 <= len(fleet.judges) <= 5
    assert set(believed_paces(fleet.place.summaries(Key(JOB, 0)), SECRET, Key(JOB, 0))) == set(fleet.seats)


def test_when_the_one_that_judges_is_gone_another_does() -> None:
    fleet = Fleet()
    fleet.run(30)
    first = fleet.judges[-1]
    del fleet.seats[first]
    fleet.run(40)
    assert fleet.judges[-1] != first
    assert fleet.found() == [SLOW] * 2


def test_who_judges_next_knows_how_long_a_step_was_before_the_others_waited_though_it_costs_nothing() -> None:
    fleet = Fleet()
    fleet.finds = PaceVerdict(waited_for=(2,), before_seconds=0.25)
    fleet.run(30)
    del fleet.seats[fleet.judges[-1]]
    fleet.run(40)
    assert [seat.verdict.before_seconds for seat in fleet.seats.values()] == [0.25] * 2
    assert fleet.found() == [None] * 2


def test_what_is_over_is_heard_too() -> None:
    fleet = Fleet()
    fleet.run(30)
    fleet.finds = PaceVerdict()
    fleet.run(40)
    assert fleet.found() == [None] * 3


def test_where_the_place_does_not_answer_nothing_is_found_any_more() -> None:
    fleet = Fleet()
    fleet.run(30)
    fleet.place.problem = "connection refused"
    fleet.run(20)
    assert fleet.found() == [SLOW] * 3
    fleet.run(60)
    assert fleet.found() == [None] * 3


def test_a_verdict_that_nobody_of_the_fleet_signed_is_not_believed() -> None:
    fleet = Fleet()
    fleet.run(30)
    fleet.place._incidents[Key(JOB, 0)].kept["report"] = b"stallwatch 1\nforged"
    fleet.place._incidents[Key(JOB, 0)].revision += 1
    late = PaceSeat("node9")
    wish = late.wish(int(fleet.now * SECOND_NS), JobPace(JOB, encode_pace(pace(9)), 3))
    assert wish is not None
    seen = exchange_pace(fleet.place, SECRET, wish)
    assert seen.verdict == b""
    assert "not believed" in seen.caveat


def test_the_childs_answer_is_over_a_real_place_and_the_judges_over_what_was_put(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(SECRET)
    (tmp_path / "meeting").mkdir(mode=0o700)
    settings = Settings(f"file://{tmp_path / 'meeting'}", key_file=str(tmp_path / "key"))
    for number in range(5):
        said = pace(number, waited=0.0 if number == 3 else 0.5)
        seen = Talker().answer(PlaceRequest(settings, "pace", pace=PaceWish(JOB, f"node{number}", encode_pace(said))))
        assert seen.pace is not None, seen.problem
        assert bool(seen.pace.generation) is (number == 0), "who comes first judges"
    question = JudgeQuestion(settings, Key(JOB, 0), 5, minimum_share=SHARE, before=PaceVerdict())
    verdict = answer_to(question, open_place(settings, SECRET), SECRET)
    assert isinstance(verdict, PaceVerdict)
    assert verdict.ranks == (3,)
    assert open_place(settings, SECRET).join(JOB, "node0") == 1, "the job's incidents begin with one"
