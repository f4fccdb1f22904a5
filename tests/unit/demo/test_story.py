import msgspec

from stallwatch.demo.catalogue import find
from stallwatch.demo.outcome import DemoOutcome, Said
from stallwatch.demo.play import unplayed
from stallwatch.demo.story import outcome_lines
from stallwatch.errors import StallwatchError
from stallwatch.model.verdict import CulpritProcess, Fact, Frame, GroupRef, Verdict
from stallwatch.outputs.documents import IncidentDocument

VERDICT = Verdict(
    cause="not_entered",
    culprits=(2,),
    confidence="certain",
    summary="Rank 2 waits for a lock and has not entered the all_reduce in which ranks 0-1,3 wait.",
    culprit_processes=(
        CulpritProcess(2, "node-7", 4711, None, "lock", Frame("/job/cache.py", 22, "features", "    with cache_lock:")),
    ),
    waiting="0-1,3",
    where="lock",
    operation="all_reduce",
    seq=41,
    process_group=GroupRef("default_pg", (0, 1, 2, 3)),
    because=(Fact("rank 2 has entered 40 collectives, the others 41", "flight recorder"),),
    next_steps=("Look for who took the lock.",),
)


def outcome(agrees: bool, verdict: Verdict | None = VERDICT, causes: tuple[str, ...] = ("not_entered",)) -> DemoOutcome:
    incident = None
    if verdict is not None:
        incident = IncidentDocument(
            schema_version=1, tool_version="0", incident_id="demo-1", training_job="demo", epoch="e", captured_at=None,
            deadline=None, evidence_complete=True, verdicts=(verdict,), state="open", severity="warning", muted=False,
            node="node-7", opened_at="", resolved_at=None, resolution="", bundle="", findings=(), events=(),
        )  # fmt: skip
    return DemoOutcome(
        fault="lock",
        seed=5,
        ranks=4,
        agrees=agrees,
        expected_causes=causes,
        expected_culprits=(2,) if causes else (),
        seconds_to_verdict=8.04 if verdict else None,
        said=(Said(8.04, "not_entered", (2,)),) if verdict else (Said(3.0, "undecided", ()),),
        incident=incident,
        page_url="http://127.0.0.1:9/?token=secret",
    )


def test_a_person_reads_who_where_who_waits_why_what_next_and_how_fast() -> None:
    text = "\n".join(outcome_lines(outcome(agrees=True)))
    for part in (
        "Rank 2 waits for a lock",
        "rank 2 on node-7, pid 4711",
        "/job/cache.py:22 in features",
        "> with cache_lock:",
        "ranks 0-1,3 in all_reduce #41 of group default_pg",
        "rank 2 has entered 40 collectives",
        "Look for who took the lock.",
        "http://127.0.0.1:9/?token=secret",
        "Right: 8.0 s after the fault.",
    ):
        assert part in text


def test_a_wrong_verdict_is_followed_by_the_truth() -> None:
    lines = list(outcome_lines(outcome(agrees=False)))
    assert lines[-1] == "Wrong: 8.0 s after the fault. The truth was not_entered by rank 2 (fault 'lock')."


def test_a_transfer_of_the_culprit_is_not_what_the_others_wait_in() -> None:
    told = msgspec.structs.replace(VERDICT, cause="p2p_unmatched", operation="p2p", seq=None, process_group=None)
    assert "  waiting   ranks 0-1,3" in list(outcome_lines(outcome(True, told)))


def test_a_page_that_is_gone_is_not_offered() -> None:
    page = next(line for line in outcome_lines(outcome(True)) if line.startswith("  page"))
    assert page.endswith("(gone now; --keep leaves it standing)")
    kept = next(line for line in outcome_lines(outcome(True), page_stays=True) if line.startswith("  page"))
    assert "keep" not in kept


def test_no_verdict_says_what_was_said_instead() -> None:
    last = list(outcome_lines(outcome(agrees=False, verdict=None)))[-1]
    assert "undecided [] after 3.0 s" in last
    assert "not_entered by rank 2" in last


def test_a_quiet_run_says_that_nobody_was_told() -> None:
    last = list(outcome_lines(outcome(agrees=True, verdict=None, causes=())))[-1]
    assert last == "Right: the daemon told nobody, and nothing was wrong."


def test_a_job_that_did_not_start_is_told_with_the_end_of_its_log() -> None:
    error = StallwatchError("the job ended before its fault", "ModuleNotFoundError: no module named torch")
    text = "\n".join(outcome_lines(unplayed(find("lock"), 4, 5, error)))
    assert text.strip() == "Wrong: the job ended before its fault\nModuleNotFoundError: no module named torch"
