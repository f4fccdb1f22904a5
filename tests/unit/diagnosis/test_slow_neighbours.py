"""Who is named beside slow ranks on their CPUs, and what to do about it."""

import msgspec
import pytest

from stallwatch.diagnosis.slow_neighbours import Sharers, sharers, steps_about
from stallwatch.model.evidence import Neighbour, RankEvidence
from tests.unit.diagnosis.claims.test_slow_rank import OWN, QUIET, profiled_rank, verdict
from tests.unit.diagnosis.job.test_time_spent import backward, line, seen


def rank(number: int, *beside: Neighbour) -> RankEvidence:
    return profiled_rank(number, (), msgspec.structs.replace(QUIET, beside=beside))


def told(beside: Sharers) -> str:
    return " ".join(str(step) for step in steps_about(beside, "ranks 2-3", "node", 7, many=True))


def of(*ranks: RankEvidence) -> Sharers:
    every = {one.rank: one for one in (profiled_rank(number, (), QUIET) for number in range(2))}
    return sharers(ranks, every | {one.rank: one for one in ranks})


@pytest.mark.parametrize(
    ("beside", "said", "step", "not_step"),
    [
        (
            [Neighbour(51, "python", 0.5, 1, "child", 2)],
            "on which also runs pid 51, a child of its own (python, 50% of a CPU)",
            "Give the children of rank 2 CPUs of their own, or have fewer of them",
            "move or stop",
        ),
        (
            [Neighbour(51, "pt_data_worker", 0.88, 8, "child", 2)],
            "on which also run 8 children of its own, such as pid 51 (pt_data_worker, 88% of a CPU together)",
            "worker_init_fn, or num_workers",
            "move or stop",
        ),
        (
            [Neighbour(53, "python", 0.6, 3, "thread", 2)],
            "on which also run 3 threads of its own process (python, 60% of a CPU together)",
            "OMP_NUM_THREADS",
            "move or stop",
        ),
        (
            [Neighbour(60, "python", 0.5, 1, "rank", 3)],
            "on which also runs pid 60 (rank 3, python, 50% of a CPU)",
            "Give each rank CPUs of its own",
            "move or stop",
        ),
        (
            [Neighbour(70, "python", 0.5, 1, "rank", 0, "other"), Neighbour(51, "python", 0.2, 1, "child", 2)],
            "on which also run pid 70 (rank 0 of job other, python, 50% of a CPU) and pid 51, a child of its own",
            "move or stop who shares them (pid 70 (rank 0 of job other, python, 50% of a CPU)).",
            "Or let rank 2 use more",
        ),
        (
            [Neighbour(71, "burn", 0.6), Neighbour(61, "python", 0.2, 1, "child", 3), Neighbour(9, "x", 0.1)],
            "on which also run pid 71 (burn, 60% of a CPU) and pid 61, a child of "
            "rank 3 (python, 20% of a CPU)",
            "move or stop who shares them (pid 71 (burn",
            "children of rank 2",
        ),
        ([], "it may use only CPU 3, and who takes it is not seen (", "move or stop who shares them.", "children of"),
    ],
    ids=["child", "workers", "threads", "rank", "another job", "several", "nobody known"],
)  # fmt: skip
def test_who_is_on_its_cpu_is_told_by_what_it_is_to_the_rank_with_what_fits(
    beside: list[Neighbour], said: str, step: str, not_step: str
) -> None:
    """Nobody moves or stops a rank's own workers: seen live, a child of the rank was not named at all."""
    told = verdict(OWN, msgspec.structs.replace(QUIET, runnable_share=0.4, cpus=(3,), beside=tuple(beside)))
    assert said in told.summary
    assert any(step in one for one in told.next_steps), told.next_steps
    assert not any(not_step in one for one in told.next_steps)


def test_a_line_to_which_peers_come_is_no_second_reason_of_who_has_no_cpu() -> None:
    """Seen live: "see why rank 2 alone is at" the line of its work, at which its peers spent 15 % of their time."""
    told = verdict(OWN, msgspec.structs.replace(QUIET, runnable_share=0.4, cpus=(3,)))
    assert "spends" not in told.summary
    assert not any("alone" in step for step in told.next_steps)
    never = [seen(66, line(90)), backward(34)]
    assert (
        "it spends 38% of its time"
        in verdict(OWN, msgspec.structs.replace(QUIET, runnable_share=0.4), peers=never).summary
    )


def test_ranks_that_are_slow_for_one_cpu_are_named_as_each_others_neighbours() -> None:
    two, three = Neighbour(50, "python", 0.5, 1, "rank", 2), Neighbour(60, "python", 0.4, 1, "rank", 3)
    beside = of(rank(2, three), rank(3, two))
    assert beside.run == "run pid 50 (rank 2, python, 50% of a CPU) and pid 60 (rank 3, python, 40% of a CPU)"
    assert "ranks 2-3 share them with pid 50 (rank 2" in told(beside)


def test_the_children_of_several_are_their_own() -> None:
    beside = of(rank(2, Neighbour(51, "python", 0.5, 4, "child", 2)), rank(3))
    assert beside.run == "run 4 children of their own, such as pid 51 (python, 50% of a CPU together)"
    assert "move or stop" not in told(beside)


def test_what_a_former_daemon_did_not_say_is_known_by_the_ranks_pid() -> None:
    pid = profiled_rank(1, (), QUIET).pid
    assert pid is not None
    assert of(rank(2, Neighbour(pid, "python", 0.5))).run == f"runs pid {pid} (rank 1, python, 50% of a CPU)"


WORKERS, POOL = Neighbour(80, "pt_data_worker", 1.5, 8, "child", 2), Neighbour(53, "python", 1.2, 3, "thread", 2)


def test_who_disturbs_it_is_named_beside_its_own_that_are_busier() -> None:
    beside = of(rank(2, WORKERS, POOL, Neighbour(90, "burn", 0.9)))
    assert beside.run.endswith("and pid 90 (burn, 90% of a CPU)")
    assert "8 children of its own" in beside.run


def test_what_its_peers_have_as_well_is_not_named() -> None:
    """Each has eight workers and four threads for its four CPUs, and one of them a neighbour: it was told to have fewer
    workers and threads, and no word of who took its CPUs."""

    def as_its_own(number: int, *, workers: int = 8) -> RankEvidence:
        own = (
            Neighbour(180, "pt_data_worker", 1.8, workers, "child", number),
            Neighbour(153, "python", 1.5, 3, "thread", number),
        )
        return rank(number, *own)

    slow = rank(2, WORKERS, POOL, Neighbour(90, "burn", 0.9))
    every = {one.rank: one for one in (as_its_own(0), as_its_own(1), slow)}
    beside = sharers([slow], every)
    assert beside.run == "runs pid 90 (burn, 90% of a CPU)"
    assert "OMP_NUM_THREADS" not in told(beside)
    fewer = {**every, 0: as_its_own(0, workers=2), 1: as_its_own(1, workers=2)}
    assert "8 children of its own" in sharers([slow], fewer).run


def test_on_fewer_cpus_than_its_peers_have_its_own_are_in_the_way() -> None:
    slow = profiled_rank(2, (), msgspec.structs.replace(QUIET, cpus=(3,), beside=(WORKERS,)))
    every = {number: rank(number, msgspec.structs.replace(WORKERS, pid=180, rank=number)) for number in (0, 1)}
    assert "8 children of its own" in sharers([slow], {**every, 2: slow}).run
