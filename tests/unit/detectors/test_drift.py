"""What samples of a moving job showed lasts as long as the job."""

from msgspec.structs import replace

from stallwatch.detectors.detection import Detected
from stallwatch.model.snapshot import JobDrift, NodeSnapshot
from stallwatch.model.verdict import Verdict
from tests.builders.clock import SECOND_NS
from tests.builders.heartbeat import JOB, START_NS
from tests.builders.running_job import four, job_run, run

PARTED = Verdict("collective_mismatch", (2,), "likely", "Rank 2 called something else.")
SEEN = JobDrift(JOB, START_NS + 5 * SECOND_NS, 4, (PARTED,))
NOTHING = JobDrift(JOB, START_NS + 20 * SECOND_NS, 4)


def _findings(shots: list[NodeSnapshot]) -> list[tuple[float, tuple[int, ...]]]:
    def of(detected: Detected) -> list[tuple[int, ...]]:
        return [finding.ranks for finding in detected.findings if finding.detector == "drift"]

    return [(second, ranks) for second, detected in run(shots) for ranks in of(detected)]


def _with(shots: list[NodeSnapshot], first: int, last: int, drift: JobDrift) -> list[NodeSnapshot]:
    return [replace(shot, drifts=(drift,)) if first <= shot.tick <= last else shot for shot in shots]


def test_a_sample_that_shows_it_is_a_finding_from_then_on() -> None:
    shots = _with(_with(job_run(four(), 40), 10, 19, SEEN), 20, 40, NOTHING)
    assert _findings(shots) == [(float(second), (2,)) for second in range(10, 41)]


def test_a_sample_that_shows_nothing_is_no_finding() -> None:
    assert _findings(_with(job_run(four(), 40), 10, 40, NOTHING)) == []


def test_it_ends_with_the_job() -> None:
    shots = _with(job_run(four(), 20), 10, 10, SEEN)
    gone = [replace(shot, ranks=()) if shot.tick >= 15 else shot for shot in shots]
    assert [second for second, _ in _findings(gone)] == [10.0, 11.0, 12.0, 13.0, 14.0]


def test_its_verdict_and_sentence_come_with_it_and_no_rank_is_suspect() -> None:
    detected = run(_with(job_run(four(), 12), 10, 12, SEEN))[-1][1]
    (finding,) = [finding for finding in detected.findings if finding.detector == "drift"]
    assert (finding.verdict, finding.reason, finding.stage) == (PARTED, PARTED.summary, "confirmed")
    assert all(view.state != "suspect" for view in detected.ranks)
