"""The status page in a real browser: what it shows, to whom, and that what a job writes stays text."""

import gzip
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stallwatch.model.incident import IncidentEvent
from stallwatch.model.snapshot import JobKey
from stallwatch.model.verdict import CulpritProcess, Frame, GroupRef, StackNode
from tests.builders.clock import WALL_NS
from tests.integration.outputs.browser import PHONE, WIDE, chromium, needs_browser, opened
from tests.integration.outputs.page_reports import stalled_incident, stalled_node, write_timeline
from tests.integration.outputs.serving import Served, served
from tests.unit.outputs.reports import JOB, FakeControl, diagnosis, incident, node_report, verdict, view

pytestmark = needs_browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as made:
        yield made


@pytest.fixture(scope="module", params=[8, 1024])
def stalled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A node whose rank 2 of so many stands in a lock."""
    ranks, bundle = request.param, tmp_path_factory.mktemp("page") / "llama-7b-1"
    write_timeline(ranks, bundle)
    known = stalled_incident(ranks, bundle)
    with served(stalled_node(ranks, known), FakeControl(incidents=(known,))) as made:
        yield made


def address(node: Served) -> str:
    url = node.client.page_url()
    assert url is not None
    return url


def accuse(page: Any) -> list[str]:
    """What axe finds, as "rule: element"."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    found = axe.run(page).response["violations"]
    return [f"{rule['id']}: {node['html'][:120]}" for rule in found for node in rule["nodes"]]


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


def test_a_suspicion_that_was_not_borne_out_is_no_open_incident(browser: Any) -> None:
    well = incident(
        state="suspect", severity="none", report=diagnosis(verdict(cause="healthy", culprits=(), culprit_processes=()))
    )
    with served(node_report(well), FakeControl(incidents=(well,))) as node, opened(browser, address(node)) as shown:
        shown.page.wait_for_selector(".calm")
        assert shown.page.locator("article").count() == 0
        assert shown.complaints == []


def test_how_long_it_lasted_is_said_and_ranks_of_a_clean_end_are_grey(browser: Any) -> None:
    over = incident(state="resolved", opened_wall_ns=WALL_NS, resolved_wall_ns=WALL_NS + 240 * 10**9)
    going = incident(incident_id="b-1", opened_wall_ns=WALL_NS - 30 * 10**9)
    report = node_report(over, going, ranks=(view(0, state="gone"), view(2, state="gone")))
    with served(report, FakeControl(incidents=(over, going))) as node, opened(browser, address(node)) as shown:
        page = shown.page
        page.evaluate("location.hash = 'llama-7b-1'")
        page.wait_for_selector("article#llama-7b-1")
        assert page.inner_text("#llama-7b-1 .tags").endswith(", for 4 min")
        page.wait_for_selector("#b-1 >> text=, for 30 s")
        colours = [
            page.locator(f"#ranks tr:nth-child({row}) .state.gone").evaluate("one => getComputedStyle(one).color")
            for row in (1, 2)
        ]
        assert colours[0] == page.locator(".soft").first.evaluate("one => getComputedStyle(one).color")
        assert colours[1] != colours[0], "a culprit that is gone is not grey"


def test_a_link_to_an_incident_survives_the_login(browser: Any) -> None:
    past = incident(state="resolved", resolution="the job ended")
    with (
        served(node_report(), FakeControl(past=(past,))) as node,
        opened(browser, f"http://127.0.0.1:{node.port}/#llama-7b-1") as shown,
    ):
        shown.page.get_by_label("Token").fill(node.token)
        shown.page.get_by_role("button", name="Open").click()
        shown.page.wait_for_selector("article >> text=/Resolved at .*: the job ended/")
        assert "token" not in shown.page.url


