"""A second thread of every rank communicates in a group of its own while training stands: a capture of a live job under
torchrun, three ranks, gloo. Its truth was written before it ran."""

import json
from pathlib import Path

from stallwatch.bundle.reader import load
from stallwatch.diagnosis import judge

_CAPTURE = Path(__file__).parents[3] / "bundles/gloo-side_thread"


def test_who_stands_is_named_though_its_other_thread_goes_on() -> None:
    truth = json.loads((_CAPTURE / "truth.json").read_text())
    verdict = judge(load([_CAPTURE])).verdicts[0]
    assert (verdict.cause, list(verdict.culprits), verdict.where) == (truth["cause"], truth["culprits"], "lock")
    assert (verdict.seq, verdict.confidence) == (41, "certain")
    assert "train.py:29" in verdict.summary, "the line of the training thread, not where the other one sleeps"


def test_the_side_group_moves_between_the_looks_and_the_default_group_does_not() -> None:
    for rank in load([_CAPTURE]).ranks:
        calls: dict[str, list[set[int]]] = {}
        for dump in sorted(rank.recorders, key=lambda dump: dump.look):
            for name in {operation.group_name for operation in dump.operations}:
                calls.setdefault(name, []).append({o.op_id for o in dump.operations if o.group_name == name})
        default, side = calls["0"], next(looks for name, looks in calls.items() if name != "0")
        assert default[0] == default[1]
        assert max(side[1]) > max(side[0])
