import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stallwatch.formats.tested import NEWEST_TESTED
from stallwatch.hook import layout
from stallwatch.model.snapshot import Heartbeat
from stallwatch.sensors.rank_facts import RankFacts, differing, is_compared
from tests.unit.detectors.nodes import SECOND, heartbeat


def written(directory: Path, rank: int, environment: dict[str, str], **versions: str | None) -> Heartbeat:
    facts = {"schema_version": 1, "environment": environment, "versions": versions}
    (directory / layout.facts_name(rank, 1000 + rank)).write_text(json.dumps(facts))
    return heartbeat(rank, path=str(directory / layout.record_name(rank, 1000 + rank)), uid=os.getuid())


def differences(beats: list[Heartbeat], **how: Any) -> dict[int, tuple[tuple[str, str], ...]]:
    return {beat.rank: beat.differs for beat in RankFacts().compared(beats, how.get("now_ns", 0)) if beat.differs}


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


@pytest.mark.parametrize(
    "name",
    ["RANK", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA",
     "NCCL_HOSTID", "TORCHELASTIC_ERROR_FILE", "TORCH_LOGS", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "POD_NAME"],
)  # fmt: skip
def test_what_is_each_rank_s_own_is_not_compared(name: str) -> None:
    assert not is_compared(name)


@pytest.mark.parametrize("name", ["NCCL_ALGO", "TORCH_DISTRIBUTED_DEBUG", "TORCH_NCCL_BLOCKING_WAIT", "FI_PROVIDER"])
def test_what_shapes_communication_is_compared(name: str) -> None:
    assert is_compared(name)


def test_a_rank_without_facts_says_nothing(tmp_path: Path) -> None:
    beats = [written(tmp_path, 0, {"NCCL_ALGO": "Ring"}), heartbeat(1, path=str(tmp_path / "rank-1-1001.beat"))]
    assert not differences(beats)


def test_foreign_and_damaged_facts_are_no_facts(tmp_path: Path) -> None:
    beats = [written(tmp_path, rank, {"NCCL_ALGO": str(rank)}) for rank in range(3)]
    (tmp_path / layout.facts_name(2, 1002)).write_text("{")
    foreign = msgspec.structs.replace(beats[1], uid=os.getuid() + 1)
    assert not differences([beats[0], foreign, beats[2]])


def test_facts_that_were_written_anew_are_read_within_minutes(tmp_path: Path) -> None:
    beats, facts = [written(tmp_path, rank, {}, torch="2.13.0") for rank in range(2)], RankFacts()
    assert not any(beat.differs for beat in facts.compared(beats, 0))
    written(tmp_path, 1, {"NCCL_ALGO": "Tree"}, torch="2.13.0")
    assert not any(beat.differs for beat in facts.compared(beats, SECOND))
    assert all(beat.differs for beat in facts.compared(beats, 100 * SECOND))


def test_only_the_first_names_travel() -> None:
    values = {"a": {f"NCCL_{n}": "1" for n in range(20)}, "b": {f"NCCL_{n}": "2" for n in range(20)}}
    assert len(differing(values)["a"]) == 5


def test_versions_newer_than_the_tested_ones_are_passed_on_of_one_rank_alone_too(tmp_path: Path) -> None:
    newest, minor = NEWEST_TESTED["torch"]
    beat = written(tmp_path, 0, {}, torch=f"{newest}.{minor + 1}.0+cpu", nccl="2.10.3")
    (told,) = RankFacts().compared([beat], 0)
    assert told.untested == (("torch", f"{newest}.{minor + 1}.0+cpu"),)
    assert not told.differs
    tested = written(tmp_path, 1, {}, torch=f"{newest}.{minor}.9", nccl=None)
    assert RankFacts().compared([tested], 0) == (tested,)
