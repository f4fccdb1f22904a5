"""Which trials are made, and what they say together."""

from collections.abc import Mapping

import pytest

from stallwatch.selftest.bisect import Change, Setup, bisect, conclude, focus, settings, smaller
from stallwatch.selftest.result import BisectTrial, Failure, OwnFailure, TrialResult

FAILURE = Failure("error", "all_reduce", 8, (), "rank 0 failed")
PASSES = TrialResult("nccl", 2, 1.0, (), ())
FAILS = TrialResult("nccl", 2, 1.0, (), (), FAILURE)


def setup(ranks: int = 4, backend: str = "nccl", environment: Mapping[str, str] | None = None) -> Setup:
    return Setup(backend, ranks, tuple(range(ranks)) if backend == "nccl" else (), environment or {})


def variables(changes: list[Change]) -> dict[str, str | None]:
    return {name: value for change in changes for name, value in change.environment.items()}


def test_each_path_of_nccl_is_switched_off_once() -> None:
    assert variables(list(settings(setup()))) == {
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        "NCCL_IB_DISABLE": "1",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_NVLS_ENABLE": "0",
    }


@pytest.mark.parametrize("given", ["0", "1", "2"])
def test_nvls_is_never_switched_on(given: str) -> None:
    made = variables(list(settings(setup(environment={"NCCL_NVLS_ENABLE": given}))))
    assert made.get("NCCL_NVLS_ENABLE", "0") == "0"
    assert ("NCCL_NVLS_ENABLE" in made) == (given != "0")


def test_what_the_environment_sets_is_taken_away_but_not_its_debugging() -> None:
    given = {"NCCL_NET_GDR_LEVEL": "0", "NCCL_DEBUG": "INFO", "PATH": "/bin"}
    assert variables(list(settings(setup(environment=given))))["NCCL_NET_GDR_LEVEL"] is None
    assert "NCCL_DEBUG" not in variables(list(settings(setup(environment=given))))


def test_gloo_knows_only_its_interface() -> None:
    assert variables(list(settings(setup(backend="gloo")))) == {"GLOO_SOCKET_IFNAME": "lo"}


def test_each_gpu_alone_and_every_pair() -> None:
    made = [change.devices for change in smaller(setup(3))]
    assert made == [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)]


def test_on_the_cpu_there_are_only_fewer_ranks() -> None:
    assert [change.ranks for change in smaller(setup(4, "gloo"))] == [2, 1]
    assert [change.ranks for change in smaller(setup(2, "gloo"))] == [1]


@pytest.mark.parametrize(
    ("step", "ranks", "steps"),
    [
        ("all_reduce", 4, ("all_reduce",)),
        ("all_gather bandwidth", 4, ("all_gather",)),
        ("init", 4, ("barrier",)),
        ("exchange +3", 4, ("exchange +3",)),
        ("exchange +3", 2, ("exchange +1",)),
        ("exchange bandwidth", 4, ("exchange +1",)),
        ("new_group halves", 4, ("sub-groups halves",)),
        ("sub-groups halves", 2, ("all_reduce",)),
        ("broadcast", 1, ("all_reduce",)),
        ("teardown", 4, ()),
        ("after gather 8 B", 4, ()),
    ],
)
def test_a_trial_repeats_the_step_that_failed(step: str, ranks: int, steps: tuple[str, ...]) -> None:
    assert focus(Failure("stalled", step, None, (), ""), ranks) == steps


def concluded(passing: set[str], changes: list[Change], default: str = "fails") -> str:
    trials = [
        BisectTrial(c.what, c.environment, c.ranks or 4, c.devices, "passes" if c.what in passing else "fails")
        for c in changes
    ]
    return " ".join(conclude(changes, trials))


def test_the_passing_setting_is_said_with_where_to_look() -> None:
    text = concluded({"NVLS off (NCCL_NVLS_ENABLE=0)"}, list(settings(setup())))
    assert "passes with NVLS off" in text
    assert "Fabric Manager" in text


def test_what_passes_unchanged_proves_nothing() -> None:
    text = concluded({"once more, unchanged", "shared memory off (NCCL_SHM_DISABLE=1)"}, list(settings(setup())))
    assert "does not fail every time" in text
    assert "hared memory" not in text


def test_the_gpu_in_every_failing_pair_is_named() -> None:
    changes = list(smaller(setup(3)))
    alone = {"GPU 0 alone", "GPU 1 alone", "GPU 2 alone"}
    assert "GPU 2 or its links" in concluded(alone | {"GPUs 0 and 1"}, changes)
    assert "1-2" in concluded(alone | {"GPUs 0 and 1", "GPUs 0 and 2"}, changes)


def test_a_gpu_that_fails_alone_is_named() -> None:
    changes = list(smaller(setup(3)))
    assert "GPU 1 fails by itself" in concluded({"GPU 0 alone", "GPU 2 alone"}, changes)


def test_nothing_that_helps_is_said() -> None:
    assert "No change makes it pass" in concluded(set(), list(settings(setup())))


def test_trials_stop_when_the_time_is_over() -> None:
    now = iter(range(0, 1000, 10))
    made = bisect(setup(2), FAILURE, lambda change, only: FAILS, 50.0, lambda text: None, lambda: float(next(now)))
    outcomes = [trial.outcome for trial in made.trials]
    assert outcomes[0] == "fails"
    assert outcomes[-1] == "not_run"


def test_a_trial_that_does_not_work_is_no_answer() -> None:
    def run(change: Change, only: tuple[str, ...]) -> TrialResult:
        if "NCCL_IB_DISABLE" in change.environment:
            raise OwnFailure("no process")
        return FAILS

    made = bisect(setup(2), FAILURE, run, 1e6, lambda text: None)
    assert [t.change for t in made.trials if t.outcome == "not_run"] == ["InfiniBand off (NCCL_IB_DISABLE=1)"]


def test_another_failure_is_not_the_same() -> None:
    other = TrialResult("nccl", 2, 1.0, (), (), Failure("error", "init", None, (), "no interface"))
    made = bisect(setup(2), FAILURE, lambda change, only: other, 1e6, lambda text: None)
    assert {trial.outcome for trial in made.trials} == {"fails_otherwise"}


def test_all_pass_but_the_first() -> None:
    made = bisect(setup(2), FAILURE, lambda c, only: PASSES if c.environment else FAILS, 1e6, lambda text: None)
    assert len(made.conclusions) == 5
