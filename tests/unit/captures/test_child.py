import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from stallwatch.captures import child, rank_look
from stallwatch.captures.channel import Before, BeforeByRank, LookBefore
from stallwatch.captures.child import LookCapture
from stallwatch.captures.held import Held
from stallwatch.captures.process import OwnBytes
from stallwatch.captures.rank_look import LookContext, RankCapture
from stallwatch.captures.spec import CaptureOrder, CaptureState
from stallwatch.config_sections import CaptureSection, DaemonSection
from stallwatch.model.evidence import ProcessLook
from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.snapshot import ProcessEnd, RankSample
from stallwatch.node.known_ranks import RankId
from stallwatch.node.procfs import ProcessDirectory
from tests.builders.node import process
from tests.unit.captures.kept import kept
from tests.unit.outputs.reports import sample

NO_SUCH_PID = 4_194_303  # just below PID_MAX_LIMIT


def _order(profile_seconds: int = 0, look: int = 1, call_sites: int = 0) -> CaptureOrder:
    return CaptureOrder(
        CaptureSection(),
        600.0,
        30.0,
        ranks=(),
        known=-1,
        held=-1,
        look=look,
        profile_seconds=profile_seconds,
        call_sites=call_sites,
    )


def looked_at(
    rank: RankSample, bundle: Path, known: Callable[[], dict[RankId, RankSample]] | None = None
) -> RankCapture:
    with kept(bundle, rank.rank) as sending, open(os.devnull, "wb") as nothing:
        look = RankCapture(rank, LookContext(_order(), sending, Held(nothing.fileno()), known=known))
        look.look_at_process()
        look.take_stacks()
    return look


def test_a_process_that_was_seen_and_is_not_there_has_ended(tmp_path: Path) -> None:
    seen = Known(process(0), 0)
    look = looked_at(msgspec.structs.replace(sample(0), pid=NO_SUCH_PID, process=seen), tmp_path)
    assert look.gone
    assert (look.is_complete(), look.missing()) == (True, [])


def test_how_a_process_ended_that_went_just_before_the_look_is_told_once_its_reader_has_seen_it(tmp_path: Path) -> None:
    """Else of those that die of a first death, as they are looked at, nobody knows how or when."""
    seen = msgspec.structs.replace(sample(0), pid=NO_SUCH_PID, process=Known(process(0), 0))
    ended = msgspec.structs.replace(seen, end=ProcessEnd(77, None, 9, "zombie"))
    key = (seen.pid, seen.start_ticks)
    answers = iter([{}, {key: seen}, {key: ended}])
    looked_at(seen, tmp_path, lambda: next(answers))
    found = msgspec.json.decode((tmp_path / "ranks/0/process.json").read_bytes(), type=ProcessLook)
    assert (found.exit_signal, found.ended_ns) == (9, 77)


def test_a_look_waits_for_a_tick_of_the_reader_that_tells_how_a_process_ended() -> None:
    assert 1.5 * DaemonSection().tick_seconds < rank_look._TOLD_SECONDS < child._PROCESS_SECONDS


def test_a_process_that_never_could_be_seen_is_not_called_gone(tmp_path: Path) -> None:
    hidden = Unavailable("/proc hides it", 0)
    look = looked_at(msgspec.structs.replace(sample(0), pid=NO_SUCH_PID, process=hidden), tmp_path)
    assert not look.gone
    assert not (tmp_path / "ranks" / "0" / "process.json").exists()
    assert not look.is_complete()
    assert "rank 0: no stack" in look.missing()
    attempts = (tmp_path / "ranks" / "0" / "attempts.json").read_text()
    assert "/proc hides it" in attempts


def test_a_look_over_some_seconds_ends_when_no_profile_is_under_way(tmp_path: Path) -> None:
    ended = msgspec.structs.replace(sample(0), pid=NO_SUCH_PID, process=Known(process(0), 0))
    states: list[CaptureState] = []
    with kept(tmp_path, 0, states=states) as sending, open(os.devnull, "wb") as nothing:
        LookCapture([ended], LookContext(_order(profile_seconds=600), sending, Held(nothing.fileno()))).take()
    assert states[-1].done


