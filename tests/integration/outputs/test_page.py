"""The status page in a real browser: what it shows, to whom, and that what a job writes stays text."""

import re
import tarfile
from typing import Any

import pytest

from stallwatch.model.incident import IncidentEvent
from stallwatch.model.verdict import CulpritProcess, Frame
from tests.builders.clock import WALL_NS
from tests.integration.outputs.browser import PHONE, WIDE, accuse, address, needs_browser, opened
from tests.integration.outputs.serving import Served, served
from tests.integration.outputs.serving import stalled as stalled_report
from tests.unit.outputs.reports import FakeControl, diagnosis, incident, node_report, verdict

pytestmark = needs_browser


@pytest.mark.parametrize(("size", "theme"), [(WIDE, "light"), (PHONE, "dark")], ids=["wide-light", "phone-dark"])
def test_it_shows_the_whole_story_without_complaint(
    stalled: Served, browser: Any, size: tuple[int, int], theme: str
) -> None:
    with opened(browser, address(stalled), size, theme) as shown:
        page = shown.page
        page.wait_for_selector(".timeline .band")
        text = page.inner_text("body")
        for words in (
            "Rank 2 never entered all_reduce #412",
            "/home/anna/locks.py:41 in take_lock",
            "with self._lock:",
            "Look at who holds the lock.",
            "Evidence complete, safe to kill",
            "live ·",
        ):
            assert words in text, words
        graph = page.locator(".graph")
        assert "wait in all_reduce #412 of default_pg" in graph.locator(".waiters").inner_text()
        assert "rank 2\n" in graph.locator(".culprits").inner_text()
        assert "locks.py:41 take_lock" in graph.locator(".culprits").inner_text()
        assert page.locator(".stacks .outlier").first.inner_text().startswith("2take_lock")
        blamed = page.locator(".timeline li", has=page.locator(".name.blamed"))
        assert "at the end neither steps nor waits" in (blamed.text_content() or "")
        assert "rank 2" in page.locator(".gpus .blamed").inner_text()
        assert page.locator("tr.culprit-row .state").inner_text() == "suspect, culprit"  # not by its colour alone
        assert page.evaluate("document.documentElement.scrollWidth") == size[0]  # nothing sticks out
        assert accuse(page) == []
        assert shown.complaints == []
        assert shown.hosts == {f"127.0.0.1:{stalled.port}"}


def test_it_works_by_keyboard_alone(stalled: Served, browser: Any) -> None:
    with opened(browser, address(stalled)) as shown:
        page = shown.page
        page.wait_for_selector(".timeline .band")
        reached: list[str] = []
        for _ in range(12):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.textContent.slice(0, 40)"))
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid", reached
            if reached[-1].startswith("History"):
                break
        assert reached[-1].startswith("History"), reached
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Download the raw evidence"
        with page.expect_download() as download:
            page.keyboard.press("Enter")
        with tarfile.open(download.value.path()) as archive:
            assert archive.getnames() == ["llama-7b-1/timeline.jsonl"]


def test_an_incident_appears_and_ends_without_a_reload(browser: Any) -> None:
    control = FakeControl()
    with served(node_report(), control) as node, opened(browser, address(node)) as shown:
        page = shown.page
        page.wait_for_selector("text=No open incident.")
        page.evaluate("window.same = true")
        control.incidents = (incident(),)
        node.output.publish(node_report(incident()))
        page.wait_for_selector("article >> text=Rank 2 never entered")
        assert page.title().startswith("(1) stalled")
        node.output.publish(node_report(incident(state="resolved", resolution="the job ended")))
        page.wait_for_selector("text=No open incident.")
        page.wait_for_selector("#past >> text=the job ended")
        assert page.evaluate("window.same")
        assert shown.complaints == []


def test_an_incident_is_acknowledged_on_the_page(browser: Any) -> None:
    control = FakeControl(incidents=(incident(),))
    with served(node_report(incident()), control) as node, opened(browser, address(node)) as shown:
        page = shown.page
        page.get_by_role("button", name="Acknowledge").click()
        page.wait_for_selector("text=noted: somebody with the page's token")
        assert control.asked[-1][:2] == ("acknowledge", "llama-7b-1")
        control.incidents = (incident(acknowledged_by="anna"),)
        node.output.publish(node_report(*control.incidents))
        page.wait_for_selector("article >> text=anna is on it")
        assert page.locator("form").count() == 0
        assert shown.complaints == []


