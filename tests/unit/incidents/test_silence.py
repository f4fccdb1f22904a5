"""Modes and maintenance: what is still looked at, who is told, and what people are shown of it."""

import pytest

from stallwatch.config import Config
from stallwatch.config_sections import FleetSection
from stallwatch.incidents import silence
from stallwatch.incidents.life import IncidentTable
from stallwatch.incidents.messages import CaptureWanted, MaintenanceWanted, ModeWanted, MuteWanted, StartCapture
from tests.unit.incidents.stories import JOB, SECOND, START, Story, of, stall

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
