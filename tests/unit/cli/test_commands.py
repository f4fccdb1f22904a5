"""The commands that ask a daemon, against a real control socket."""

import errno
import io
import json
import os
import pwd
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest
from rich.console import Console, RenderableType

from stallwatch.cli import incidents, status, terminal
from stallwatch.cli.app import COMMANDS, run
from stallwatch.cli.incident_view import incident_view
from stallwatch.cli.incidents import list_view
from stallwatch.cli.status import status_view
from stallwatch.cli.terminal import local_time, show, time_and_distance
from stallwatch.incidents.incident_names import incident_id
from stallwatch.model.incident import UNTOLD, IncidentEvent, Together
from stallwatch.model.snapshot import JobKey, SensorStatus
from stallwatch.node.disk import DiskHangs
from stallwatch.node.heartbeat_file import prepare
from stallwatch.outputs.documents import incident_document, incident_list, rank_list
from tests.builders.clock import WALL_NS
from tests.integration.outputs.serving import Served, served
from tests.unit.outputs.reports import JOB, FakeControl, diagnosis, incident, node_report, verdict, view

Capture = pytest.CaptureFixture[str]


def test_status_shows_each_rank_and_the_open_incident(address: Served, capsys: Capture) -> None:
    assert run(["status"]) == 0
    shown = capsys.readouterr().out
    assert "llama-7b   1/4  waiting            412" in shown
    assert "llama-7b   2/4  waiting, culprit   412" in shown
    assert "critical  llama-7b-1  Rank 2 never entered" in shown
    assert "gpus: no GPU on this node" in shown
    assert "\x1b" not in shown  # plain in a pipe
    assert not [line for line in shown.splitlines() if line != line.rstrip()]
    assert address.token not in shown


def test_a_verdict_that_wakes_nobody_says_so_and_why_and_where_the_rest_is(capsys: Capture) -> None:
    events = (IncidentEvent(0, "suspected"), IncidentEvent(0, f"{UNTOLD} yet: 40 s"))
    report = node_report(incidents=(incident(severity="none", events=events),))
    show(status_view(rank_list(report), incident_list(report)))
    shown = capsys.readouterr().out
    assert "nobody told  llama-7b-1  Rank 2 never entered" in shown
    assert "\n  nobody is told yet: 40 s\n" in shown
    assert "stallwatch incidents llama-7b-1" in shown
    show(list_view(incident_list(report)))
    assert "nobody told" in capsys.readouterr().out


def drawn(view: Callable[[], RenderableType], width: int) -> str:
    """As a terminal of this width shows it, without its colours."""
    written = io.StringIO()
    screen = Console(width=width, force_terminal=True, no_color=True, highlight=False, file=written)
    with pytest.MonkeyPatch.context() as patch:
        for module in (terminal, status, incidents):
            patch.setattr(module, "console", lambda: screen)
        screen.print(view())
    return re.sub(r"\x1b\[[0-9;]*m", "", written.getvalue())


def test_two_jobs_of_one_name_are_told_apart_and_only_one_has_the_culprit(capsys: Capture) -> None:
    other = msgspec.structs.replace(JOB, epoch=f"{JOB.epoch} (2)")
    ranks = (view(2), view(2, job=other, state="stepping"))
    report = node_report(incidents=(incident(),), ranks=ranks)
    for lines in (None, 1):  # status, and top on a small screen
        show(status_view(rank_list(report), incident_list(report), lines))
    shown = capsys.readouterr().out
    first, second = (incident_id(job, 0).removesuffix("-0") for job in (JOB, other))
    assert f"{first}   2/4  waiting, culprit" in shown
    assert f"{second}   2/4  stepping" in shown
    assert shown.count("culprit") == 2
    assert shown.count("2 ranks of 2 jobs") == 2
    show(status_view(rank_list(node_report(ranks=ranks[:1])), incident_list(node_report())))
    assert "1 rank of 1 job" in capsys.readouterr().out
    assert f"{first}: 1 waiting\n{second}: 1 stepping\n" in shown