def test_who_and_what_to_do_come_before_the_reasons_and_the_time_left_is_counted(stalled: Served, browser: Any) -> None:
    with opened(browser, address(stalled), PHONE) as shown:
        shown.page.wait_for_selector(".timeline .band")
        text = shown.page.inner_text("article")
        said = [
            "Rank 2 never entered all_reduce #412",
            "Evidence complete, safe to kill",
            "(in 10 min)",
            "/home/anna/locks.py:41 in take_lock",
            "Look at who holds the lock.",
            "rank 2's recorder ends at #411",
            "stallwatch mute llama-7b --for 2h",
        ]
        places = [text.find(words) for words in said]
        assert -1 not in places, dict(zip(said, places, strict=True))
        assert places == sorted(places)


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_a_long_line_of_code_scrolls_by_itself_and_widens_nothing(size: tuple[int, int], browser: Any) -> None:
    frame = Frame(
        "/srv/" + "deep/" * 30 + "train.py", 41, "take_lock", "self.gate = " + "acquire_and_hold_" * 12 + "()"
    )
    long = incident(
        report=diagnosis(verdict(culprit_processes=(CulpritProcess(2, "node0", 4711, None, "lock", frame),)))
    )
    with (
        served(node_report(long), FakeControl(incidents=(long,))) as node,
        opened(browser, address(node), size) as shown,
    ):
        shown.page.wait_for_selector(".culprit pre")
        wide = shown.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= size[0], f"the page is {wide} pixels wide"


def test_several_incidents_are_listed_first_the_most_urgent_at_the_top(browser: Any) -> None:
    slow = incident(incident_id="b-1", severity="warning", report=diagnosis(verdict(cause="slow_rank", culprits=(0,))))
    hang = incident(muted=True)
    with (
        served(node_report(slow, hang), FakeControl(incidents=(slow, hang))) as node,
        opened(browser, address(node)) as shown,
    ):
        page = shown.page
        page.wait_for_selector("article#b-1")
        lines = page.locator(".overview li").all_inner_texts()
        assert [line.split()[0] for line in lines] == ["critical", "warning"]
        assert "rank 2 · not_entered · lock" in lines[0]
        assert [card.get_attribute("id") for card in page.locator("article").all()] == ["llama-7b-1", "b-1"]
        moves, stands = page.inner_text("#b-1"), page.inner_text("#llama-7b-1")
        assert "the job moves, nothing has to be ended" in moves
        assert "torch's own timeout" not in moves
        assert "Muted: nobody is told of this job." in stands
        assert "stallwatch mute llama-7b --for 0" in stands
        assert accuse(page) == []
        assert shown.complaints == []


def test_of_several_incidents_all_but_the_first_are_folded_and_stay_as_somebody_left_them(browser: Any) -> None:
    other = incident(incident_id="b-1", severity="warning")
    control = FakeControl(incidents=(incident(), other))
    with served(node_report(*control.incidents), control) as node, opened(browser, address(node)) as shown:
        page = shown.page
        page.wait_for_selector("article#b-1")
        first, folded = page.locator("#llama-7b-1 .graph"), page.locator("#b-1 .graph")
        assert (first.is_visible(), folded.is_visible()) == (True, False)
        assert "Rank 2 never entered" in page.locator("#b-1 .sentence").inner_text()
        page.locator("#b-1 >> text=Why, where, and what to do").click()
        assert folded.is_visible()
        control.incidents = (incident(), incident(incident_id="b-1", severity="critical"))
        node.output.publish(node_report(*control.incidents))
        page.wait_for_selector("article.critical#b-1")
        assert folded.is_visible()
        assert shown.complaints == []


