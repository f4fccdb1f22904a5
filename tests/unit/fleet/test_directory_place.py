"""A shared directory as meeting place: what others may have put there, and who may not use it."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stallwatch.fleet.directory_place import DirectoryPlace
from stallwatch.fleet.place import CLAIM_SECONDS, Key, PlaceProblem

JOB = "train-0a1b2c3d"


def test_a_directory_of_another_mode_is_refused_with_what_to_do(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(PlaceProblem, match="mode 0700") as refused:
        DirectoryPlace(tmp_path).check()
    assert f"-m 0700 {tmp_path}" in refused.value.help


def test_a_directory_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(PlaceProblem, match="absent"):
        DirectoryPlace(tmp_path / "absent").check()


def test_in_a_directory_a_node_of_any_name_has_a_file_of_its_own(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    place = DirectoryPlace(tmp_path)
    key = Key(JOB, place.join(JOB, "../../evil"))
    place.put(key, "../../evil", b"1")
    place.put(key, "..", b"2")
    assert sorted(place.summaries(key).values()) == [b"1", b"2"]
    assert {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*")} == {JOB}


def test_a_link_in_the_directory_is_not_followed(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    place = DirectoryPlace(tmp_path)
    key = Key(JOB, place.join(JOB, "node0"))
    os.symlink("/etc/hostname", tmp_path / JOB / "1" / "told")
    with pytest.raises(PlaceProblem):
        place.look(key, "node0", whole=False)


def test_what_is_gone_or_no_file_among_the_summaries_costs_no_other_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    place = DirectoryPlace(tmp_path)
    key = Key(JOB, place.join(JOB, "node0"))
    place.put(key, "node0", b"1")
    folder = tmp_path / JOB / "1" / "summaries"
    os.symlink("/etc/hostname", folder / "link")
    os.mkfifo(folder / "fifo")
    (folder / "folder").mkdir()
    monkeypatch.setattr(os, "listdir", lambda path, real=os.listdir: [*real(path), "left-since"])
    assert place.summaries(key) == {"node0": b"1"}


def test_a_verdict_asks_the_file_server_once_for_each_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    place = DirectoryPlace(tmp_path)
    key = Key(JOB, place.join(JOB, "node0"))
    for number in range(50):
        place.put(key, f"node{number}", b"1")
    asked: list[str] = []

    def noted(function: Callable[..., Any], path: str | Path, *given: object, **named: object) -> Any:
        asked.append(str(path))
        return function(path, *given, **named)

    for name in ("open", "stat", "lstat", "listdir", "scandir"):
        monkeypatch.setattr(os, name, partial(noted, getattr(os, name)))
    summaries, ages = place.dated_summaries(key)
    assert len(summaries) == len(ages) == 50
    assert sum("summaries/node" in path for path in asked) == 50
    assert len(asked) < 60


def test_that_a_node_looks_on_is_written_once_in_a_while(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    now = [1000.0]
    place = DirectoryPlace(tmp_path, lambda: now[0])
    key = Key(JOB, place.join(JOB, "node0"))
    mine = tmp_path / JOB / "1" / "members" / "node0"
    os.utime(mine, (1, 1))
    now[0] += 4
    place.look(key, "node0", whole=False)
    assert mine.stat().st_mtime == 1
    now[0] += 2
    place.look(key, "node0", whole=False)
    assert mine.stat().st_mtime > 1


def test_an_incident_that_all_have_deserted_is_not_joined(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    place = DirectoryPlace(tmp_path)
    place.join(JOB, "node0")
    for path in (*(tmp_path / JOB / "1").rglob("*"), tmp_path / JOB / "1"):
        os.utime(path, (1, 1))
    assert place.join(JOB, "node1") == 2


def test_of_an_incident_that_a_node_has_left_nothing_is_kept(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    here, there = DirectoryPlace(tmp_path), DirectoryPlace(tmp_path)
    for number in range(3):
        key = Key(f"job-{number}", here.join(f"job-{number}", "node0"))
        assert there.join(key.job, "node1") == key.ordinal
        generation = here.claim(key, "node0")
        assert here.renew(key, "node0", generation)
        assert (here.claim(key, "node0"), there.claim(key, "node1")) == (0, 0)
        there.leave(key, "node1")
        here.leave(key, "node0")
    kept = [(name, one) for place in (here, there) for name, one in vars(place).items() if isinstance(one, dict)]
    assert len(kept) > 4
    assert [name for name, one in kept if one] == []


def test_a_claim_whose_node_is_not_written_yet_or_could_not_be_is_somebodys_until_it_has_stood(tmp_path: Path) -> None:
    """A claim is created and then written: whoever looks between the two, or after a full disk, sees no name."""
    now = 0.0
    place = DirectoryPlace(tmp_path, lambda: now)
    key = Key("train-0a1b2c3d", place.join("train-0a1b2c3d", "node0"))
    (tmp_path / key.job / str(key.ordinal) / "claim.1").touch()
    assert place.look(key, "node0", whole=False).holder
    assert place.claim(key, "node0") == 0
    now = CLAIM_SECONDS + 1
    assert place.claim(key, "node0") == 2


def test_a_claim_of_another_version_is_respected(tmp_path: Path) -> None:
    now = 0.0
    place = DirectoryPlace(tmp_path, lambda: now)
    key = Key("train-0a1b2c3d", place.join("train-0a1b2c3d", "node0"))
    folder = tmp_path / key.job / str(key.ordinal)
    (folder / "claim.1").write_bytes(b"\x93\x02\xa5node1\xff")
    (folder / "lease.1").write_bytes(b"what only a later version knows")
    for now in (0.0, 4.0, 8.0, 12.0):
        (folder / "beat.1").write_bytes(b"\xff" + str(now).encode())
        assert place.look(key, "node0", whole=False).holder
        assert place.claim(key, "node0") == 0
    now = 12.0 + CLAIM_SECONDS + 1
    assert place.claim(key, "node0") == 2
