"""The benches' own arithmetic: intervals that hold the truth, and what they call worse."""

import importlib
import random
from pathlib import Path

import pytest

from tests.bench import results
from tests.bench.bench_reader import groups_of, write_dumps
from tests.bench.figures import Figure, mean_of, median_of, number
from tests.bench.results import Change, Measured, Results, changes
from tests.bench.rows import ROWS, Goal, more_is_better, row


def test_an_interval_of_a_median_bears_what_other_programs_do() -> None:
    chance = random.Random(1)
    disturbed = [chance.gauss(2.0, 0.1) + (20 if chance.random() < 0.1 else 0) for _ in range(200)]
    found = median_of("x", disturbed, "×")
    assert found.low is not None
    assert found.high is not None
    assert 1.98 < found.low < 2.014 < found.high < 2.06  # a tenth of outliers moves the middle by a seventh of a sigma


def test_an_interval_of_a_mean_holds_what_comes_seldom() -> None:
    chance = random.Random(1)
    found = mean_of("x", [chance.gauss(0.0, 0.01) + (1.0 if at % 10 == 0 else 0.0) for at in range(100)], "%")
    assert found.low is not None
    assert found.high is not None
    assert 0.03 < found.low < 0.1 < found.high < 0.2


def test_of_few_values_no_interval_is_said() -> None:
    assert median_of("x", [1.0, 2.0, 3.0], "s").low is None


def test_numbers_have_three_digits_that_count() -> None:
    assert [number(value) for value in (0.01234, 1.8, 15.24, 11649.3, 0.0, float("nan"), None)] == [
        "0.0123", "1.80", "15.2", "11,649", "0", "?", "?",
    ]  # fmt: skip


def changed(before: Figure, after: Figure, machine: str = "a", *, more: bool = False) -> list[Change]:
    then = Results("a", {}, {"row": Measured(figures=[before])})
    now = Results(machine, {}, {"row": Measured(figures=[after])})
    return list(changes(then, now, {("row", "x"): more}))


def test_a_ratio_that_leaves_its_interval_is_worse_by_the_direction_of_its_goal() -> None:
    before, after = Figure("x", 1.5, "×", 1.4, 1.6), Figure("x", 2.0, "×", 1.9, 2.1)
    assert [one.is_worse for one in changed(before, after)] == [True]
    assert [one.is_worse for one in changed(after, before)] == [False]
    assert [one.is_worse for one in changed(before, after, more=True)] == [False]
    assert "worse: row, x: 1.50 -> 2.00 × (+33%)" in str(changed(before, after)[0])


def test_what_lies_within_the_noise_is_no_change() -> None:
    assert not changed(Figure("x", 1.5, "×", 1.2, 1.8), Figure("x", 1.9, "×", 1.7, 2.1))
    assert not changed(Figure("x", 100, "MB"), Figure("x", 108, "MB"))
    assert changed(Figure("x", 100, "MB"), Figure("x", 112, "MB"))


def test_plain_seconds_are_compared_on_one_machine_only() -> None:
    assert changed(Figure("x", 1.0, "s"), Figure("x", 2.0, "s"))
    assert not changed(Figure("x", 1.0, "s"), Figure("x", 2.0, "s"), machine="b")
    assert changed(Figure("x", 1.0, "×"), Figure("x", 2.0, "×"), machine="b")


def test_a_quick_run_is_compared_with_a_quick_one() -> None:
    then = Results("a", {}, {"row": Measured(figures=[Figure("x", 1.0, "×")], quick=True)})
    now = Results("a", {}, {"row": Measured(figures=[Figure("x", 2.0, "×")])})
    assert not list(changes(then, now, {}))


def test_results_keep_the_rows_that_were_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "kept/machine.json"
    results.write(path, "a", {"step": Measured(figures=[Figure("x", 1.0, "×")], revision="1")})
    results.write(path, "a", {"scrape": Measured(figures=[Figure("y", 1.0, "×")], revision="2")})
    results.write(path, "a", {"step": Measured(failed="it ended")})
    kept = results.read(path)
    assert {name: one.revision for name, one in kept.rows.items()} == {"step": "1", "scrape": "2"}


@pytest.mark.parametrize("one", ROWS, ids=lambda one: one.name)
def test_a_row_has_a_bench_and_a_goal(one: object) -> None:
    known = row(one.name)  # type: ignore[attr-defined]
    module, _, function = known.figures.partition(":")
    assert callable(getattr(importlib.import_module(module), function))
    assert known.goals
    assert all((known.name, goal.figure) in more_is_better() for goal in known.goals)


def test_names_of_rows_are_unlike() -> None:
    assert len({one.name for one in ROWS}) == len(ROWS)
    with pytest.raises(KeyError, match="no row nothing"):
        row("nothing")


def test_a_goal_is_kept_from_its_own_side() -> None:
    assert Goal("x", 1.8).is_met(Figure("x", 1.8, "×"))
    assert not Goal("x", 1.8).is_met(Figure("x", 1.81, "×"))
    assert not Goal("x", 15, at_least=True).is_met(Figure("x", 14.9, "×"))


def test_dumps_of_a_mesh_are_of_its_groups(tmp_path: Path) -> None:
    assert [group.ranks for group in groups_of(9, 16, 8)] == [list(range(16)), list(range(8, 16)), [1, 9]]
    write_dumps(tmp_path / "dumps", 16, 15, 2, mesh=8)
    assert len(list((tmp_path / "dumps").iterdir())) == 16
