"""Which rungs a recorder is asked for, and how ranks that share few cores take turns."""

import os
import time
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from stallwatch.captures import flight_recorder
from stallwatch.captures.flight_recorder import RecorderRequest, rungs_of, turns
from stallwatch.captures.folder import Folder
from stallwatch.hook import layout
from stallwatch.hook.pulse import REQUEST_SECONDS
from stallwatch.model.snapshot import GroupCounter, Heartbeat
from stallwatch.node.procfs import ProcessDirectory
from tests.builders.heartbeat import heartbeat
from tests.builders.node import sample
from tests.unit.captures.kept import kept

FIRST = ("active", "entries")


@pytest.mark.parametrize(
    ("recorders", "asked"),
    [(("gloo",), ("entries",)), (("nccl",), FIRST), (("gloo", "nccl"), FIRST), ((), FIRST)],
)
def test_gloo_is_not_asked_twice_for_one_answer(recorders: tuple[str, ...], asked: tuple[str, ...]) -> None:
    groups = tuple(GroupCounter(name, number, 5, 4) for number, name in enumerate(recorders))
    assert rungs_of(heartbeat(0, groups=groups), FIRST) == asked


def test_what_is_asked_for_alone_is_asked() -> None:
    groups = (GroupCounter("gloo", 0, 5, 4),)
    assert rungs_of(heartbeat(0, groups=groups), ("active",)) == ("active",)
    assert rungs_of(None, FIRST) == FIRST


def test_ranks_with_cores_enough_dump_at_once() -> None:
    assert turns(8, 16) == (0,) * 8
    assert turns(0, 2) == ()


def test_ranks_that_share_two_cores_dump_one_after_the_other() -> None:
    moments = turns(8, 2)
    assert len(set(moments)) == 8
    apart = [later - sooner for sooner, later in pairwise(moments)]
    assert min(apart) >= 50_000_000  # a dump of a full ring takes 30 ms
    assert min(moments) >= 250_000_000  # every hook has looked for its request by then
    # Hooks that have answered a moment ago have, sooner.
    soon = turns(8, 2, look=2)
    assert min(soon) >= 2 * REQUEST_SECONDS * 1e9
    assert max(soon) - min(soon) == max(moments) - min(moments)
    assert turns(8, 2, look=3) == moments


def test_half_of_the_cores_dump_at_a_time_and_nobody_waits_for_long() -> None:
    assert len(set(turns(16, 8))) == 4
    assert max(turns(256, 2)) <= 2_400_000_000  # a hook puts its answer off by four seconds at most


def test_nobody_is_asked_before_the_moment_at_which_all_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / layout.REQUESTS).mkdir()
    read: list[Path] = []

    def no_answer(path: Path) -> Heartbeat:
        read.append(path)
        return heartbeat(0)

    monkeypatch.setattr(flight_recorder, "read_heartbeat", no_answer)
    with ProcessDirectory(os.getpid()) as directory:
        start_ticks = directory.stat().start_ticks
    beat = heartbeat(0, path=str(tmp_path / layout.record_name(0, f"{os.getpid()}-{layout.new_mark()}")))
    rank = msgspec.structs.replace(sample(0, beat), pid=os.getpid(), start_ticks=start_ticks)
    with kept(tmp_path, 0) as sending:
        # Its moment is long after the deadline: it is looked at once, for how it was refused or ended.
        at_ns = time.monotonic_ns() + 10**12
        request = RecorderRequest(rank, Folder(sending, 0, 1), seconds=0.2, at_ns=at_ns)
        request.ask(("entries",))
    assert request.missing == "asked, not answered within 0 s"
    assert len(read) == 1
