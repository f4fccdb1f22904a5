"""What the bench of slow ranks plays, and what it calls right."""

from pathlib import Path

import msgspec
import pytest

from tests.bench import bench_slow_ranks, lanes, slow_row
from tests.bench.slow_runs import Cell, Run, cells_of, places, played, table


def right(**fields: object) -> Run:
    """A run of +30 % that was told after 18 s, was slow for 50 s, and over 12 s after."""
    run = Run(
        Cell("sleep", 0.3, 0.2), 0, [2], told=[(18.0, [2], "Rank 2")], slow_seconds=50.0, resolved=[62.0],
        over_after=12.0, cost_told=0.062, cost_true=0.06, step_told=0.27, step_true=0.26,
        lines=[(18.0, "slow_rank.py:9 main")], places=["slow_rank.py:9 main"],
    )  # fmt: skip
    return msgspec.structs.replace(run, **fields)


def test_cells_are_all_that_a_pattern_says_in_its_order_and_once() -> None:
    found = cells_of(["sleep/0.3/0.2", "cpu,gpu/0.3,1/1/8/nccl", "sleep/0.3/0.2/4/gloo"])
    assert found[0] == Cell("sleep", 0.3, 0.2, 4, "gloo")
    assert [(cell.by, cell.extra) for cell in found[1:]] == [("cpu", 0.3), ("cpu", 1.0), ("gpu", 0.3), ("gpu", 1.0)]


@pytest.mark.parametrize("quick", [True, False])
def test_what_the_row_of_slow_ranks_asks_for_is_what_its_bench_offers(quick: bool) -> None:
    slow, calm = (cells_of(bench_slow_ranks.parser().parse_args(command).cells) for command in slow_row.commands(quick))
    assert {(cell.by, cell.extra) for cell in slow} == {("sleep", 0.3), ("cpu", 0.3)}
    assert all(cell.calm for cell in calm)


@pytest.mark.parametrize(
    "wrong",
    [
        {"told": []},
        {"told": [(18.0, [1], "")]},
        {"told": [(18.0, [2], ""), (40.0, [2], "")]},
        {"resolved": [30.0]},
        {"over_after": None},
        {"cell": Cell("logs", 0.3, 0.2)},
    ],
    ids=["nobody told", "another rank", "told twice", "taken back", "never over", "so by design"],
)
def test_a_run_is_right_when_it_was_told_once_rightly_and_until_it_was_over(wrong: dict[str, object]) -> None:
    assert right().is_right
    assert not right(**wrong).is_right


def test_figures_and_reason_are_held_against_the_truth() -> None:
    assert right().figures_right is True
    assert right(step_told=0.32).figures_right is False
    assert right().why_right is True
    assert right(lines=[(18.0, ""), (30.0, "slow_rank.py:1 main")]).why_right is False
    assert right(told=[]).why_right is None
    assert all(places(by) for by in ("sleep", "cpu", "loader", "gpu", "beside"))


def test_what_was_played_is_read_back_and_counted_by_cell(tmp_path: Path) -> None:
    file = lanes.Lines(tmp_path / "b" / "lane-0.jsonl", ["one", "two"])
    for run in (right(), right(number=1, told=[])):
        file.add(run.name, right=run.is_right, said="", seconds_to_verdict=run.told_after, detail=run)
    with (tmp_path / "b" / "lane-0.jsonl").open("a") as cut:
        cut.write('{"name": "cut o')
    runs = played([tmp_path])
    assert [run.name for run in runs] == [right().name, right(number=1).name]
    assert "| sleep | +30% | 0.2 s | 2 | +30% | 1 | 1 | 1 | 0 | 18.0 | 18.0 | 12.0 |" in table(runs)


def test_calm_jobs_are_counted_by_their_hours_and_last_as_long_as_is_asked() -> None:
    calm = Cell("jitter", 0.3, 0.2)
    runs = [Run(calm, number, [2], ran_seconds=5400.0, suspected_after=9.0 if number else None) for number in range(2)]
    assert table(runs).splitlines()[-1] == "3.0 job-hours of 2 calm jobs: 0 told, 1 suspected"
    assert calm.usual_seconds(600.0) - calm.usual_seconds(540.0) == 60.0
    assert Cell("sleep", 0.3, 0.2).usual_seconds(600.0) == Cell("sleep", 0.3, 0.2).usual_seconds()


def test_each_run_goes_to_the_lane_that_has_the_least_to_do() -> None:
    seconds = [9.0, 1.0, 1.0, 1.0, 1.0]
    parts = [lanes.part_of(range(5), lane, seconds.__getitem__) for lane in ("0/2", "1/2")]
    assert parts == [[0], [1, 2, 3, 4]]
    assert lanes.part_of("abcd", "1/3") == ["b"]
