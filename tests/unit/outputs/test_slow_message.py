"""What Slack shows of ranks that hold a job back."""

import msgspec

from stallwatch.model.verdict import CulpritProcess, Frame, Slowness, cost_of
from stallwatch.outputs.slack_message import slack_message
from tests.builders.clock import WALL_NS
from tests.unit.outputs.reports import diagnosis, incident, verdict
from tests.unit.outputs.test_slack_message import check_limits, texts


def test_what_a_slow_rank_costs_is_said_once() -> None:
    slow = Slowness(0.06, 0.05, 0.07, 0.26, 41, 11.0)
    for summary in ("Rank 2 holds the job back: each step takes 0.26 s, 0.06 s longer.", "Rank 2 holds the job back."):
        found = verdict(cause="slow_rank", summary=summary, slowness=slow)
        assert texts(slack_message(incident(report=diagnosis(found)), "told")).count("0.06 s") == 1


def test_of_a_slow_rank_what_it_costs_is_said_first() -> None:
    cost = Slowness(0.06, 0.05, 0.07, 0.26, 100, 26.0)
    slow = msgspec.structs.replace(verdict(), cause="slow_rank", culprits=(2,), slowness=cost)
    told = slack_message(incident(report=diagnosis(slow)), "told")
    assert "rank 2: slow_rank +30%" in told["blocks"][0]["text"]["text"]
    assert "costs 0.06 s of each step of 0.26 s" in texts(told)


def test_who_since_when_how_much_why_and_what_now_stand_in_the_first_lines_of_a_slow_rank() -> None:
    """Since when was small print at the end, and the rest one long sentence."""
    cost = Slowness(0.06, 0.05, 0.07, 0.26, 100, 26.0)
    lead, why = "Rank 2 (pid 7 on node1) holds the job back", "it spends 38% of its time at data.py:41 in load (`x`)"
    found = verdict(
        cause="slow_rank",
        summary=f"{lead}, which still moves: {cost_of(cost)}; {why}.",
        slowness=cost,
        next_steps=("See why rank 2 alone is at data.py:41.",),
    )
    told = slack_message(incident(report=diagnosis(found)), "told", "https://watch.example")
    check_limits(told)
    header, section = (block["text"]["text"] for block in told["blocks"][:2])
    assert "rank 2: slow_rank +30% since 00:00 UTC" in header
    assert section.splitlines() == [
        f"*Who:* {lead}, which still moves",
        "*Since:* 00:00 UTC",
        f"*How much:* {cost_of(cost)}",
        f"*Why:* {why}",
    ]
    assert "*What to do*\n1. See why rank 2 alone" in texts(told)
    assert texts({"blocks": told["blocks"][1:]}).count("00:00 UTC") == 1
    phone = told["text"].splitlines()
    assert phone[1].startswith(lead) and "nothing has to be ended" in phone[2]
    unknown = msgspec.structs.replace(found, summary=f"{lead}: {cost_of(cost)}.")
    assert "*Why:* no look has shown it yet" in texts(slack_message(incident(report=diagnosis(unknown)), "told"))


def test_at_its_end_what_was_slow_how_much_and_from_when_to_when_is_told_and_not_that_something_started() -> None:
    """It was read as a start ("llama-7b (started 23:50 UTC): resolved, rank 2: slow_rank"), and told none of it."""
    cost = Slowness(0.06, 0.05, 0.07, 0.26, 100, 26.0)
    slow = verdict(cause="slow_rank", where="user_code", summary="Rank 2 holds the job back.", slowness=cost)
    over = incident(
        state="resolved",
        severity="warning",
        report=diagnosis(slow),
        resolution="the job is no longer held back",
        job_began_wall_ns=WALL_NS - 600 * 10**9,
        resolved_wall_ns=WALL_NS + 83 * 10**9,
    )
    told = slack_message(over, "resolved")
    assert told["blocks"][0]["text"]["text"] == (
        "🟢 llama-7b (run of 12-31 23:50 UTC): resolved, rank 2: slow_rank +30% from 00:00 to 00:01 UTC"
    )
    assert "run started 12-31 23:50 UTC, slow since 00:00 UTC, well again 00:01:23 UTC" in texts(told)
    check_limits(told)


def test_a_line_of_the_jobs_own_code_is_no_kind_of_place() -> None:
    culprit = CulpritProcess(2, "node1", 7, None, "user_code", Frame("/job/train.py", 240, "main"))
    slow = verdict(cause="slow_rank", where="user_code", culprit_processes=(culprit,))
    title = slack_message(incident(report=diagnosis(slow)), "told")["blocks"][0]["text"]["text"]
    assert title.endswith(" since 00:00 UTC, at train.py:240")
