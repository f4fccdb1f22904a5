import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stallwatch import config
from stallwatch.clock import SystemClock
from stallwatch.errors import UsageError
from stallwatch.incidents.delivery_steps import Step
from stallwatch.model.incident import Incident
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import JobKey
from stallwatch.model.verdict import Cause, CulpritProcess, Fact, Frame, Mismatch, StackNode
from stallwatch.outputs.slack import SlackWords, slack
from stallwatch.outputs.slack_message import (
    escape,
    slack_acknowledged,
    slack_answer,
    slack_digest,
    slack_line,
    slack_message,
    slack_test_message,
)
from tests.builders.clock import WALL_NS
from tests.unit.outputs.reports import GPU, JOB, NODE, diagnosis, finding, incident, node_report, verdict, with_snapshot


def texts(message: dict[str, Any]) -> str:
    """Every text of a message, one after the other."""
    found: list[str] = []

    def walk(value: object) -> None:
        if isinstance(value, dict):
            found.extend([value["text"]] if isinstance(value.get("text"), str) else [])
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(message["blocks"])
    return "\n".join(found)


def check_limits(message: dict[str, Any]) -> None:
    """https://docs.slack.dev/reference/block-kit/blocks"""
    assert len(message["text"]) <= 40_000
    assert 0 < len(message["blocks"]) <= 50
    for block in message["blocks"]:
        match block["type"]:
            case "header":
                assert 0 < len(block["text"]["text"]) <= 150
                assert block["text"]["type"] == "plain_text"
            case "section":
                assert ("text" in block) != ("fields" in block)
                if "text" in block:
                    assert 0 < len(block["text"]["text"]) <= 3000
                else:
                    assert 0 < len(block["fields"]) <= 10
                    assert all(0 < len(field["text"]) <= 2000 for field in block["fields"])
            case "context":
                assert 0 < len(block["elements"]) <= 10
                assert all(0 < len(element["text"]) <= 3000 for element in block["elements"])
            case other:
                raise AssertionError(f"unexpected block {other}")


def test_it_names_cause_rank_place_code_line_waiters_reason_and_next_step() -> None:
    message = slack_message(incident(), "told", "https://watch.example/node1/")
    check_limits(message)
    shown = texts(message)
    for words in (
        "llama-7b: rank 2: not_entered",
        "Rank 2 never entered all_reduce #412: it waits for a lock in take_lock (locks.py:41).",
        "`not_entered`, certain",
        "1. Look at who holds the lock.",
        "Evidence complete, safe to kill; torch's own timeout ends the job at 00:10:00 UTC",
        "<https://watch.example/node1/?incident=llama-7b-1|Open or acknowledge the incident>",
    ):
        assert words in shown, words
    folded = [attachment["text"] for attachment in message["attachments"]]
    assert "rank 2's recorder ends at #411 (flight recorder)" in folded[0]
    assert "Rank 2 never entered all_reduce #412" in message["text"]


def test_it_says_nothing_twice() -> None:
    """The headline is what a list of messages shows; below it each fact has its place once."""
    whole = slack_message(incident(), "told", "https://watch.example")
    below = "\n".join(texts({"blocks": whole["blocks"][1:]}).splitlines())
    for fact in ("rank 2", "locks.py:41", "take_lock", "all_reduce", "certain", "not_entered", "gpu-node-17"):
        assert below.lower().count(fact) == 1, fact
    assert len(below) < 600


def test_the_first_two_steps_stand_in_it_and_what_comes_after_is_folded() -> None:
    steps = tuple(f"Do the {number}." for number in ("first", "second", "third", "fourth"))
    message = slack_message(incident(report=diagnosis(verdict(next_steps=steps))), "told")
    assert "1. Do the first.\n2. Do the second." in texts({"blocks": message["blocks"]})
    assert "third" not in texts({"blocks": message["blocks"]})
    (folded,) = message["attachments"]
    assert "*And then*\n3. Do the third.\n4. Do the fourth.\n*Because*\n" in folded["text"]


@pytest.mark.parametrize("named", [True, False])
def test_what_differs_is_said_once(named: bool) -> None:
    differs = Mismatch("size", "1048576 elements", "2097152 elements")
    summary = (
        "Rank 2 entered all_reduce with 2097152 elements where the others have 1048576 elements."
        if named
        else "Sizes differ."
    )
    found = verdict(cause="collective_mismatch", summary=summary, mismatch=differs, where="collective")
    told = incident(report=diagnosis(found))
    shown = texts(slack_message(told, "told"))
    assert shown.count("2097152 elements") == 1
    assert "mismatch, collective" not in shown


