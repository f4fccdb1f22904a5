import json
import os
from pathlib import Path
from typing import Any

import msgspec

from stallwatch.formats.tested import NEWEST_TESTED
from stallwatch.hook import layout
from stallwatch.model.snapshot import MOST_OPEN_GROUPS, GroupCounter, Heartbeat
from stallwatch.sensors.rank_facts import GroupLabels, RememberedFacts, differing
from tests.builders.clock import SECOND_NS
from tests.builders.heartbeat import heartbeat


def written(directory: Path, rank: int, environment: dict[str, str], **versions: str | None) -> Heartbeat:
    facts = {"schema_version": 1, "environment": environment, "versions": versions}
    (directory / layout.facts_name(rank, 1000 + rank)).write_text(json.dumps(facts))
    return heartbeat(rank, path=str(directory / layout.record_name(rank, 1000 + rank)), uid=os.getuid())


def differences(beats: list[Heartbeat], **how: Any) -> dict[int, tuple[tuple[str, str], ...]]:
    found = RememberedFacts().compared(beats, how.get("now_ns", 0))
    return {beat.rank: found[beat.path][0] for beat in beats if found.get(beat.path, ((), ()))[0]}


def test_a_variable_that_reached_one_rank_only_is_passed_on(tmp_path: Path) -> None:
    beats = [written(tmp_path, rank, {"NCCL_ALGO": "Ring"} if rank == 2 else {}, torch="2") for rank in range(3)]
    found = differences(beats)
    assert found[2] == (("NCCL_ALGO", "Ring"),)
    assert found[0] == found[1] == (("NCCL_ALGO", "not set"),)


def test_versions_are_compared_where_both_have_the_library(tmp_path: Path) -> None:
    beats = [
        written(tmp_path, 0, {}, torch="2.13.0", numpy="2.0"),
        written(tmp_path, 1, {}, torch="2.12.1", numpy=None),
    ]
    assert differences(beats) == {
        0: (("version of torch", "2.13.0"),),
        1: (("version of torch", "2.12.1"),),
    }


def test_ranks_alike_and_other_jobs_are_quiet(tmp_path: Path) -> None:
    alike = [written(tmp_path, rank, {"NCCL_ALGO": "Ring"}, torch="2.13.0") for rank in range(2)]
    other = msgspec.structs.replace(written(tmp_path, 2, {"NCCL_ALGO": "Tree"}), training_job="another")
    assert not differences([*alike, other])


def test_a_rank_without_facts_says_nothing(tmp_path: Path) -> None:
    beats = [written(tmp_path, 0, {"NCCL_ALGO": "Ring"}), heartbeat(1, path=str(tmp_path / "rank-1-1001.beat"))]
    assert not differences(beats)


def test_foreign_and_damaged_facts_are_no_facts(tmp_path: Path) -> None:
    beats = [written(tmp_path, rank, {"NCCL_ALGO": str(rank)}) for rank in range(3)]
    (tmp_path / layout.facts_name(2, 1002)).write_text("{")
    foreign = msgspec.structs.replace(beats[1], uid=os.getuid() + 1)
    assert not differences([beats[0], foreign, beats[2]])


def test_facts_that_were_written_anew_are_read_within_minutes(tmp_path: Path) -> None:
    beats, facts = [written(tmp_path, rank, {}, torch="2.13.0") for rank in range(2)], RememberedFacts()
    assert not facts.compared(beats, 0)
    written(tmp_path, 1, {"NCCL_ALGO": "Tree"}, torch="2.13.0")
    assert not facts.compared(beats, SECOND_NS)
    assert all(differs for differs, _ in facts.compared(beats, 100 * SECOND_NS).values())


def test_only_the_first_names_travel() -> None:
    values = {"a": {f"NCCL_{n}": "1" for n in range(20)}, "b": {f"NCCL_{n}": "2" for n in range(20)}}
    assert len(differing(values)["a"]) == 5


def test_versions_newer_than_the_tested_ones_are_passed_on_of_one_rank_alone_too(tmp_path: Path) -> None:
    newest, minor = NEWEST_TESTED["torch"]
    beat = written(tmp_path, 0, {}, torch=f"{newest}.{minor + 1}.0+cpu", nccl="2.10.3")
    assert RememberedFacts().compared([beat], 0) == {beat.path: ((), (("torch", f"{newest}.{minor + 1}.0+cpu"),))}
    tested = written(tmp_path, 1, {}, torch=f"{newest}.{minor}.9", nccl=None)
    assert RememberedFacts().compared([tested], 0) == {}


def waiting(directory: Path, *groups: GroupCounter) -> Heartbeat:
    path = str(directory / layout.record_name(0, 1000))
    return heartbeat(0, path=path, uid=os.getuid(), groups=groups)


def name_groups(directory: Path, names: dict[str, str]) -> None:
    (directory / layout.facts_name(0, 1000)).write_text(json.dumps({"schema_version": 1, "process_groups": names}))


def pending(labels: GroupLabels, one: Heartbeat, now_ns: int = 0) -> tuple[tuple[str, int, str], ...]:
    return labels.labelled([one], now_ns).get(one.path, ())


def test_only_groups_in_which_something_is_pending_are_named(tmp_path: Path) -> None:
    name_groups(tmp_path, {"nccl 0": "default_pg aa", "nccl 1": "mesh_tp bb"})
    one = waiting(tmp_path, GroupCounter("nccl", 0, 5, 5), GroupCounter("nccl", 1, 6, 5), GroupCounter("gloo", 1, 6, 5))
    assert pending(GroupLabels(), one) == (("nccl", 1, "mesh_tp bb"),)


def test_a_name_that_comes_later_is_found_and_one_that_never_comes_is_asked_for_less_and_less(tmp_path: Path) -> None:
    labels, one = GroupLabels(), waiting(tmp_path, GroupCounter("nccl", 1, 6, 5))
    assert pending(labels, one) == ()
    name_groups(tmp_path, {"nccl 1": "mesh_tp bb"})
    assert pending(labels, one, SECOND_NS // 2) == ()
    assert pending(labels, one, 2 * SECOND_NS) == (("nccl", 1, "mesh_tp bb"),)
    (tmp_path / layout.facts_name(0, 1000)).unlink()
    assert pending(labels, one, 200 * SECOND_NS) == (("nccl", 1, "mesh_tp bb"),)  # what is known is not read again


def test_a_rank_has_few_names_and_foreign_facts_give_none(tmp_path: Path) -> None:
    name_groups(tmp_path, {f"nccl {number}": f"group {number}" * 50 for number in range(100)})
    many = waiting(tmp_path, *(GroupCounter("nccl", number, 6, 5) for number in range(100)))
    found = pending(GroupLabels(), many)
    assert len(found) == MOST_OPEN_GROUPS == 8
    assert all(len(name) <= 100 for _, _, name in found)
    assert pending(GroupLabels(), msgspec.structs.replace(many, uid=os.getuid() + 1)) == ()
