from pathlib import Path

import msgspec
import pytest

from stallwatch.captures.allowance import SMALL_BYTES, Allowance, ByteLimits
from stallwatch.captures.channel import FilePiece, LookProgress
from stallwatch.captures.keeper import Keeper
from stallwatch.captures.spec import CaptureState
from stallwatch.model.evidence import Attempt

_LIMITS = ByteLimits(rank=4 * SMALL_BYTES, incident=6 * SMALL_BYTES, owner=8 * SMALL_BYTES, whole=12 * SMALL_BYTES)
LARGE = SMALL_BYTES + 1


def bundle_of(folder: Path, name: str, owner: str, size: int) -> Path:
    bundle = folder / name
    (bundle / "ranks" / "9").mkdir(parents=True)
    (bundle / "ranks" / "9" / "flight_recorder.pickle").write_bytes(b"0" * size)
    (bundle / "incident.json").write_bytes(msgspec.json.encode({"job": {"owner": owner, "epoch": ""}, "more": 1}))
    return bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return bundle_of(tmp_path, "one", "anna", 0)


def keeper(bundle: Path, look: int = 1) -> Keeper:
    return Keeper(bundle, "node0", range(10), look, Allowance(bundle, "anna", _LIMITS))


def said(keeper: Keeper) -> str:
    state = keeper.take(LookProgress(CaptureState(done=True, evidence_complete=True)))
    assert state is not None
    return "; ".join(state.missing)


def test_a_rank_fills_its_own_share_and_no_more(bundle: Path) -> None:
    keep = keeper(bundle)
    for name in ("a.pickle", "b.pickle", "c.pickle", "d.pickle"):
        keep.take(FilePiece(0, name, b"0" * LARGE))
    assert sorted(path.name for path in (bundle / "ranks/0").glob("*.pickle")) == ["a.pickle", "b.pickle", "c.pickle"]
    assert "rank 0: d.pickle was not kept: with its 262145 bytes one rank in an incident would take more" in said(keep)
    (attempt,) = msgspec.json.decode((bundle / "ranks/0/attempts.json").read_bytes(), type=list[Attempt])
    assert (attempt.what, attempt.answered) == ("d", False)
    keep.take(FilePiece(1, "a.pickle", b"0" * LARGE))
    assert (bundle / "ranks/1/a.pickle").exists()


def test_what_is_too_much_is_dropped_before_its_end(bundle: Path) -> None:
    keep = keeper(bundle)
    for _ in range(100):
        keep.take(FilePiece(0, "a.pickle", b"0" * LARGE, is_last=False))
    assert sum(map(len, keep._parts.values())) <= LARGE
    keep.take(FilePiece(0, "a.pickle", b"0", is_last=True))
    assert not (bundle / "ranks/0/a.pickle").exists()
    assert "a.pickle was not kept" in said(keep)
    keep.take(FilePiece(0, "a.pickle", b"whole"))
    assert (bundle / "ranks/0/a.pickle").read_bytes() == b"whole"


def test_what_earlier_looks_wrote_counts(bundle: Path) -> None:
    (bundle / "ranks/0").mkdir()
    (bundle / "ranks/0/a.pickle").write_bytes(b"0" * _LIMITS.rank)
    keep = keeper(bundle, look=2)
    keep.take(FilePiece(0, "b.pickle", b"0" * LARGE))
    assert "one rank" in said(keep)


def test_an_incident_is_bounded_as_a_whole(bundle: Path) -> None:
    keep = keeper(bundle)
    for rank in range(6):
        keep.take(FilePiece(rank, "a.pickle", b"0" * LARGE))
    assert len(list(bundle.glob("ranks/*/a.pickle"))) == 5
    assert "rank 5: a.pickle was not kept: with its 262145 bytes one incident would" in said(keep)


@pytest.mark.parametrize(("owner", "whose"), [("anna", "all incidents of one user"), ("bert", "all incidents")])
def test_other_incidents_count_for_their_owner_and_for_all(bundle: Path, owner: str, whose: str) -> None:
    for number in range(2):
        bundle_of(bundle.parent, f"other{number}", owner, 6 * SMALL_BYTES)
    keep = keeper(bundle)
    keep.take(FilePiece(0, "a.pickle", b"0" * LARGE))
    assert f"bytes {whose} would take" in said(keep)


def test_another_users_full_share_costs_nobody_else_his_evidence(bundle: Path) -> None:
    bundle_of(bundle.parent, "other", "bert", 8 * SMALL_BYTES)
    keeper(bundle).take(FilePiece(0, "a.pickle", b"0" * LARGE))
    assert (bundle / "ranks/0/a.pickle").exists()


def test_small_evidence_is_always_kept(bundle: Path) -> None:
    bundle_of(bundle.parent, "other", "anna", 20 * SMALL_BYTES)
    keeper(bundle).take(FilePiece(0, "a.pickle", b"0" * SMALL_BYTES))
    assert (bundle / "ranks/0/a.pickle").exists()


def test_small_files_without_end_are_bounded_as_large_ones_are(bundle: Path) -> None:
    """As many ranks as a user likes, of which each has a little."""
    keep = Keeper(bundle, "node0", range(1_000), 1, Allowance(bundle, "anna", _LIMITS))
    for rank in range(1_000):
        keep.take(FilePiece(rank, "process.json", b"0" * SMALL_BYTES))
    written = sum(path.stat().st_size for path in bundle.glob("ranks/*/process.json"))
    assert written <= (4 << 20) + 6 * SMALL_BYTES
    assert "process.json was not kept" in said(keep)
