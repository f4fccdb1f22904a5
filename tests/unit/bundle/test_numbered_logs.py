"""Logs under names that differ in a number."""

from stallwatch.bundle.numbered_logs import ranks_of_logs
from stallwatch.formats.training_log import parse
from stallwatch.model.log_event import LogTail
from tests.builders.texts import RAISED, timed_out


def _log(text: str) -> LogTail:
    return parse(text.encode())


def _waits(rank: int, version: str = "2.6") -> LogTail:
    return _log(timed_out(version, rank, 9))


def test_a_log_among_those_whose_number_is_their_rank_is_of_its_number() -> None:
    for version in ("1.13", "2.1", "2.6"):
        logs = {f"slurm-991_{rank}.out": _waits(rank, version) for rank in (0, 1, 3)}
        logs["slurm-991_2.out"] = _log(RAISED)
        assert ranks_of_logs(logs) == {f"slurm-991_{rank}.out": rank for rank in range(4)}


def test_numbers_that_are_no_ranks_tell_nothing() -> None:
    nodes = {
        f"node{number}.log": _log(timed_out("2.6", 2 * number, 9) + timed_out("2.6", 2 * number + 1, 9))
        for number in (0, 1)
    }
    assert not ranks_of_logs(nodes)
    shifted = {f"worker{rank + 1}.log": _waits(rank) for rank in range(3)} | {"worker4.log": _log(RAISED)}
    assert not ranks_of_logs(shifted)
    alone = {"out.1": _waits(1), "out.2": _log(RAISED)}
    assert not ranks_of_logs(alone), "one agreement may be an accident"


def test_two_names_of_one_number_tell_nothing() -> None:
    logs = {"log_1": _waits(1), "log_01": _waits(1), "log_2": _waits(2), "log_3": _log(RAISED)}
    assert "log_3" not in ranks_of_logs(logs)
