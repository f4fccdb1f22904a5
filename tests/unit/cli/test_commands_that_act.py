"""Commands that ask something of the daemon: a look, silence, a mode, a test of the outputs, a judgement."""

import msgspec
import pytest

from stallwatch.cli.app import run
from stallwatch.cli.terminal import lasting
from stallwatch.model.snapshot import SensorStatus
from stallwatch.outputs.client import Client
from tests.integration.outputs.serving import Served

Capture = pytest.CaptureFixture[str]


def test_capture_and_mute_reach_the_daemon(address: Served, capsys: Capture) -> None:
    address.control.asked.clear()
    assert run(["capture", "--job", "llama-7b"]) == 0
    assert run(["mute", "llama-7b", "--for", "2h"]) == 0
    said = capsys.readouterr().out
    assert "stallwatch incidents llama-7b-2" in said
    assert "No job of that name" not in said
    assert "for 2 h. It holds on this node, which meets no others." in said
    assert run(["mute", "llama-7b", "--for", "0", "--json"]) == 0
    assert address.control.asked == [("capture", "llama-7b"), ("mute", "llama-7b", 7200.0), ("mute", "llama-7b", 0.0)]


@pytest.mark.parametrize(
    ("up", "where"), [(True, "within 10 s on all"), (False, "once the meeting place is well again")]
)
def test_where_nodes_meet_a_mute_says_that_it_holds_on_all(
    address: Served, capsys: Capture, monkeypatch: pytest.MonkeyPatch, up: bool, where: str
) -> None:
    place, ranks = SensorStatus("meeting_place", up, "", 0.0, 0, required=False), Client.ranks
    monkeypatch.setattr(Client, "ranks", lambda client: msgspec.structs.replace(ranks(client), sensors=(place,)))
    assert run(["mute", "llama-7b"]) == 0
    assert where in capsys.readouterr().out


def test_mode_and_maintenance_reach_the_daemon_and_say_where_they_hold(address: Served, capsys: Capture) -> None:
    address.control.asked.clear()
    assert run(["mode", "shadow", "--for", "2h"]) == 0
    assert run(["maintenance", "--why", "disks"]) == 0
    assert run(["maintenance", "n7", "n8", "--for", "0"]) == 0
    assert run(["mode", "loud"]) == 64
    assert address.control.asked == [
        ("mode", "shadow", 7200.0),
        ("maintenance", "", 7200.0, "disks"),
        ("maintenance", "n7", 0.0, ""),
        ("maintenance", "n8", 0.0, ""),
    ]
    said = capsys.readouterr().out
    assert "mode shadow for 2 h" in said
    assert said.count("on this node alone") == 3
    assert "`stallwatch maintenance --for 0` ends it." in said
    assert run(["mode"]) == 0
    assert "mode tell: nothing is silenced" in capsys.readouterr().out


@pytest.mark.parametrize(("given", "seconds"), [("90", 90), ("90s", 90), ("30m", 1800), ("1.5h", 5400), ("1d", 86400)])
def test_durations(address: Served, given: str, seconds: float) -> None:
    address.control.asked.clear()
    assert run(["mute", "llama-7b", "--for", given]) == 0
    assert address.control.asked == [("mute", "llama-7b", seconds)]


@pytest.mark.parametrize("given", ["", "h", "-1m", "5x", "1 m m", "inf"])
def test_what_is_no_duration_is_wrong_usage(address: Served, given: str) -> None:
    assert run(["mute", "llama-7b", "--for", given]) == 64


def test_notify_test_fails_when_one_output_did_not_deliver(address: Served, capsys: Capture) -> None:
    assert run(["notify-test"]) == 0
    address.control.lines = ("slack: delivered (200 ok)", "webhook: not delivered: 500")
    assert run(["notify-test"]) == 69
    assert "webhook: not delivered: 500" in capsys.readouterr().out


def test_muting_a_job_that_does_not_run_says_so(address: Served, capsys: Capture) -> None:
    assert run(["mute", "lama-7b"]) == 0
    assert "No job of that name runs here now (these do: llama-7b)" in capsys.readouterr().out


def test_a_verdict_is_judged_by_its_incidents_beginning(address: Served, capsys: Capture) -> None:
    assert run(["incidents", "judge", "llama-7b-1", "wrong"]) == 0
    assert "The verdict of llama-7b-1 was wrong, says " in capsys.readouterr().out
    assert ("judge", "llama-7b-1", "wrong") in [asked[:3] for asked in address.control.asked]


@pytest.mark.parametrize("words", [["judge"], ["judge", "llama-7b-1"], ["judge", "llama-7b-1", "perhaps"], ["a", "b"]])
def test_what_is_no_judgement_says_how_it_is_written(address: Served, capsys: Capture, words: list[str]) -> None:
    assert run(["incidents", *words]) == 64
    assert "judge" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "said"),
    [(60, "1 min"), (90, "1 min 30 s"), (5400, "1 h 30 min"), (7200, "2 h"), (86_400, "1 day"), (2_592_000, "30 days"),
     (0.5, "0.5 s"), (45, "45 s"), (90_061, "1 day 1 h")],
)  # fmt: skip
def test_a_span_is_said_as_a_person_says_it(value: float, said: str) -> None:
    assert lasting(value) == said
