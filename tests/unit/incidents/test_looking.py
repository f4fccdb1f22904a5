import pytest
from msgspec.structs import replace

from stallwatch.incidents.looking import due_ns, is_known_to_stand
from stallwatch.incidents.messages import Judge, StartCapture
from tests.unit.incidents.stories import SECOND, START, Story, facts, finding, of, report, stall


@pytest.mark.parametrize(
    ("cause", "stands"),
    [
        ("not_entered", True),
        ("collective_mismatch", True),
        ("comm_stuck", True),
        ("undecided", True),
        ("healthy", False),
        ("waiting", False),
        ("slow_rank", False),
    ],
)
def test_what_holds_ranks_for_long_is_asked_of_those_alone_that_were_seen_to_stand(cause: str, stands: bool) -> None:
    """A job that moves, and one that somebody captures on demand, pays no more than some milliseconds a look."""
    story = Story()
    story.at(6, stall())
    assert not is_known_to_stand(story.incident, START + 6 * SECOND)
    story.looked()
    story.at(9, stall("confirmed"))
    story.looked()
    story.judged(report(cause))
    assert is_known_to_stand(story.incident, START + 60 * SECOND) is stands


def test_a_wait_of_seconds_of_which_nobody_was_told_is_not_held_for_long() -> None:
    story = Story()
    story.at(6, stall())
    story.looked()
    story.at(9, stall("confirmed"))
    story.looked()
    story.judged(report("undecided"))
    assert not is_known_to_stand(story.incident, START + 15 * SECOND)
    told = replace(story.incident, severity="warning")
    withheld = replace(story.incident, withheld="warning")
    assert is_known_to_stand(told, START + 15 * SECOND)
    assert is_known_to_stand(withheld, START + 15 * SECOND)


def test_a_stop_whose_look_takes_its_time_is_judged_at_a_moment_that_is_known_before() -> None:
    story = Story()
    story.at(6, finding("stopped", resolvable=False))
    moment_ns = due_ns(story.life)
    assert moment_ns == START + int(6.4 * SECOND)
    assert not of(story.at(6.3, finding("stopped", resolvable=False)), Judge)
    assert of(story.at(6.4, finding("stopped", resolvable=False)), Judge)
    assert due_ns(story.life) is None


def test_a_death_is_looked_at_when_the_ends_of_those_that_went_with_it_can_be_known() -> None:
    """Look and tick come a quarter of a second later; nothing of it is judged or over before."""
    story, death = Story(), finding("exit", resolvable=False)
    assert not of(story.at(6, death), StartCapture)
    assert due_ns(story.life) == START + int(6.25 * SECOND)
    assert not of(story.at(6.1, death, jobs=[facts(alive=())]), StartCapture)
    (begun,) = of(story.at(6.25, death, jobs=[facts(alive=())]), StartCapture)
    assert (begun.look, due_ns(story.life)) == (1, None)
    story.looked()
    story.judged(report("rank_exited"))
    assert story.incident.severity == "critical"


def test_what_is_not_known_without_its_look_waits_for_that() -> None:
    story = Story()
    story.at(6, stall("confirmed"))
    assert due_ns(story.life) is None


def test_what_came_while_a_look_was_judged_is_judged_as_well() -> None:
    """Call sites come last, and a look is judged as soon as its stacks are there: on a crowded node they came in
    between, and a circle of groups that they prove stayed undecided."""
    story = Story()
    story.at(6, stall())
    story.looked()
    story.at(9, stall("confirmed"))
    assert of(story.looked(done=False), Judge)
    assert not of(story.looked(), Judge)  # one judge at a time
    assert of(story.judged(report("undecided")), Judge)
    assert not of(story.judged(report("undecided")), Judge)


@pytest.mark.parametrize("cause", ["waiting", "healthy"])
def test_what_moved_until_a_look_has_its_patience_from_then(cause: str) -> None:
    story = Story()
    story.hang(cause)
    story.stands(70)
    moved = (story.life.judged_look_ns - START) / SECOND
    while not story.life.capturing:
        story.at(story.second + 1, *story.findings)
    story.looked()
    story.judged(report("not_entered", ends_by_itself="compute"))
    assert moved > 30
    assert story.incident.tell_wall_ns == story.wall_ns(moved + 120)
    story.stands(moved + 118)
    assert story.severity == "none"
    story.stands(moved + 125)
    assert story.severity in ("warning", "critical"), "it stands since then"


