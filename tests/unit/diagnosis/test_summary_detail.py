"""What a node's summary tells other nodes of a job's code: as much as is allowed, and the same culprit."""

import msgspec
import pytest

from stallwatch.diagnosis import judge
from stallwatch.diagnosis.node_summary import Detail, NodeSummary, judge_nodes, redacted, relative, summarise_node
from stallwatch.model.evidence import Evidence, SourceBlock, SourceLine
from tests.builders.job import SLEEPS, Rank, evidence, loop, world

SOURCE = "time.sleep(SECRET_BACKOFF_OF_OURS)"
MESSAGE = "token=hunter2 refused"


def found() -> Evidence:
    steps = loop(world(4), 4)
    log = ("Traceback (most recent call last):", '  File "/srv/job/data.py", line 7, in prepare', f"OSError: {MESSAGE}")
    ranks = [Rank(r, (*steps, steps[0]), len(steps)) for r in range(3)]
    whole = evidence(*ranks, Rank(3, steps, frames=SLEEPS, log=log))
    line = SourceLine("/srv/job/data.py", 7, SOURCE, (SourceBlock("while", 6, "while not path_of_ours.exists():"),))
    culprit = msgspec.structs.replace(whole.ranks[3], sources=(line,))
    return msgspec.structs.replace(whole, ranks=(*whole.ranks[:3], culprit))


def summary(detail: Detail) -> NodeSummary:
    return redacted(summarise_node(found()), detail)


def text(detail: Detail) -> str:
    return msgspec.json.encode(summary(detail)).decode()


def test_lines_are_told_where_they_may_be() -> None:
    assert "SECRET_BACKOFF" in text("lines")
    assert "hunter2" in text("lines")


def test_functions_tell_places_and_neither_source_nor_the_jobs_words() -> None:
    said = text("functions")
    assert "SECRET_BACKOFF" not in said and "path_of_ours" not in said and "hunter2" not in said
    assert "prepare" in said and "…/srv/job/data.py" in said
    assert '"/srv/job' not in said


def test_none_tells_no_place_in_the_jobs_code() -> None:
    said = text("none")
    assert all(word not in said for word in ("SECRET_BACKOFF", "hunter2", "prepare", "data.py", "train.py"))


@pytest.mark.parametrize("detail", ["lines", "functions", "none"])
def test_who_hung_the_job_is_the_same(detail: Detail) -> None:
    whole = judge(found()).verdicts[0]
    merged = judge_nodes([summary(detail)]).verdicts[0]
    assert (merged.cause, merged.culprits, merged.confidence) == (whole.cause, whole.culprits, whole.confidence)


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/home/anna/proj/models/block.py", "…/proj/models/block.py"),
        ("/opt/venv/lib/python3.11/site-packages/torch/nn/x.py", "…/site-packages/torch/nn/x.py"),
        ("/usr/lib/python3.11/threading.py", "…/lib/python3.11/threading.py"),
        ("train.py", "train.py"),
        ("<string>", "<string>"),
    ],
)
def test_a_path_keeps_what_tells_whose_it_is(path: str, kept: str) -> None:
    assert relative(path) == kept
