from pathlib import Path

import msgspec
import pytest

from stallwatch.config_sections import FleetSection
from stallwatch.doctor.check import Inapplicable, Undetermined
from stallwatch.doctor.live.meeting_probe import hidden_meeting, meeting_of
from stallwatch.doctor.network.meeting import MeetingPlaceAnswers
from tests.unit.doctor.fakes import DAEMON, Node, one


class FakeMeeting:
    url = "redis://redis.example:6379"

    def __init__(self, seen: str = "", remedy: str = "") -> None:
        self.said = (seen, remedy)
        self.key = ""

    def problem(self) -> tuple[str, str]:
        return self.said

    def exposed(self) -> str:
        return self.key


def test_where_nodes_meet_nowhere_there_is_nothing_to_try(node: Node) -> None:
    assert meeting_of(FleetSection(), "n") is None
    with pytest.raises(Inapplicable):
        MeetingPlaceAnswers().look(node.around())


def test_one_that_can_be_used_is_silent(node: Node) -> None:
    assert MeetingPlaceAnswers().look(node.around(meeting=FakeMeeting())) == ()


def test_one_that_cannot_is_an_error_with_what_to_do(node: Node) -> None:
    found = one(MeetingPlaceAnswers().look(node.around(meeting=FakeMeeting("redis: connection refused", "Is it up?"))))
    assert (found.severity, found.subject) == ("error", "redis://redis.example:6379")
    assert found.seen == "redis: connection refused"
    assert found.remedy == "Is it up?"


def test_the_daemon_who_uses_it_knows_better(node: Node) -> None:
    daemon = msgspec.structs.replace(DAEMON, sensors={"meeting_place": ""})
    broken = FakeMeeting("fleet.key_file: Permission denied")
    assert MeetingPlaceAnswers().look(node.around(meeting=broken, daemon=daemon)) == ()


@pytest.mark.parametrize("tried", [None, FakeMeeting(), FakeMeeting("fleet.key_file: Permission denied")])
def test_what_the_daemon_says_of_it_is_told_where_a_trial_finds_nothing_or_none_can_be_made(
    node: Node, tried: FakeMeeting | None
) -> None:
    daemon = msgspec.structs.replace(DAEMON, down={"meeting_place": "redis: it is full"})
    found = one(MeetingPlaceAnswers().look(node.around(meeting=tried, daemon=daemon, user_id=1000)))
    assert (found.severity, found.seen) == ("error", "redis: it is full")


def test_who_may_not_read_the_installed_configuration_cannot_tell(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.toml"
    assert hidden_meeting(file) is None
    file.touch()
    assert hidden_meeting(file) is None
    monkeypatch.setattr("os.access", lambda *asked: False)
    with pytest.raises(Undetermined, match=r"config\.toml: Permission denied"):
        MeetingPlaceAnswers().look(node.around(meeting=hidden_meeting(file), user_id=1000))


def test_who_may_not_read_the_key_cannot_tell(node: Node) -> None:
    broken = FakeMeeting("fleet.key_file /etc/key: Permission denied")
    with pytest.raises(Undetermined, match="daemon's user"):
        MeetingPlaceAnswers().look(node.around(meeting=broken, user_id=1000))
    assert MeetingPlaceAnswers().look(node.around(meeting=broken, user_id=0))


def test_it_is_tried_as_it_is_configured(tmp_path: Path) -> None:
    tried = meeting_of(FleetSection(url="redis://h", key_file=""), "n")
    assert tried is not None
    assert "key_file is empty" in tried.problem()[0]
    (tmp_path / "key").write_text("a secret of at least sixteen bytes")
    (tmp_path / "shared").mkdir(mode=0o755)
    tried = meeting_of(FleetSection(url=f"file://{tmp_path / 'shared'}", key_file=str(tmp_path / "key")), "n")
    assert tried is not None
    seen, remedy = tried.problem()
    assert seen, "either it says that the mode is wrong, or that there was no answer within its time"
    assert remedy


def test_a_key_that_every_user_may_read_is_a_warning_though_the_place_is_well(node: Node, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("a secret of at least sixteen bytes")
    key.chmod(0o644)
    tried = meeting_of(FleetSection(url="redis://h", key_file=str(key)), "n")
    assert tried is not None
    fake = FakeMeeting()
    fake.key = tried.exposed()
    found = one(MeetingPlaceAnswers().look(node.around(meeting=fake)))
    assert (found.severity, "0644" in found.seen, "chmod 0400" in found.remedy) == ("warning", True, True)
    key.chmod(0o440)
    assert tried.exposed() == ""