def test_the_most_urgent_incident_is_first_and_a_small_screen_shows_it_above_the_ranks(capsys: Capture) -> None:
    warning = incident(incident_id="llama-7b-2", severity="warning")
    report = node_report(incidents=(warning, incident()))
    show(status_view(rank_list(report), incident_list(report), 8))
    shown = capsys.readouterr().out
    places = [shown.index(words) for words in ("critical  llama-7b-1", "warning  llama-7b-2", "incidents ID", "1/4")]
    assert places == sorted(places)


@pytest.mark.parametrize(("width", "left_out"), [(72, {"limit", "phase"}), (110, {"phase"})])
def test_a_narrow_window_leaves_columns_out_before_it_cuts_a_name(width: int, left_out: set[str]) -> None:
    ranks = tuple(view(rank, job=JobKey("llama-70b-pretrain", "e")) for rank in range(2))
    report = node_report(ranks=ranks)
    shown = drawn(lambda: status_view(rank_list(report), incident_list(report)), width)
    assert "llama-70b-pretrain" in shown
    heading = next(line for line in shown.splitlines() if line.startswith("job "))
    assert {name for name in ("limit", "step time", "phase", "pid") if name not in heading} == left_out


def test_a_rank_that_ended_in_order_is_told_from_one_that_was_killed(capsys: Capture) -> None:
    ranks = (view(0, state="gone", ended="exit code 0"), view(1, state="gone", ended="signal 9 (SIGKILL)"))
    show(status_view(rank_list(node_report(ranks=ranks)), incident_list(node_report())))
    shown = capsys.readouterr().out
    assert "gone, exit code 0" in shown and "gone, signal 9 (SIGKILL)" in shown


def test_sensors_with_one_reason_share_a_line(capsys: Capture) -> None:
    silent = SensorStatus("gpu_events", False, "no GPU on this node", 0.0, 0, required=False)
    report = node_report()
    sensors = (msgspec.structs.replace(silent, sensor="gpus"), silent)
    report = msgspec.structs.replace(report, snapshot=msgspec.structs.replace(report.snapshot, sensors=sensors))
    show(status_view(rank_list(report), incident_list(report)))
    assert "\ngpus, gpu_events: no GPU on this node\n" in capsys.readouterr().out