def test_of_a_rank_that_the_sentence_names_only_its_line_is_added() -> None:
    said = verdict(cause="process_stopped", summary=f"Rank 2 (pid 48213 on {NODE}) is held by a stop signal.")
    below = texts({"blocks": slack_message(incident(report=diagnosis(said)), "told")["blocks"][1:]})
    assert below.count("48213") == below.count("Rank 2") == 1
    assert "`/home/anna/locks.py:41` in `take_lock` · `with self._lock:`" in below


def test_where_no_link_is_possible_it_says_why_and_how_to_see_it() -> None:
    shown = texts(slack_message(incident(), "told"))
    assert "why: `stallwatch incidents llama-7b-1` on `gpu-node-17` (no link: `http.external_url` is not set)" in shown


def test_each_culprit_at_a_line_of_its_own_is_listed_with_it() -> None:
    frames = (
        Frame("/home/anna/locks.py", 41, "take_lock", "with lock:"),
        Frame("/home/anna/data.py", 8, "__next__", "x"),
    )
    both = tuple(CulpritProcess(rank, f"n{rank}", rank, None, "lock", frame) for rank, frame in enumerate(frames, 1))
    shown = texts(slack_message(incident(report=diagnosis(verdict(culprits=(1, 2), culprit_processes=both))), "told"))
    assert "*Rank 1* · on `n1` · pid 1 · `/home/anna/locks.py:41` in `take_lock` · `with lock:`" in shown
    assert "*Rank 2* · on `n2` · pid 2 · `/home/anna/data.py:8` in `__next__` · `x`" in shown


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("at a.py:3 in __next__ (`x = *a`)", "at a.py:3 in `__next__` (`x = *a`)"),
        ("f(*args, **kw) and all_reduce", "f(`*args`, `**kw`) and all_reduce"),
        ("one ` alone", "one ' alone"),
        ("~/train.py, 2 * 3 < 7", "`~/train.py`, 2 * 3 &lt; 7"),
    ],
)
def test_words_that_slack_would_take_for_its_marks_are_code(said: str, shown: str) -> None:
    message = slack_message(incident(report=diagnosis(verdict(summary=said))), "told")
    assert message["blocks"][1]["text"]["text"] == shown


def test_it_does_not_call_an_incomplete_capture_safe() -> None:
    shown = texts(slack_message(incident(report=diagnosis(evidence_complete=False)), "told"))
    assert "safe to kill" not in shown
    assert "not complete" in shown


@pytest.mark.parametrize(
    ("step", "headline"),
    [
        ("told", "🔴 llama-7b: rank 2: not_entered, lock at locks.py:41"),
        ("escalated", "🔴 llama-7b: still rank 2: not_entered, lock at locks.py:41"),
        ("resolved", "🟢 llama-7b: resolved, rank 2: not_entered"),
    ],
)
def test_the_headline_says_which_step_it_is(step: Step, headline: str) -> None:
    over = {"state": "resolved", "resolution": "the job moves again"} if step == "resolved" else {}
    message = slack_message(incident(**over), step)
    assert message["blocks"][0]["text"]["text"] == headline
    assert ("The job moves again." in message["text"]) == (step == "resolved")


def test_a_locked_phone_shows_job_rank_cause_code_line_and_whether_it_may_be_killed_first() -> None:
    lines = slack_message(incident(), "told")["text"].splitlines()
    assert lines[0] == "🔴 llama-7b: rank 2: not_entered, lock at locks.py:41"
    assert lines[1].startswith("✅ Evidence complete, safe to kill; torch's own timeout ends the job at 00:10:00 UTC")
    assert lines[2].startswith("Rank 2 never entered all_reduce #412")


def test_culprits_at_two_lines_of_code_have_none_in_the_headline() -> None:
    both = tuple(
        CulpritProcess(rank, where="lock", frame=Frame("/a/locks.py", 40 + rank, "take", None)) for rank in (1, 2)
    )
    told = slack_message(incident(report=diagnosis(verdict(culprits=(1, 2), culprit_processes=both))), "told")
    assert told["text"].splitlines()[0] == "🔴 llama-7b: ranks 1, 2: not_entered, lock"


@pytest.mark.parametrize("cause", ["slow_rank", "waiting"])
def test_a_job_that_moves_is_not_offered_to_be_killed(cause: Cause) -> None:
    shown = texts(slack_message(incident(report=diagnosis(verdict(cause=cause))), "told"))
    assert "safe to kill" not in shown
    assert "Evidence complete" in shown
    assert ("torch's own timeout" in shown) == (cause == "waiting")  # a long wait may yet be ended by it