@pytest.mark.parametrize(("look", "seconds"), [(1, 4.0), (2, 4.0), (3, 10.0)])
def test_readers_of_logs_and_sources_get_longer_once_a_job_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: int, seconds: float
) -> None:
    given: list[float] = []

    def no_readers(_: object, most: float, __: object) -> list[object]:
        given.append(most)
        return []

    monkeypatch.setattr("stallwatch.captures.user_files.readers", no_readers)
    ended = msgspec.structs.replace(sample(0), pid=NO_SUCH_PID, process=Known(process(0), 0))
    with kept(tmp_path, 0, look=look) as sending, open(os.devnull, "wb") as nothing:
        LookCapture([ended], LookContext(_order(look=look), sending, Held(nothing.fileno()))).take()
    assert set(given) == {seconds}


@pytest.mark.parametrize(("look", "call_sites", "asked"), [(3, 0, False), (3, 1, True), (2, 1, False)])
def test_call_sites_are_asked_of_a_job_that_is_known_to_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: int, call_sites: int, asked: bool
) -> None:
    rungs: list[tuple[str, ...]] = []
    monkeypatch.setattr(RankCapture, "ask_recorder", lambda rank, wanted: rungs.append(wanted))
    ended = msgspec.structs.replace(sample(0), pid=NO_SUCH_PID, process=Known(process(0), 0))
    with kept(tmp_path, 0, look=look) as sending, open(os.devnull, "wb") as nothing:
        order = _order(look=look, call_sites=call_sites)
        whole = LookCapture([ended], LookContext(order, sending, Held(nothing.fileno())))
        whole.ranks[0].recorder.missing = ""
        whole.take()
    assert (("stacks",) in rungs) is asked


def test_what_was_ours_before_is_asked_for_once_and_after_the_process_was_looked_at(tmp_path: Path) -> None:
    """Who tells it starts with the look: on a busy machine that took a quarter of a second, of each verdict."""
    asked: list[bool] = []
    rank = msgspec.structs.replace(sample(0), pid=os.getpid(), start_ticks=started(), process=Known(process(0), 0))

    def told() -> BeforeByRank:
        asked.append((tmp_path / "ranks/0/process.json").exists())
        return BeforeByRank({0: Before(os.getpid(), OwnBytes(3, 4), None)})

    with kept(tmp_path, 0) as sending, open(os.devnull, "wb") as nothing:
        look = RankCapture(rank, LookContext(_order(), sending, Held(nothing.fileno()), LookBefore(told)))
        look.look_at_process()
        assert asked == []
        look.look_around()
        look.look_around()
    assert len(asked) == 1
    found = msgspec.json.decode((tmp_path / "ranks/0/process.json").read_bytes(), type=ProcessLook)
    assert (found.own_read_bytes, found.own_write_bytes) == (3, 4)


@pytest.mark.parametrize(("hooked", "told", "known"), [(True, None, False), (True, {}, True), (False, None, True)])
def test_bytes_of_which_nobody_tells_how_many_were_ours_are_not_known(
    tmp_path: Path, hooked: bool, told: dict[int, Before] | None, known: bool
) -> None:
    """The daemon's word came late at a load of 38: a rank that stood had "written 4 MiB", which were its hook's."""
    rank = msgspec.structs.replace(sample(0), pid=os.getpid(), start_ticks=started(), process=Known(process(0), 0))
    if not hooked:
        rank = msgspec.structs.replace(rank, heartbeat=Unavailable("no hook", 0))
    word = LookBefore(lambda: None if told is None else BeforeByRank(told))
    with kept(tmp_path, 0) as sending, open(os.devnull, "wb") as nothing:
        look = RankCapture(rank, LookContext(_order(), sending, Held(nothing.fileno()), word))
        look.look_at_process()
        look.look_around()
        look.count_answers()
    found = msgspec.json.decode((tmp_path / "ranks/0/process.json").read_bytes(), type=ProcessLook)
    assert (found.write_bytes is not None) is known
    assert (found.read_bytes is not None) is known


def started() -> int:
    with ProcessDirectory(os.getpid()) as directory:
        return directory.stat().start_ticks
