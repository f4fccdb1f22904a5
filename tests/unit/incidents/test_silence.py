"""Modes and maintenance: what is still looked at, who is told, and what people are shown of it."""

import pytest

from stallwatch.config import Config
from stallwatch.config_sections import DaemonSection, FleetSection, TellSection
from stallwatch.detectors.job_facts import JobFacts
from stallwatch.incidents import silence
from stallwatch.incidents.life import IncidentTable
from stallwatch.incidents.messages import CaptureWanted, MaintenanceWanted, ModeWanted, MuteWanted, StartCapture
from tests.unit.incidents.stories import JOB, SECOND, START, Story, facts, of, stall

LATER = START + 1_000 * SECOND


def events(story: Story) -> str:
    return "\n".join(event.what for event in story.incident.events)


def test_in_shadow_all_is_judged_and_nobody_is_told_but_what_would_have_been_is_listed() -> None:
    story = Story()
    story.hear(ModeWanted("shadow", LATER, "anna on node3"))
    story.hang("collective_mismatch")
    story.stands(90)
    incident = story.incident
    assert (incident.severity, incident.muted, incident.withheld) == ("none", True, "critical")
    assert incident.verdict is not None
    assert "the mode is shadow (anna on node3); it would have been told as critical" in events(story)


def test_when_the_shadow_ends_what_still_stands_is_told() -> None:
    story = Story(Config(fleet=FleetSection(mode="shadow")))
    story.hang("collective_mismatch")
    assert story.severity == "none"
    story.hear(ModeWanted("tell", LATER))
    assert (story.severity, story.incident.muted, story.incident.withheld) == ("critical", False, "none")


def test_off_looks_at_no_rank_but_when_somebody_asks() -> None:
    story = Story()
    story.hear(ModeWanted("off", LATER))
    assert of(story.at(6, stall()), StartCapture) == []
    assert story.lives.active == ()
    assert len(of(story.hear(CaptureWanted(JOB)), StartCapture)) == 1


def test_off_ends_the_looks_at_what_stands() -> None:
    story = Story()
    story.hang("not_entered")
    looks = story.life.looks
    story.hear(ModeWanted("off", LATER))
    story.stands(200)
    assert story.life.looks == looks
    story.hear(ModeWanted("off", 0))
    story.stands(300)
    assert story.life.looks > looks


@pytest.mark.parametrize(
    ("said", "silent"),
    [
        (MaintenanceWanted("node0", LATER), True),
        (MaintenanceWanted("node9", LATER), False),
        (MaintenanceWanted("node9", LATER, jobs=(JOB.name,)), True),
        (MaintenanceWanted("node0", 0), False),
    ],
)
def test_maintenance_silences_the_node_and_the_jobs_that_run_there(said: MaintenanceWanted, silent: bool) -> None:
    story = Story()
    story.hear(said)
    story.hang("collective_mismatch")
    assert story.incident.node == "node0"
    assert (story.severity == "none") is silent
    assert ("node9 is in maintenance" in events(story)) is (silent and said.node == "node9")


def test_people_are_shown_what_holds_and_for_how_long() -> None:
    lives = IncidentTable()
    for event in (
        ModeWanted("shadow", START + 600 * SECOND, "anna"),
        MaintenanceWanted("node7", START + 86_400 * SECOND, "ben", "disks"),
        MuteWanted("train", START + 90 * SECOND, "ben"),
    ):
        lives = silence.heard(lives, event, START)
    shown = silence.shown(lives, Config(), START)
    assert shown.mode == "shadow"
    assert shown.silences == (
        "mode shadow (anna) for 10 more min: nobody is told",
        "node7 is in maintenance (ben: disks) for 24 more h: nobody is told of its jobs",
        "train of ben is muted for 2 more min",
    )
    assert silence.shown(IncidentTable(), Config(), START).silences == ()
    configured = silence.shown(IncidentTable(), Config(fleet=FleetSection(mode="off")), START)
    assert configured.silences == ("mode off (fleet.mode): no rank is looked at, and nobody is told",)
    assert silence.shown(lives, Config(), START + 700 * SECOND).mode == "tell"


def why_silent(lives: IncidentTable, config: Config | None = None, job: JobFacts | None = None, at: float = 0) -> str:
    story = Story()
    story.hang("collective_mismatch")
    return silence.silence(lives, story.incident, job, config or Config(), START + int(at * SECOND))


def test_a_mute_of_this_job_and_owner_and_for_its_time() -> None:
    lives = silence.heard(IncidentTable(), MuteWanted(JOB.training_job, START + 60 * SECOND, JOB.owner), START)
    assert why_silent(lives) == "the job is muted"
    assert why_silent(lives, at=60) == ""
    others = silence.heard(IncidentTable(), MuteWanted(JOB.training_job, LATER, "somebody else"), START)
    assert why_silent(others) == ""
    over = silence.heard(lives, MuteWanted(JOB.training_job, 0, JOB.owner), START)
    assert why_silent(over) == "", "a time in the past ends it"