def test_nobody_is_called_by_what_a_job_writes() -> None:
    frame = Frame("<!here>.py", 1, "<@U1>", "x = '```' # <!channel> & <http://evil|click>")
    hostile = verdict(
        summary="<!everyone> look",
        operation="<!subteam^S1>",
        culprit_processes=(CulpritProcess(2, "<!channel>", 1, None, None, frame),),
    )
    job = type(JOB)("<!channel>", "e")
    message = slack_message(incident(job=job, report=diagnosis(hostile), bundle="/<!here>"), "told")
    check_limits(message)
    marked = json.dumps([block for block in message["blocks"] if block["type"] != "header"]) + message["text"]
    assert "<!" not in marked
    assert "<@" not in marked
    assert "<http" not in marked
    code = next(block["text"]["text"] for block in message["blocks"] if "x = " in block.get("text", {}).get("text", ""))
    assert code.count("`") % 2 == 0  # its source did not end the code early


LONG = "é" * 9000 + "&" * 9000


@pytest.mark.parametrize(
    "sick",
    [
        incident(report=diagnosis(verdict(summary=LONG, operation=LONG, waiting=LONG, next_steps=(LONG,) * 20))),
        incident(report=diagnosis(verdict(because=(Fact(LONG, LONG),) * 30, missing=(LONG,), cause="undecided"))),
        incident(
            report=diagnosis(
                verdict(
                    culprits=tuple(range(1024)),
                    culprit_processes=tuple(
                        CulpritProcess(rank, LONG, rank, LONG, "lock", Frame(LONG, 1, LONG, LONG))
                        for rank in range(1024)
                    ),
                )
            )
        ),
        incident(job=type(JOB)(LONG, "e"), incident_id="x" * 400, bundle=LONG),
        incident(report=None, findings=(finding(reason=LONG),)),
        incident(report=None, findings=()),
        incident(report=diagnosis(verdict(summary="", culprits=(), culprit_processes=(), waiting="", because=()))),
    ],
)
def test_nothing_is_too_long_or_empty_for_slack(sick: Incident) -> None:
    check_limits(slack_message(sick, "told"))
    over = incident(state="resolved", report=sick.report, job=sick.job)
    check_limits(slack_message(over, "resolved"))


def test_a_cut_never_leaves_half_an_escaped_character() -> None:
    blocks = slack_message(incident(report=diagnosis(verdict(summary="&" * 5000))), "told")["blocks"]
    assert blocks[1]["text"]["text"].rstrip("…").replace("&amp;", "") == ""


def test_escape_is_the_three_characters() -> None:
    assert escape("a<b>&c") == "a&lt;b&gt;&amp;c"


def test_the_test_message_fits_too() -> None:
    check_limits(slack_test_message("node", "https://watch.example"))


def test_the_stacks_are_an_attachment_that_slack_folds_and_a_job_cannot_end_their_block() -> None:
    evil = StackNode("f```<!channel>", "x" * 4000, 1, "2", 1)
    tree = StackNode("<module>", "train.py", 12, "0-3", 4, (evil, evil))
    *_, attachment = slack_message(incident(report=diagnosis(stacks=tree)), "told")["attachments"]
    assert len(attachment["text"]) <= 3000
    assert attachment["text"].count("```") == 2
    assert "<!" not in attachment["text"]
    *_, attachment = slack_message(incident(), "told")["attachments"]
    assert "take_lock locks.py:41  [rank 2]" in attachment["text"]
    assert "attachments" not in slack_message(incident(state="resolved"), "resolved")
    assert "attachments" not in slack_message(
        incident(severity="critical"), "escalated"
    )  # why was said when it was told


def test_a_gpu_is_named_with_its_serial_and_the_way_to_silence_is_said() -> None:
    gpu = msgspec.structs.replace(GPU, uuid="GPU-2", index=2, serial="1654923001")
    report = with_snapshot(node_report(), gpus=Known((gpu,), 0))
    shown = texts(slack_message(incident(), "told", report=report))
    assert "GPU 2 `GPU-2`, serial `1654923001`" in shown
    assert "`stallwatch mute llama-7b --for 2h`" in shown
    assert "serial" not in texts(slack_message(incident(), "told"))  # its uuid alone is in the verdict


@pytest.mark.parametrize("step", ["updated", "escalated", "resolved"])
def test_what_a_thread_hears_fits_and_only_an_escalation_is_for_the_whole_channel(step: Step) -> None:
    long = incident(report=diagnosis(verdict(summary="<!channel>" * 1000)), resolution="&" * 5000)
    answer = slack_answer(long, step)
    check_limits(answer)
    assert "<!" not in texts(answer) + answer["text"]
    assert answer["reply_broadcast"] == (step == "escalated")


@pytest.mark.parametrize("count", [1, 60, 200])
def test_a_digest_of_any_size_fits_and_links_each_incident(count: int) -> None:
    wordy = incident(report=diagnosis(verdict(summary="<!channel> " * 100)))
    message = slack_digest([slack_line(wordy, "told", "https://watch.example/")] * count)
    check_limits(message)
    shown = texts(message)
    assert shown.count("<https://watch.example/?incident=llama-7b-1|→>") == min(count, 50)
    assert "<!" not in shown