def test_of_two_jobs_of_one_name_only_the_one_that_hangs_has_the_culprit(browser: Any) -> None:
    other = JobKey(JOB.training_job, f"{JOB.epoch} (2)")
    ranks = (*(view(rank) for rank in range(4)), *(view(rank, job=other, state="stepping") for rank in range(4)))
    report = node_report(incident(), ranks=ranks)
    with served(report, FakeControl(incidents=(incident(),))) as node, opened(browser, address(node)) as shown:
        shown.page.wait_for_selector("#ranks tr.culprit-row")
        assert shown.page.locator("tr.culprit-row").count() == 1
        headings = shown.page.locator("#ranks h2").all_inner_texts()
        assert [heading.partition(" (")[0] for heading in headings] == ["llama-7b: 4 of 4 ranks"] * 2
        assert f"one of 2 of this name: {other.epoch}" in headings[1]
        assert shown.complaints == []


def test_what_a_busy_node_did_not_answer_is_asked_for_again(stalled: Served, browser: Any) -> None:
    with opened(browser, "about:blank") as shown:
        page, failed = shown.page, []

        def once(route: Any) -> None:
            failed.append(route.request.url)
            route.abort() if len(failed) == 1 else route.continue_()

        page.route("**/timeline", once)
        page.goto(address(stalled))
        page.wait_for_selector(".timeline .band")
        assert len(failed) == 2


def test_what_a_job_writes_stays_text(browser: Any) -> None:
    evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    culprit = CulpritProcess(2, evil, 1, evil, "lock", Frame(evil, 1, evil, evil))
    hostile = incident(
        report=diagnosis(
            verdict(
                summary=evil,
                operation=evil,
                next_steps=(evil,),
                culprit_processes=(culprit,),
                process_group=GroupRef(evil, (0, 1, 2, 3)),
            ),
            stacks=StackNode(evil, evil, 1, "2", 1),
        ),
        resolution=evil,
        bundle=evil,
        acknowledged_by=evil,
        events=(IncidentEvent(0, evil),),
    )
    report = node_report(hostile, ranks=(view(2, phase=evil, limit_reason=evil, gpu_uuid=evil),))
    with served(report, FakeControl(incidents=(hostile,))) as node, opened(browser, address(node)) as shown:
        shown.page.wait_for_selector("article .stacks")
        assert evil in shown.page.inner_text("article")
        assert shown.page.locator("main img, main script").count() == 0
        assert "owned" not in shown.page.title()
        assert shown.complaints == []


@pytest.mark.parametrize(
    ("cause", "culprits", "waiting", "words"),
    [
        ("group_order", (0, 1), "0-3", ["ranks 2-3", "wait for", "rank 0", "and each other", "rank 1"]),
        ("comm_stuck", (), "0-3", ["ranks 0-3", "all entered it", "none finishes; no rank is to blame"]),
        ("undecided", (), "0-3", ["ranks 0-3", "wait for", "not known"]),
        ("slow_rank", (2,), "0-1,3", ["ranks 0-1,3", "are held back by", "rank 2"]),
    ],
)
def test_the_graph_says_what_the_verdict_says(
    browser: Any, cause: str, culprits: tuple[int, ...], waiting: str, words: list[str]
) -> None:
    told = incident(report=diagnosis(verdict(cause=cause, culprits=culprits, waiting=waiting, culprit_processes=())))
    with (
        served(node_report(told), FakeControl(incidents=(told,))) as node,
        opened(browser, address(node)) as shown,
    ):
        shown.page.wait_for_selector(".graph")
        text = shown.page.inner_text(".graph")
        assert [word for word in words if word in text] == words
        assert shown.complaints == []


def test_ranks_behind_another_group_are_drawn_behind_it(browser: Any) -> None:
    tensor_parallel = verdict(waiting="0-1,3-7", process_group=GroupRef("tp", (0, 1, 2, 3)))
    told = incident(report=diagnosis(tensor_parallel))
    with served(node_report(told), FakeControl(incidents=(told,))) as node, opened(browser, address(node)) as shown:
        shown.page.wait_for_selector(".graph")
        boxes = [text.splitlines()[0] for text in shown.page.locator(".graph li").all_inner_texts()]
        assert boxes == ["ranks 4-7", "wait for these", "ranks 0-1,3", "wait for", "rank 2"]


