from pathlib import Path

import pytest

from stallwatch.demo.catalogue import FAULTS, agrees, culprits, find
from stallwatch.demo.draw import drawn_rank
from stallwatch.demo.job import PROGRAMS, job_environment
from stallwatch.errors import UsageError
from stallwatch.model.verdict import Cause, Verdict

SEED = 5  # draws rank 2 of 4


def verdict(cause: Cause, *ranks: int) -> Verdict:
    return Verdict(cause=cause, culprits=ranks, confidence="likely", summary="")


def test_every_program_is_in_the_catalogue_and_every_fault_has_one() -> None:
    programs = {path.stem for path in PROGRAMS.glob("*.py")} - {"__init__"}
    assert {fault.program for fault in FAULTS} == programs
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) == len(programs)


def test_nothing_that_the_job_is_given_names_its_fault() -> None:
    environment = job_environment({"PATH": "/bin"}, Path("/ranks"), Path("/mark"), Path("/scratch"), "demo-1")
    for fault in FAULTS:
        assert fault.name not in fault.program  # file names show in stacks
        assert not [value for value in environment.values() if fault.program in value]


def test_the_drawn_rank_may_be_any() -> None:
    assert {drawn_rank(seed, 4) for seed in range(64)} == {0, 1, 2, 3}


def test_culprits_follow_the_seed_except_where_the_program_fixes_them() -> None:
    assert culprits(find("lock"), SEED, 4) == (2,)
    assert culprits(find("checkpoint"), SEED, 4) == (0,)
    assert culprits(find("none"), SEED, 4) == ()


def test_only_the_true_cause_with_the_true_culprit_agrees() -> None:
    lock = find("lock")
    assert agrees(lock, SEED, 4, verdict("not_entered", 2))
    assert not agrees(lock, SEED, 4, verdict("not_entered", 1))
    assert not agrees(lock, SEED, 4, verdict("not_entered", 1, 2))
    assert not agrees(lock, SEED, 4, verdict("process_stopped", 2))
    assert not agrees(lock, SEED, 4, None)


def test_a_cycle_may_be_told_by_all_of_its_members() -> None:
    assert agrees(find("group_order"), SEED, 4, verdict("group_order", 0, 1, 2, 3))
    assert agrees(find("group_order"), SEED, 4, verdict("group_order", 2))
    assert not agrees(find("group_order"), SEED, 4, verdict("group_order", 0))
    assert not agrees(find("skip"), SEED, 4, verdict("not_entered", 0, 1, 2, 3))


def test_a_receive_without_its_send_may_be_told_by_both_ends() -> None:
    assert agrees(find("p2p"), SEED, 4, verdict("p2p_unmatched", 1, 2))
    assert agrees(find("p2p"), SEED, 4, verdict("p2p_unmatched")), "gloo records no peers"
    assert not agrees(find("p2p"), SEED, 4, verdict("p2p_unmatched", 2, 3))
    assert not agrees(find("p2p"), SEED, 4, verdict("not_entered", 1, 2))


def test_silence_agrees_with_nothing_having_happened() -> None:
    assert agrees(find("none"), SEED, 4, None)
    assert not agrees(find("none"), SEED, 4, verdict("waiting", 0))


def test_an_unknown_fault_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError) as refusal:
        find("lokc")
    assert "lock" in refusal.value.help