def test_why_nobody_is_told_stands_there_with_the_time_that_is_left(browser: Any) -> None:
    early = incident(
        severity="none", tell_wall_ns=WALL_NS + 100 * 10**9, tell_reason="it may end by itself: storage may answer late"
    )
    silent = incident(
        incident_id="b-1", severity="none", muted=True, events=(IncidentEvent(0, "nobody is told: the job is muted"),)
    )
    control = FakeControl(incidents=(early, silent))
    with served(node_report(early, silent), control) as node, opened(browser, address(node)) as shown:
        shown.page.wait_for_selector("article#b-1")
        shown.page.wait_for_selector("text=(in 100 s)")
        told = shown.page.inner_text("#llama-7b-1")
        assert "Nobody is told yet: it may end by itself: storage may answer late. Told at" in told
        assert "(in 100 s) unless it moves." in told
        assert "Nobody is told: the job is muted." in shown.page.inner_text("#b-1")
        assert accuse(shown.page) == []
        assert shown.complaints == []


def test_a_suspicion_says_that_it_is_looked_at_and_times_are_written_as_commands_write_them(browser: Any) -> None:
    early = incident(state="suspect", severity="none", report=None)
    control = FakeControl(incidents=(early,))
    with served(node_report(early), control) as node, opened(browser, address(node), PHONE) as shown:
        shown.page.wait_for_selector("text=Nobody is told yet.")
        said = shown.page.inner_text("article")
        assert "Its ranks are being looked at, which takes some seconds." in said
        assert "stallwatch mute" not in said, "there is nothing to hear yet"
        assert re.search(r"since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d, for", said)
        assert accuse(shown.page) == []


def test_after_a_new_start_of_the_daemon_what_is_over_is_listed_from_the_store_the_newest_first(browser: Any) -> None:
    past = tuple(
        incident(
            incident_id=f"old-{day}", state="ended", resolution="the job ended", resolved_wall_ns=WALL_NS - day * 10**12
        )
        for day in range(1, 8)
    )
    with served(node_report(), FakeControl(past=past)) as node, opened(browser, address(node)) as shown:
        page = shown.page
        page.wait_for_selector("text=The last: llama-7b · rank 2 · not_entered ended at")
        listed = page.locator("#past > ul > li > a").all_inner_texts()
        assert listed == [f"old-{day}" for day in range(1, 6)]
        page.locator("text=2 more").click()
        page.locator("text=old-7").click()
        page.wait_for_selector("article#old-7")
        assert accuse(page) == []
        assert shown.complaints == []


def test_where_it_may_end_by_itself_that_stands_before_whether_it_may_be_killed(browser: Any) -> None:
    early = incident(severity="none", tell_wall_ns=WALL_NS + 100 * 10**9, tell_reason="storage may answer late")
    with (
        served(node_report(early), FakeControl(incidents=(early,))) as node,
        opened(browser, address(node)) as shown,
    ):
        shown.page.wait_for_selector("text=Nobody is told yet")
        said = shown.page.inner_text("article")
        assert said.index("Nobody is told yet: storage may answer late") < said.index("safe to kill")


def test_no_option_of_a_command_is_broken_where_a_line_ends(browser: Any) -> None:
    with served(stalled_report()) as node, opened(browser, address(node), PHONE) as shown:
        shown.page.wait_for_selector("code >> text=stallwatch mute")
        option = shown.page.locator("code span.range", has_text="--for")
        assert option.evaluate("node => node.getClientRects().length") == 1


def test_culprits_at_one_line_share_a_card_and_the_others_line_stands_beside_it(browser: Any) -> None:
    here, there = Frame("/t/locks.py", 41, "take", "with lock:"), Frame("/t/data.py", 8, "load", None)
    culprits = (
        CulpritProcess(1, "a", 101, None, "lock", here),
        CulpritProcess(2, "b", 102, None, "lock", here),
        CulpritProcess(5, "b", 105, None, "dataloader", there),
    )
    told = incident(
        report=diagnosis(
            verdict(
                culprits=(1, 2, 5), waiting="0,3-4", culprit_processes=culprits, waiting_at="called at t.py:7 (`f()`)"
            )
        )
    )
    with served(node_report(told), FakeControl(incidents=(told,))) as node, opened(browser, address(node)) as shown:
        shown.page.wait_for_selector(".culprit")
        cards = shown.page.locator(".culprit").all_inner_texts()
        assert [card.splitlines()[0] for card in cards] == [
            "Ranks 1-2 · a, b · in lock",
            "Rank 5 · b · pid 105 · in dataloader",
        ]
        assert shown.page.inner_text(".others") == "The others (ranks 0,3-4)\ncalled at t.py:7 (f())"
        assert shown.complaints == []