def test_a_quiet_node_says_so_and_a_linked_past_incident_opens(browser: Any) -> None:
    past = incident(state="resolved", resolution="the job ended")
    with served(node_report(), FakeControl(past=(past,))) as node, opened(browser, address(node)) as shown:
        shown.page.wait_for_selector("text=No open incident.")
        shown.page.evaluate("location.hash = 'llama-7b-1'")
        shown.page.wait_for_selector("article >> text=/Resolved at .*: the job ended/")
        assert "WHAT WAS ADVISED" in shown.page.inner_text("article")
        assert accuse(shown.page) == []
        assert shown.complaints == []


def test_who_comes_when_the_job_is_dead_is_led_to_what_killed_it_and_sees_no_green(browser: Any) -> None:
    died = incident(state="ended", resolution="the job died", resolved_wall_ns=WALL_NS)
    colour = "getComputedStyle(document.querySelector('.calm')).borderLeftColor"
    control = FakeControl()
    with served(node_report(ranks=()), control) as node, opened(browser, address(node)) as shown:
        page = shown.page
        page.wait_for_selector(".calm.quiet >> text=No rank on this node")
        grey = page.evaluate(colour)
        control.incidents = (died,)
        node.output.publish(node_report(died, ranks=(view(0, state="gone"),)))
        page.wait_for_selector(".calm >> text=/No open incident. The last: .* ended at/")
        assert page.evaluate(colour) == grey
        assert accuse(page) == []
        page.get_by_role("link", name="llama-7b · rank 2 · not_entered").click()
        page.wait_for_selector("article >> text=/Ended at .*: the job died/")
        others = tuple(view(rank, job=JobKey("resnet", "1"), state="stepping") for rank in range(2))
        node.output.publish(node_report(died, ranks=others))  # its ranks are forgotten, others go on
        page.wait_for_selector(".calm:not(.quiet)")
        assert page.evaluate(colour) != grey
        assert shown.complaints == []


def test_a_line_never_ends_within_a_range_of_ranks(browser: Any) -> None:
    told = incident(report=diagnosis(verdict(summary=f"Rank 9 is alone; ranks {'0-8,10-31 and ' * 40} wait.")))
    with served(node_report(told), FakeControl(incidents=(told,))) as node, opened(browser, address(node)) as shown:
        shown.page.wait_for_selector(".sentence")
        ranges = shown.page.locator(".sentence .range")
        lines = ranges.evaluate_all("all => all.map(one => one.getClientRects().length)")
        assert lines == [1] * 80


@pytest.mark.parametrize("path", ["", "?token=", "?token=wrong"])
def test_a_wrong_or_missing_token_shows_nothing(browser: Any, path: str) -> None:
    with (
        served(node_report(incident()), FakeControl(incidents=(incident(),))) as node,
        opened(browser, f"http://127.0.0.1:{node.port}/{path}") as shown,
    ):
        assert "This page needs its token" in shown.page.inner_text("body")
        assert "llama-7b" not in shown.page.content()
        assert accuse(shown.page) == []


def test_a_page_of_1024_ranks_is_small(tmp_path: Path) -> None:
    bundle = tmp_path / "llama-7b-1"
    write_timeline(1024, bundle)
    known = stalled_incident(1024, bundle)
    paths = ("/", "/api/v1/ranks", "/api/v1/incidents", "/api/v1/incidents/llama-7b-1")
    with served(stalled_node(1024, known), FakeControl(incidents=(known,))) as node:
        sizes = {path: len(node.ask(path, Accept_Encoding="gzip").body) for path in paths}
        timeline = node.ask("/api/v1/incidents/llama-7b-1/timeline", Accept_Encoding="gzip")
    assert len(gzip.decompress(timeline.body)) > len(timeline.body)
    assert sum(sizes.values()) + len(timeline.body) < 200_000, (sizes, len(timeline.body))
    assert io.BytesIO(timeline.body).read(2) == b"\x1f\x8b"