def test_acknowledge_without_an_id_means_the_only_open_incident(
    address: Served, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = pwd.getpwuid(os.getuid()).pw_name
    monkeypatch.delenv("SUDO_USER", raising=False)
    assert run(["acknowledge"]) == 0
    assert f"llama-7b-1: acknowledged by {me}." in capsys.readouterr().out
    assert address.control.asked[-1] == ("acknowledge", "llama-7b-1", me)
    assert run(["acknowledge", "llama-7b-9"]) == 64
    assert "no open incident 'llama-7b-9'" in capsys.readouterr().err
    assert run(["acknowledge", "--json", "--by", me, "llama-7b-1"]) == 0
    assert json.loads(capsys.readouterr().out) == {"incident_id": "llama-7b-1", "by": me}


def test_of_more_ranks_than_lines_those_that_differ_are_listed_and_the_incident_stays_on_the_screen() -> None:
    views = tuple(view(rank, world_size=1024, state="phase" if rank == 7 else "waiting") for rank in range(1024))
    report = node_report(incident(acknowledged_by="anna"), ranks=views)
    screen = Console(width=120, record=True, file=io.StringIO())
    screen.print(status_view(rank_list(report), incident_list(report), 24))
    lines = screen.export_text().splitlines()
    assert len(lines) < 20
    assert "llama-7b: 1023 waiting, 1 phase" in lines
    assert [line.split()[1] for line in lines if line.startswith("llama-7b ")] == ["2/1024", "7/1024"]
    assert "anna is on it" in "".join(lines)


def test_status_json_is_the_ranks_with_the_incidents(address: Served, capsys: Capture) -> None:
    assert run(["status", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [rank["rank"] for rank in document["ranks"]] == [0, 1, 2, 3]
    assert document["incidents"][0]["verdicts"][0]["cause"] == "not_entered"


def test_status_url_is_the_page_with_its_token(address: Served, capsys: Capture) -> None:
    assert run(["status", "--url"]) == 0
    assert capsys.readouterr().out.strip() == f"http://127.0.0.1:{address.port}/?token={address.token}"


def test_incidents_lists_open_and_past(address: Served, capsys: Capture) -> None:
    assert run(["incidents"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["incident", "llama-7b-1", "llama-7b-0"]


def test_one_incident_shows_sentence_code_line_reason_next_step_and_stacks(address: Served, capsys: Capture) -> None:
    assert run(["incidents", "llama-7b-1"]) == 0
    shown = capsys.readouterr().out
    for words in (
        "Rank 2 never entered all_reduce #412",
        "/home/anna/locks.py:41 in take_lock",
        "with self._lock:",
        "all_reduce #412; group default_pg; waiting: ranks 0-1,3",
        "rank 2's recorder ends at #411  (flight recorder)",
        "Look at who holds the lock.",
        "take_lock locks.py:41  [rank 2]",
        "evidence complete, safe to kill",
    ):
        assert words in shown, words


def test_one_incident_as_json_is_the_document_of_the_api(address: Served, capsys: Capture) -> None:
    assert run(["incidents", "llama-7b-1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == address.ask("/api/v1/incidents/llama-7b-1").json


@pytest.mark.parametrize("name", ["nope", "../../etc/passwd", ""])
def test_an_unknown_incident_is_wrong_usage_with_advice(address: Served, capsys: Capture, name: str) -> None:
    assert run(["incidents", name]) == 64
    assert f"stallwatch: no incident {name!r}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "found"),
    [("llama-7b-1", "llama-7b-1"), ("llama-7b", "llama-7b-1"), ("llama-7b-0", "llama-7b-0"), ("lla", None)],
)
def test_an_incident_is_found_by_its_beginning_or_by_its_job(
    address: Served, capsys: Capture, asked: str, found: str | None
) -> None:
    code = run(["incidents", asked])
    shown = capsys.readouterr()
    if found is None:
        assert code == 64
        assert "Say one of llama-7b-1, llama-7b-0" in shown.err
    else:
        assert code == 0
        assert shown.out.startswith(f"{found}  ")


def test_a_list_says_who_is_on_it_and_why_nobody_is_told(capsys: Capture) -> None:
    said = {
        "the job is muted": "muted",
        "nobody is told: node0 is in maintenance (anna: new disk); it would have been told as critical": "maintenance",
        "nobody is told that it is critical now: the mode is shadow (anna)": "mode shadow",
    }
    for what, mark in said.items():
        events = (IncidentEvent(WALL_NS, what), IncidentEvent(WALL_NS, "look 2 done"))
        quiet = incident(muted=True, acknowledged_by="anna", events=events)
        show(list_view(incident_list(node_report(incidents=(quiet,)))))
        shown = capsys.readouterr().out
        assert f"open, anna is on it, {mark}  critical" in shown
        document = incident_list(node_report(quiet))
        assert f"critical  open  anna is on it  {mark}" in drawn(partial(list_view, document), 120)
        show(incident_view(incident_document(quiet)))
        assert f"anna is on it, {mark}" in capsys.readouterr().out
        show(status_view(rank_list(node_report(quiet)), incident_list(node_report(quiet))))
        assert f"anna is on it. {mark}." in capsys.readouterr().out
    past = incident(state="ended", acknowledged_by="anna", resolved_wall_ns=WALL_NS)
    show(list_view(incident_list(node_report(past))))
    assert "ended, acknowledged by anna  critical" in capsys.readouterr().out, "nobody is on it any more"
    show(list_view(incident_list(node_report(incident()))))
    assert "open   critical" in capsys.readouterr().out, "nothing beside it"


def test_the_beginning_of_one_id_is_enough(address: Served, capsys: Capture) -> None:
    assert run(["incidents", "llama-7b-", "--json"]) == 64  # of two
    assert run(["incidents", ""]) == 64
    assert run(["incidents", "llama-8"]) == 64
    assert "no incident" in capsys.readouterr().err


def test_after_the_end_status_points_to_the_last_incident(capsys: Capture) -> None:
    report = node_report(incidents=(incident(state="ended"),))
    show(status_view(rank_list(report), incident_list(report)))
    shown = capsys.readouterr().out
    assert "No open incident.\nThe last, ended 20" in shown
    assert "Rank 2 never entered" in shown
    assert "stallwatch incidents llama-7b-1" in shown


def test_a_rank_directory_of_this_shell_that_no_daemon_reads_is_said(
    address: Served, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STALLWATCH_DIR", str(tmp_path))
    assert run(["status"]) == 0
    assert f"STALLWATCH_DIR is {tmp_path} in this shell, and no daemon reads there" in capsys.readouterr().err
    prepare(tmp_path)  # as a daemon does, which this process is from now on
    assert run(["status"]) == 0
    assert "STALLWATCH_DIR" not in capsys.readouterr().err


def test_where_jobs_of_this_shell_write_and_no_daemon_reads_is_said_where_none_is_seen(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("STALLWATCH_DIR", raising=False)
    monkeypatch.setattr(status, "SERVICE_DIRECTORY", str(tmp_path))
    for ranks, said in (((), True), ((view(0),), False)):
        with served(node_report(ranks=ranks)) as node:
            assert run(["status", "--socket", str(node.output.socket_path)]) == 0
        shown = capsys.readouterr().err
        assert (f"jobs of this shell write to {tmp_path}, and no daemon reads there" in shown) is said
        assert ("Export the STALLWATCH_DIR" in shown) is said


def test_what_goes_on_in_a_second_line_is_indented_as_its_first() -> None:
    out = io.StringIO()
    event = IncidentEvent(0, "suspected: no rank here moves; the last has stood for long")
    (document,) = incident_list(node_report(incidents=(incident(events=(event,)),))).incidents
    Console(width=40, file=out).print(incident_view(document))
    history = out.getvalue().split("\nhistory\n")[1].splitlines()
    assert len(history) > 2
    assert all(line.startswith("  ") and not line.startswith("   ") for line in history[:2]), history


def test_history_says_no_sentence_twice(capsys: Capture) -> None:
    told = verdict()
    events = (
        IncidentEvent(0, "suspected: steps stand"), IncidentEvent(1, "look 2 done"),
        IncidentEvent(2, f"verdict: not_entered (likely): {told.summary}"),
        IncidentEvent(3, f"verdict still: not_entered (likely): {told.summary}"),
    )  # fmt: skip
    report = node_report(incidents=(incident(events=events, report=diagnosis(told)),))
    show(incident_view(incident_list(report).incidents[0]))
    shown = capsys.readouterr().out
    assert shown.count(told.summary) == 1
    assert "look 2 done" not in shown
    assert "verdict still: not_entered (likely), as above" in shown


@pytest.mark.parametrize(
    ("together", "says"),
    [
        (Together(False, "node-3 tells of it", "llama-7b-1", 4), "by what 4 nodes see node-3 tells of it"),
        (Together(True, "", "llama-7b-1", 1), "by what 1 node sees this node tells of it"),
        (Together(True, "", "llama-7b-1", 4), "by what 4 nodes see this node tells of it"),
    ],
)
def test_of_an_incident_that_other_nodes_see_too_it_says_who_tells(
    together: Together, says: str, capsys: Capture
) -> None:
    report = node_report(incidents=(incident(together=together),))
    show(incident_view(incident_list(report).incidents[0]))
    assert says in " ".join(capsys.readouterr().out.split())


def test_times_have_their_zone_and_their_distance() -> None:
    now = datetime(2026, 11, 28, 17, 32, 0, tzinfo=UTC)
    assert time_and_distance("2026-11-28T18:01:12Z", now).endswith(" (in 29 min)")
    assert time_and_distance("2026-11-28T17:31:50Z", now).endswith(" (10 s ago)")
    assert re.search(r"\d\d:\d\d:\d\d \S+$", local_time("2026-11-28T18:01:12Z"))
    assert time_and_distance(None) == ""


def test_past_incidents_that_cannot_be_read_hide_no_open_one(
    address: Served, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(limit: int) -> NoReturn:
        raise DiskHangs(errno.ETIMEDOUT, "/var/lib/stallwatch has not answered for 9 s")

    monkeypatch.setattr(address.control, "past_incidents", hangs)
    assert run(["incidents"]) == 0
    shown = capsys.readouterr()
    assert "llama-7b-1" in shown.out
    assert "past incidents cannot be read: /var/lib/stallwatch has not answered for 9 s" in shown.err


def test_top_streams_documents_and_refuses_to_draw_into_a_pipe(address: Served, capsys: Capture) -> None:
    assert run(["top", "--json", "--count", "2", "--interval", "0.1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["node"] for line in lines] == ["gpu-node-17"] * 2
    assert run(["top"]) == 64


def test_in_a_terminal_the_only_open_incident_is_told_once_in_full_and_what_was_before_below(
    address: Served, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    monkeypatch.setenv("COLUMNS", "1000")
    assert run(["incidents"]) == 0
    shown = capsys.readouterr().out
    assert shown.count(incident().verdict.summary) == 1  # type: ignore[union-attr]
    assert shown.index("llama-7b-1") < shown.index("history") < shown.index("before") < shown.index("llama-7b-0")


def test_who_gives_the_name_of_an_incident_for_its_folder_is_told_where_it_is(capsys: Capture, tmp_path: Path) -> None:
    for words in (["bundle", "export", "llama-7b-1", str(tmp_path / "x")], ["analyze", "llama-7b-1"]):
        assert run(words) in (64, 65)
        error = capsys.readouterr().err
        assert "the last line of `stallwatch incidents ID`" in error.replace("The", "the"), words


@pytest.mark.parametrize("command", ["status", "incidents", "capture", "notify-test", "top"])
def test_without_a_daemon_each_says_how_to_start_one(command: str, capsys: Capture) -> None:
    arguments = [command, "--socket", "/nowhere/control.sock"] + (["--json"] if command == "top" else [])
    assert run(arguments) == 69
    assert "stallwatch daemon" in capsys.readouterr().err


def test_a_job_cannot_drive_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    hostile = incident(report=diagnosis(verdict(summary="\x1b[2Jgone\x07 [red]x[/red]", next_steps=("\x9b31m",))))
    with served(node_report(hostile), FakeControl(incidents=(hostile,))) as made:
        monkeypatch.setenv("STALLWATCH_DAEMON_RUN_DIRECTORY", str(made.directory))
        for arguments in (["status"], ["incidents"], ["incidents", "llama-7b-1"]):
            assert run(arguments) == 0
    shown = capsys.readouterr().out
    assert not any(character in shown for character in "\x1b\x07\x9b")
    assert "[red]x[/red]" in shown


def test_every_command_of_this_folder_explains_itself(capsys: Capture) -> None:
    for command in ("status", "incidents", "capture", "mute", "notify-test", "config", "top"):
        assert command in COMMANDS
        assert run([command, "--help"]) == 0
        assert "Usage: stallwatch" in capsys.readouterr().out


def test_what_a_job_writes_does_not_drive_the_terminal(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    evil = incident(report=diagnosis(verdict(summary="\x1b[2Jgone", next_steps=("\x1b]0;owned\x07",))))
    with served(node_report(evil), FakeControl(incidents=(evil,))) as node:
        monkeypatch.setenv("STALLWATCH_DAEMON_RUN_DIRECTORY", str(node.directory))
        assert run(["incidents", "llama-7b-1"]) == 0
        assert run(["status"]) == 0
    assert "\x1b" not in capsys.readouterr().out
