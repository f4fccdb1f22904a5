import json
import os
from pathlib import Path

import msgspec

from stallwatch.hook import layout
from stallwatch.model.snapshot import GroupCounter, Heartbeat
from stallwatch.sensors.group_labels import MOST_GROUPS, GroupLabels
from tests.unit.detectors.nodes import SECOND, heartbeat


def beat(directory: Path, *groups: GroupCounter) -> Heartbeat:
    path = str(directory / layout.record_name(0, 1000))
    return heartbeat(0, path=path, uid=os.getuid(), groups=groups)


def write(directory: Path, names: dict[str, str]) -> None:
    (directory / layout.facts_name(0, 1000)).write_text(json.dumps({"schema_version": 1, "process_groups": names}))


def pending(labels: GroupLabels, one: Heartbeat, now_ns: int = 0) -> tuple[tuple[str, int, str], ...]:
    (labelled,) = labels.labelled([one], now_ns)
    return labelled.pending_groups


def test_only_groups_in_which_something_is_pending_are_named(tmp_path: Path) -> None:
    write(tmp_path, {"nccl 0": "default_pg aa", "nccl 1": "mesh_tp bb"})
    one = beat(tmp_path, GroupCounter("nccl", 0, 5, 5), GroupCounter("nccl", 1, 6, 5), GroupCounter("gloo", 1, 6, 5))
    assert pending(GroupLabels(), one) == (("nccl", 1, "mesh_tp bb"),)


def test_a_name_that_comes_later_is_found_and_one_that_never_comes_is_asked_for_less_and_less(tmp_path: Path) -> None:
    labels, one = GroupLabels(), beat(tmp_path, GroupCounter("nccl", 1, 6, 5))
    assert pending(labels, one) == ()
    write(tmp_path, {"nccl 1": "mesh_tp bb"})
    assert pending(labels, one, SECOND // 2) == ()
    assert pending(labels, one, 2 * SECOND) == (("nccl", 1, "mesh_tp bb"),)
    (tmp_path / layout.facts_name(0, 1000)).unlink()
    assert pending(labels, one, 200 * SECOND) == (("nccl", 1, "mesh_tp bb"),)  # what is known is not read again


def test_a_rank_has_few_names_and_foreign_facts_give_none(tmp_path: Path) -> None:
    write(tmp_path, {f"nccl {number}": f"group {number}" * 50 for number in range(100)})
    many = beat(tmp_path, *(GroupCounter("nccl", number, 6, 5) for number in range(100)))
    found = pending(GroupLabels(), many)
    assert len(found) == MOST_GROUPS
    assert all(len(name) <= 100 for _, _, name in found)
    assert pending(GroupLabels(), msgspec.structs.replace(many, uid=os.getuid() + 1)) == ()