def begins_to_wait(story: Story, *, waiting: tuple[int, ...], until: float) -> float | None:
    """From second 80 on these ranks wait: when the next look begins; None: not until then."""
    story.at(80, *story.findings, jobs=[facts(waiting=waiting)])
    while not story.life.capturing and story.second < until:
        story.at(story.second + 1, *story.findings)
    return story.second if story.life.capturing else None


def test_who_begins_to_wait_in_an_open_incident_is_looked_at_twice_soon() -> None:
    """All ranks rolled out; two of them have come back and wait for the third, which stands."""
    story = Story()
    story.hang("undecided", culprits=(), waiting="")
    story.stands(78)
    first = begins_to_wait(story, waiting=(0, 2), until=100)
    assert first is not None
    assert first <= 90
    story.looked()
    story.judged(report("undecided", (), waiting=""))
    while not story.life.capturing:
        story.at(story.second + 1, *story.findings)
    assert story.second - first <= 20, "what changed between two looks is seen to stand by a third"


def test_who_waited_when_it_was_opened_or_for_whom_somebody_is_named_needs_no_look_of_its_own() -> None:
    story = Story()
    story.at(5, stall(), jobs=[facts(waiting=(0, 2))])
    story.looked()
    story.at(9, stall("confirmed"))
    story.looked()
    story.judged(report("undecided", (), waiting=""))
    story.stands(78)
    assert begins_to_wait(story, waiting=(0, 2), until=100) is None
    story = Story()
    story.hang("not_entered", ends_by_itself="compile")
    story.stands(78)
    assert begins_to_wait(story, waiting=(0, 2), until=100) is None


def come_back(arrivals: tuple[int, ...], until: int) -> tuple[Story, list[float]]:
    """Ranks that come back one by one at these seconds, and wait: when the looks begin; each shows that others move."""
    story = Story()
    story.hang("waiting", culprits=(7,))
    looks: list[float] = []
    for second in range(10, until):
        waiting = tuple(rank for rank, at in enumerate(arrivals) if at <= second)
        story.at(second, *story.findings, jobs=[facts(waiting=waiting)])
        if story.life.capturing:
            looks.append(second)
            story.looked()
            story.judged(report("waiting", (7,)))
    return story, looks


@pytest.mark.parametrize("apart", [12, 20, 60, 300])
def test_looks_at_those_who_begin_to_wait_are_besides_the_others(apart: int) -> None:
    """Seven ranks that came back a minute apart had used up all twelve looks within 216 s, and the eighth stood."""
    arrivals = tuple(80 + apart * rank for rank in range(7))
    _, calm = come_back((), until=7200)
    _, looks = come_back(arrivals, until=7200)
    assert len(calm) < len(looks) <= len(calm) + 2 * len(arrivals)
    assert max(looks) >= max(calm), "the back-off goes on as it would without them"
    assert len([at for at in looks if arrivals[-1] <= at <= arrivals[-1] + 60]) >= 2


def test_the_last_of_many_that_roll_out_is_told_within_its_patience_when_it_stands() -> None:
    story, _ = come_back(tuple(80 + 60 * rank for rank in range(7)), until=462)
    last = story.second
    while story.severity == "none" and story.second < last + 180:
        story.at(story.second + 1, *story.findings)
        if story.life.capturing:
            story.looked()
            story.judged(report("not_entered", (7,), ends_by_itself="compute"))
    assert story.severity != "none"
    assert story.second - last <= 120 + 20


def test_however_many_begin_to_wait_looks_an_hour_stay_few() -> None:
    _, calm = come_back((), until=3680)
    _, looks = come_back(tuple(80 + 12 * rank for rank in range(300)), until=3680)
    assert len(looks) - len(calm) <= 180


def test_where_a_look_and_its_judgement_take_long_the_one_before_somebody_is_told_begins_earlier() -> None:
    """At a load of 30 on two cores a judgement took 15 s: rank 0 was told as critical for what it had computed, and a
    second later the look that was under way said that it moved."""
    story = Story()
    story.at(6, stall())
    story.looked()
    story.at(9, stall("confirmed"))
    story.looked()
    began_ns = story.life.look_ns
    story.at(40, stall("confirmed"))
    story.judged(report("not_entered", ends_by_itself="storage"))
    looks, took_ns = story.life.looks, START + 40 * SECOND - began_ns
    story.stands(100)
    assert story.life.looks == looks + 1
    assert story.life.look_ns <= START + 121 * SECOND - took_ns
    story.stands(119)
    assert story.life.look_ns >= START + 104 * SECOND, "that one was quick: nobody is woken by an old look"