def test_who_is_on_it_is_said_in_the_thread_and_on_the_first_message() -> None:
    taken = incident(acknowledged_by="anna <!channel>")
    answer = slack_answer(taken, "acknowledged")
    assert "anna &lt;!channel&gt;` is on it" in texts(answer)
    assert "reply_broadcast" not in answer
    assert "&lt;!channel&gt;` is on it" in texts(slack_message(taken, "told"))
    assert "Open or acknowledge" in texts(slack_message(incident(), "told", "https://watch"))
    assert "acknowledge" not in texts(slack_message(taken, "told", "https://watch"))


def test_without_a_thread_who_is_on_it_says_of_which_incident() -> None:
    message = slack_acknowledged(incident(acknowledged_by="slack:U07ANNA"), "https://watch")
    check_limits(message)
    assert "<@U07ANNA> is on it" in texts(message)
    assert "llama-7b: rank 2: not_entered" in texts(message)
    assert "https://watch/?incident=llama-7b-1" in texts(message)
    assert "<@" not in texts(slack_acknowledged(incident(acknowledged_by="slack:U1> <!channel>")))


def test_a_bot_writes_to_the_channel_of_the_job_or_of_its_owner() -> None:
    words = SlackWords("", "#training", (("llama-*", "#llama"), ("owner:an?a", "#anna")))
    for job, channel in (
        (JobKey("llama-7b", "1", "anna"), "#llama"),
        (JobKey("resnet", "1", "anna"), "#anna"),
        (JobKey("resnet", "1", "ben"), "#training"),
    ):
        steps: tuple[Step, ...] = ("told", "escalated")
        for step in steps:
            assert words.message(incident(job=job), step, node_report())["channel"] == channel
    assert words.digest(["a"])["channel"] == "#training"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"bot_token": "xoxb-1", "channel": "#a", "channels": "llama"}, "'llama' is no rule"),
        ({"webhook_url": "https://hooks.slack.com/x", "channels": "a=#b"}, "needs a bot"),
    ],
)
def test_rules_for_channels_that_cannot_work_are_refused(settings: dict[str, str], said: str) -> None:
    configured, _ = config.load(overrides={("slack", key): text for key, text in settings.items()})
    with pytest.raises(UsageError, match=said):
        slack(configured, SystemClock())


HOOK, OTHERS = ("slack", "webhook_url"), ("alertmanager", "urls")


@pytest.mark.parametrize(
    ("keys", "speaks"),
    [
        ({}, True),
        ({OTHERS: "http://am:9093"}, False),
        ({OTHERS: "http://am:9093", ("slack", "also"): True}, True),
    ],
)
def test_where_alertmanager_is_the_voice_slack_is_silent_unless_both_are_wanted(
    tmp_path: Path, keys: dict[tuple[str, str], object], speaks: bool
) -> None:
    keys = {HOOK: "https://hooks.slack.com/x", ("daemon", "state_directory"): str(tmp_path), **keys}
    configured, warnings = config.load(overrides=keys)
    assert (slack(configured, SystemClock()) is not None) is speaks
    assert [words for words in warnings if "[slack] is silent" in words and "slack.also" in words] == warnings
    assert bool(warnings) is not speaks


def test_what_a_channel_has_read_a_minute_ago_is_not_said_again() -> None:
    told, still = (texts(slack_message(incident(severity="critical"), step)) for step in ("told", "escalated"))
    assert ("What to do" in told, "What to do" in still) == (True, False)
    assert "Rank 2 never entered" in still  # whoever reads only this one knows whom it is about
    over = slack_message(incident(state="ended", resolution="the job ended"), "ended")
    assert over["blocks"][0]["text"]["text"] == "⚫ llama-7b: the job is over, it was rank 2: not_entered"
    assert texts(over).count("ended") == 0
    began, ended = WALL_NS - 86_400 * 10**9, WALL_NS + 125 * 10**9
    lived = incident(state="ended", resolution="the job ended", job_began_wall_ns=began, resolved_wall_ns=ended)
    over = slack_message(lived, "ended")  # the next job of this name may run already
    title = "⚫ llama-7b (run of 12-31 00:00 UTC): the job is over, it was rank 2: not_entered"
    assert over["blocks"][0]["text"]["text"] == title
    assert "run started 12-31 00:00 UTC, found 00:00 UTC, over 00:02:05 UTC" in texts(over)
    assert "over 00:02:05 UTC" in slack_line(lived, "ended")
    again = slack_message(incident(state="ended", resolution="the job was restarted"), "ended")
    assert "The job was restarted." in texts(again)
