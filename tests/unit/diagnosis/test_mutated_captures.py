"""Real captures with parts spoiled as disks, kills and old versions spoil them: what is said may weaken, not turn."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stallwatch.bundle.reader import load
from stallwatch.diagnosis import judge
from stallwatch.diagnosis.recorder.reduce import reduce_rank
from stallwatch.model.evidence import RankEvidence
from stallwatch.model.verdict import Verdict
from tests.builders.job import Call, recorder, world

_BUNDLES = Path(__file__).parents[2] / "bundles"
_NAMES = sorted(path.parent.name for path in _BUNDLES.glob("*/truth.json"))
_RECORDED = [name for name in _NAMES if any((_BUNDLES / name).glob("ranks/*/flight_recorder*"))]


def _copy(name: str, folder: Path) -> Path:
    return Path(shutil.copytree(_BUNDLES / name, folder / "incident", ignore=shutil.ignore_patterns("truth.json")))


def _edit(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    for path in bundle.glob("ranks/*/flight_recorder*.pickle"):
        dump = pickle.loads(path.read_bytes())  # noqa: TID251 - our own capture
        change(dump)
        path.write_bytes(pickle.dumps(dump, protocol=2))


def _judged(bundle: Path) -> Verdict:
    return judge(load([bundle])).verdicts[0]


def _assert_weaker_or_equal(name: str, verdict: Verdict) -> None:
    truth = json.loads((_BUNDLES / name / "truth.json").read_text())
    answers = [truth, *truth.get("accept", [])]
    guilty = {rank for answer in answers for rank in answer["culprits"]}
    assert verdict.cause not in ("healthy", "waiting", "slow_rank"), verdict.because
    if verdict.confidence != "possible":
        assert set(verdict.culprits) <= guilty, verdict.because


@pytest.mark.parametrize("share", [0.3, 0.7, 0.95])
@pytest.mark.parametrize("name", _RECORDED)
def test_dumps_that_broke_off_prove_neither_motion_nor_absence(name: str, share: float, tmp_path: Path) -> None:
    bundle = _copy(name, tmp_path)
    for place, path in enumerate(sorted(bundle.glob("ranks/*/flight_recorder*.pickle"))):
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * (share - place % 4 * 0.05))])
    _assert_weaker_or_equal(name, _judged(bundle))


@pytest.mark.parametrize("name", _RECORDED)
def test_one_dump_that_broke_off_accuses_nobody(name: str, tmp_path: Path) -> None:
    bundle = _copy(name, tmp_path)
    for path in bundle.glob("ranks/0/flight_recorder*.pickle"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    _assert_weaker_or_equal(name, _judged(bundle))


def test_a_thread_that_only_the_earlier_look_holds_is_still_a_thread() -> None:
    early = recorder(0, (Call(world(2), thread="1"), Call(world(2), thread="2")), 1, look=1)
    late = recorder(0, (Call(world(2), thread="1"),), 0, look=2, first_record=500)
    evidence = RankEvidence(rank=0, host=None, pid=None, recorders=(early, late))
    assert reduce_rank(evidence).pending[0].seen_before is not None