def test_of_a_job_that_is_not_seen_any_more_only_what_people_said_counts() -> None:
    assert why_silent(IncidentTable(), job=None) == ""
    assert why_silent(IncidentTable(), job=facts(opted_out=True)) == (
        "the job asked for silence (STALLWATCH_NOTIFY=off)"
    )


def test_small_jobs_and_terminals_are_quiet_by_configuration() -> None:
    small = Config(daemon=DaemonSection(minimum_world_size=5))
    assert why_silent(IncidentTable(), small, facts()) == ("the job has fewer than 5 ranks (daemon.minimum_world_size)")
    assert why_silent(IncidentTable(), Config(daemon=DaemonSection(minimum_world_size=4)), facts()) == ""
    terminal = facts(in_terminal=True)
    loud = Config(tell=TellSection(terminals=True))
    assert why_silent(IncidentTable(), job=terminal) == "the job runs in a terminal session (tell.terminals)"
    assert why_silent(IncidentTable(), loud, terminal) == ""


def test_who_set_a_mode_that_is_over_is_not_named_for_the_one_that_holds() -> None:
    shadow = Config(fleet=FleetSection(mode="shadow"))
    lives = silence.heard(IncidentTable(), ModeWanted("tell", START + 60 * SECOND, "anna"), START)
    assert why_silent(lives, shadow) == ""
    assert why_silent(lives, shadow, at=60) == "the mode is shadow (fleet.mode)"
    assert silence.shown(lives, shadow, START + 60 * SECOND).silences == ("mode shadow (fleet.mode): nobody is told",)


def test_what_is_said_is_bounded_for_each_user_and_in_all_and_the_latest_stays() -> None:
    lives = IncidentTable()
    for number in range(300):
        lives = silence.heard(lives, MuteWanted(f"job{number}", LATER, "anna"), START)
    lives = silence.heard(lives, MuteWanted("job", LATER, "ben"), START)
    names = [mute.name for mute in lives.mutes]
    assert len(names) == 257
    assert names[0] == ("anna", "job44")
    assert names[-1] == ("ben", "job")
    nodes = IncidentTable()
    for number in range(1_100):
        nodes = silence.heard(nodes, MaintenanceWanted(f"node{number}", LATER), START)
    assert [one.node for one in nodes.maintenance] == [f"node{number}" for number in range(76, 1_100)]
    again = silence.heard(nodes, MaintenanceWanted("node80", LATER, by="ben"), START)
    assert len(again.maintenance) == 1_024, "said again, not added"
    said = silence.shown(lives, Config(), START).silences
    assert len(said) == 21
    assert said[-1] == "and 237 more silences"


def test_what_was_said_is_over_at_its_moment() -> None:
    end = START + 60 * SECOND
    lives = IncidentTable()
    for event in (
        ModeWanted("off", end),
        MaintenanceWanted("node0", end),
        MuteWanted(JOB.training_job, end, JOB.owner),
    ):
        lives = silence.heard(lives, event, START)
    assert why_silent(lives, at=60) == ""
    assert silence.shown(lives, Config(), end).silences == ()
    assert silence.kept(lives, end, 0) == silence.Kept()
    assert silence.heard(lives, ModeWanted("off", end), end).mode is None
    assert silence.heard(lives, MaintenanceWanted("node0", end), end).maintenance == ()
    other = silence.heard(lives, MaintenanceWanted("node1", LATER), end)
    assert [one.node for one in other.maintenance] == ["node1"]
    muted = silence.heard(lives, MuteWanted("other", LATER, JOB.owner), end)
    assert [mute.training_job for mute in muted.mutes] == ["other"]


def test_what_was_kept_holds_as_long_after_a_restart_with_another_clock() -> None:
    lives = silence.heard(IncidentTable(), MaintenanceWanted("node0", START + 60 * SECOND), START)
    lives = silence.heard(lives, ModeWanted("off", START + 90 * SECOND), START)
    on_disk = silence.kept(lives, START, 1_000_000 * SECOND)
    again = silence.resumed(on_disk, 5 * SECOND, 1_000_050 * SECOND)
    assert [one.until_ns for one in again.maintenance] == [15 * SECOND]
    assert again.mode is not None
    assert again.mode.until_ns == 45 * SECOND


@pytest.mark.parametrize(
    ("minutes", "said"), [(1, "1 more min"), (599, "599 more min"), (600, "10 more h"), (659, "10 more h")]
)
def test_how_long_is_said_in_what_people_count_in(minutes: int, said: str) -> None:
    lives = silence.heard(IncidentTable(), MuteWanted("train", START + minutes * 60 * SECOND, "ben"), START)
    assert silence.shown(lives, Config(), START).silences == (f"train of ben is muted for {said}",)


def test_mutes_are_bounded_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "_MOST_MUTES", 3)
    lives = IncidentTable()
    for number in range(5):
        lives = silence.heard(lives, MuteWanted("train", LATER, f"user{number}"), START)
    assert [mute.owner for mute in lives.mutes] == ["user2", "user3", "user4"]
