"""Profiles of several ranks, compared: where slow ones spend time that their peers do not."""

import pytest

from stallwatch.diagnosis.job.time_spent import Spent, compared, waited
from stallwatch.model.evidence import CodeFrame, SampledStack

MODULE = CodeFrame("<module>", "/job/train.py", 200)
LOADER = "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
GRAPH = "/opt/venv/lib/python3.11/site-packages/torch/autograd/graph.py"
NEXT = (CodeFrame("_try_get_data", LOADER, 1285), CodeFrame("__next__", LOADER, 630))


def seen(count: int, *frames: CodeFrame) -> SampledStack:
    """Innermost first, without the outermost."""
    return SampledStack("MainThread", 1, (*frames, MODULE), count)


def line(number: int, function: str = "main", file: str = "/job/train.py") -> CodeFrame:
    return CodeFrame(function, file, number)


def load_batch(count: int, number: int = 41) -> SampledStack:
    return seen(count, line(number, "load_batch", "/job/data.py"), line(88))


def backward(count: int) -> SampledStack:
    return seen(count, CodeFrame("_engine_run_backward", GRAPH, 769), line(95))


def place(spent: Spent | None) -> tuple[str, int] | None:
    return None if spent is None else (spent.frame.name, spent.frame.line)


def test_the_line_that_peers_hardly_ever_stand_at_is_named_with_both_shares() -> None:
    slow = [load_batch(38), seen(60, line(90)), backward(2)]
    peers = [[load_batch(6), seen(60, line(90)), backward(34)]] * 3
    spent = compared([slow], peers)
    assert place(spent) == ("load_batch", 41)
    assert spent is not None
    assert spent.share == pytest.approx(0.38)
    assert spent.peers_share == pytest.approx(0.06)
    assert not spent.is_shared


def test_the_same_line_for_longer_is_named_and_said_to_be_shared() -> None:
    spent = compared([[seen(98, line(90)), backward(2)]], [[seen(75, line(90)), backward(25)]] * 3)
    assert place(spent) == ("main", 90)
    assert spent is not None
    assert spent.is_shared


def test_a_loop_of_several_lines_is_told_as_one_function_by_its_most_frequent_line() -> None:
    slow = [load_batch(20, 40), load_batch(18, 41), seen(60, line(90))]
    spent = compared([slow], [[seen(70, line(90)), backward(30)]] * 3)
    assert place(spent) == ("load_batch", 40)
    assert spent is not None
    assert spent.share == pytest.approx(38 / 98)


def test_in_a_library_the_jobs_own_line_is_named_and_the_meaning_known() -> None:
    slow = [seen(40, *NEXT, line(88)), seen(60, line(90))]
    spent = compared([slow], [[seen(75, line(90)), backward(25)]] * 3)
    assert place(spent) == ("main", 88)
    assert spent is not None
    assert spent.where == "dataloader"


@pytest.mark.parametrize(
    ("slow", "peers"),
    [
        ([seen(60, line(90)), backward(40)], [seen(58, line(90)), backward(42)]),  # by chance
        ([load_batch(5)], [backward(5)]),  # too few
        ([backward(60), seen(40, line(90))], [backward(20), seen(80, line(90))]),  # it waits for others itself
        ([], [backward(100)]),
    ],
)
def test_nothing_is_named_without_a_difference_that_says_something(
    slow: list[SampledStack], peers: list[SampledStack]
) -> None:
    assert compared([slow], [peers] * 3) is None


def test_what_takes_longer_everywhere_names_no_single_line() -> None:
    """A clock that is low: each of ten places takes a little longer."""
    slow = [*(seen(9, line(number)) for number in range(10, 20)), backward(10)]
    peers = [*(seen(6, line(number)) for number in range(10, 20)), backward(40)]
    spent = compared([slow], [peers] * 3)
    assert spent is None or spent.frames[0].name == "main"


def test_one_peer_that_does_something_of_its_own_hides_nothing() -> None:
    """Rank 0 logs; the median of the peers counts."""
    logs = [seen(50, line(70, "log")), seen(50, line(90))]
    slow = [load_batch(38), seen(62, line(90))]
    spent = compared([slow], [logs, [seen(70, line(90)), backward(30)], [seen(70, line(90)), backward(30)]])
    assert place(spent) == ("load_batch", 41)


def test_a_line_at_which_they_wait_for_others_is_none_that_makes_them_slow() -> None:
    c10d = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    waits = [seen(60, CodeFrame("recv", c10d, 2500), line(70, "pipeline")), seen(30, line(90)), backward(10)]
    works = [seen(60, line(90)), backward(40)]
    assert compared([waits], [works] * 3) is None
    assert place(waited([waits], [works] * 3)) == ("pipeline", 70)
    assert waited([works], [waits, works, works]) is None
    assert waited([[load_batch(38), *works]], [works] * 3) is None
