"""The status page in a real browser: jobs that end, several at once, and what a job writes."""

import gzip
import io
from pathlib import Path
from typing import Any

import pytest

from stallwatch.model.incident import IncidentEvent
from stallwatch.model.snapshot import JobKey
from stallwatch.model.verdict import CulpritProcess, Frame, GroupRef, StackNode
from tests.builders.clock import WALL_NS
from tests.integration.outputs.browser import PHONE, accuse, address, needs_browser, opened
from tests.integration.outputs.page_reports import stalled_incident, stalled_node, write_timeline
from tests.integration.outputs.serving import Served, served
from tests.unit.outputs.reports import JOB, FakeControl, diagnosis, incident, node_report, verdict, view

pytestmark = needs_browser


def test_a_suspicion_that_was_not_borne_out_is_no_open_incident(browser: Any) -> None:
    well = incident(
        state="suspect", severity="none", report=diagnosis(verdict(cause="healthy", culprits=(), culprit_processes=()))
    )
    with served(node_report(well), FakeControl(incidents=(well,))) as node, opened(browser, address(node)) as shown:
        shown.page.wait_for_selector(".calm")
        assert shown.page.locator("article").count() == 0
        assert shown.complaints == []


def test_suspicions_alone_are_not_called_open_incidents(browser: Any) -> None:
    first, second = (incident(incident_id=f"job-{n}", state="suspect", severity="none", report=None) for n in (1, 2))
    with (
        served(node_report(first, second), FakeControl(incidents=(first, second))) as node,
        opened(browser, address(node)) as shown,
    ):
        shown.page.wait_for_selector(".overview li")
        assert shown.page.inner_text(".overview h2") == "2 suspicions, being looked at"
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


def test_a_slow_rank_is_called_slow_and_its_place_is_its_line_also_when_it_is_over(browser: Any) -> None:
    """The tab said "stalled", the title "slow_rank · user_code", the list of the past that it holds the job back."""
    frame = Frame("/job/train.py", 240, "main")
    culprit = CulpritProcess(2, "node1", 7, None, "user_code", frame)
    said = "Rank 2 holds the job back."
    found = verdict(
        cause="slow_rank", culprits=(2,), where="user_code", culprit_processes=(culprit,), waiting="", summary=said
    )
    slow = incident(severity="warning", report=diagnosis(found))
    with served(node_report(slow), FakeControl(incidents=(slow,))) as node, opened(browser, address(node)) as shown:
        page = shown.page
        page.wait_for_selector("article.warning")
        assert page.title() == "(1) slow · stallwatch"
        assert "user_code" not in page.inner_text("article")
        assert "train.py:240" in page.inner_text("article")
        over = incident(state="resolved", severity="warning", report=diagnosis(found), resolved_wall_ns=WALL_NS)
        node.output.publish(node_report(over))
        page.wait_for_selector(f"#past >> text=It was: {said}")
        assert shown.complaints == []


@pytest.mark.parametrize("link", ["#llama-7b-1", "?incident=llama-7b-1"], ids=["of the page", "of a message"])
def test_a_link_to_an_incident_survives_the_login(browser: Any, link: str) -> None:
    past = incident(state="resolved", resolution="the job ended")
    with (
        served(node_report(), FakeControl(past=(past,))) as node,
        opened(browser, f"http://127.0.0.1:{node.port}/{link}") as shown,
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
        assert accuse(shown.page) == []  # whoever hears the page is told them apart, too
        assert shown.complaints == []


def test_a_phone_shows_the_phase_of_each_rank_without_scrolling(browser: Any) -> None:
    ranks = (*(view(rank) for rank in range(3)), view(3, phase="checkpoint", state="phase"))
    with (
        served(node_report(incident(), ranks=ranks), FakeControl(incidents=(incident(),))) as node,
        opened(browser, address(node), PHONE) as shown,
    ):
        shown.page.wait_for_selector("#ranks td >> text=checkpoint")
        shown.page.wait_for_selector("#ranks td >> text=waiting, culprit")
        table = shown.page.locator("#ranks .scroll")
        assert table.evaluate("one => one.scrollWidth <= one.clientWidth")


def test_a_job_whose_ranks_are_all_gone_says_so(browser: Any) -> None:
    ended = ("exit code 0", "exit code 0", "signal 9 (SIGKILL)", "exit code 0")
    ranks = tuple(view(rank, state="gone", ended=ended[rank]) for rank in range(4))
    with served(node_report(ranks=ranks)) as node, opened(browser, address(node)) as shown:
        page = shown.page
        page.wait_for_selector("#ranks h2 >> text=llama-7b: 4 of 4 ranks, all gone: exit code 0, signal 9 (SIGKILL)")
        assert not page.is_visible("#ranks table"), "nothing is to be read of a job that is over"
        page.click("#ranks button >> text=Show all 4 ranks")
        page.wait_for_selector("#ranks td >> text=gone, signal 9 (SIGKILL)")


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
        assert "WHAT IS LEFT TO DO" in shown.page.inner_text("article")
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
