"""Folders and looks of several incidents are not judged as one."""

import json
import shutil
from pathlib import Path

from stallwatch.bundle.reader import load

BUNDLES = Path(__file__).parents[2] / "bundles"
FIRST, SECOND = BUNDLES / "gloo-p2p_both_recv", BUNDLES / "gloo-python_sleep"


def _copy(source: Path, target: Path, at_ns: int, **changes: object) -> Path:
    shutil.copytree(source, target)
    said = json.loads((target / "bundle.json").read_text())
    said |= {"captured_at_ns": dict.fromkeys(said["captured_at_ns"], at_ns), **changes}
    (target / "bundle.json").write_text(json.dumps(said))
    return target


def test_of_two_incidents_of_the_same_ranks_the_newer_is_read_as_a_whole(tmp_path: Path) -> None:
    _copy(FIRST, tmp_path / "job-1", 1_000, incident_id="job-1")
    newer = _copy(SECOND, tmp_path / "job-2", 2_000, incident_id="job-2")
    both, alone = load([tmp_path]), load([newer])
    assert both.incident_id == "job-2"
    for mine, other in zip(both.ranks, alone.ranks, strict=True):
        assert [r.operations for r in mine.recorders] == [r.operations for r in other.recorders]
    assert [rank.pid for rank in both.ranks] == [rank.pid for rank in alone.ranks]
    assert any("is in 2 of the given folders" in caveat for caveat in both.caveats)


def test_a_rank_that_only_the_older_incident_has_is_not_mixed_in(tmp_path: Path) -> None:
    _copy(FIRST, tmp_path / "job-1", 1_000)
    newer = _copy(SECOND, tmp_path / "job-2", 2_000)
    shutil.rmtree(newer / "ranks" / "3")
    assert [rank.rank for rank in load([tmp_path]).ranks] == [0, 1, 2]


def test_a_look_at_a_former_process_of_the_rank_is_left_out(tmp_path: Path) -> None:
    """After a restart the first look of the second incident lies over the first's, whose second look is still there."""
    folder = _copy(SECOND, tmp_path / "job-1", 2_000)
    rank = folder / "ranks" / "1"
    process = json.loads((rank / "process.json").read_text())
    (rank / "process-2.json").write_text(json.dumps(process | {"pid": process["pid"] + 500}))
    shutil.copy(rank / "stacks.json", rank / "stacks-2.json")
    found = next(rank for rank in load([folder]).ranks if rank.rank == 1)
    assert [look.look for look in found.processes] == [1]
    assert [stacks.look for stacks in found.stacks] == [1]
    assert any("rank 1: look 2 is of another process" in caveat for caveat in load([folder]).caveats)
