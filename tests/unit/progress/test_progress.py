"""Two observations of a rank: it moves, it stands, or nothing tells."""

from typing import Any

import pytest

from stallwatch.progress.observation import Observation, SeenChild, Stack
from stallwatch.progress.progress import Progress, compare

_LINE = Stack(7, (("train.py", "main", 10),), (("train.py", 10),), (("train.py", "main", 0),), is_in_job=True)


def between(first: dict[str, Any], last: dict[str, Any], operations: bool | None = None, **both: Any) -> Progress:
    """What moved in two seconds."""
    fixed = {"stack": _LINE, "where": "socket", **both}
    one, other = (Observation(**{**fixed, **look, "at_ns": second * 10**9}) for look, second in ((first, 1), (last, 3)))
    return compare(one, other, operations)


def test_the_same_at_both_looks_stands() -> None:
    assert between({}, {}).answer == "stands"


def test_steps_and_own_operations_move() -> None:
    assert between({"step": 4}, {"step": 5}).answer == "moves"
    assert between({}, {}, operations=True).answer == "moves"


def test_a_flowing_download_moves_though_its_stack_is_the_same() -> None:
    assert between({"wakes": 100}, {"wakes": 180}, receives=True).answer == "moves"
    assert between({"wakes": 100}, {"wakes": 101}, receives=True).answer == "stands", "a time-out, or nothing"
    assert between({"wakes": 100}, {"wakes": 180}, receives=False).answer == "stands", "an event loop polls"
    assert between({}, {"wakes": 180}, receives=True).answer == "stands"
    assert between({"wakes": 100, "own_wakes": 2}, {"wakes": 102}, receives=True).answer == "stands", "our own pauses"


def test_a_busy_loop_is_told_from_nothing() -> None:
    assert between({"cpu_ticks": 0}, {"cpu_ticks": 200}, where="busy_loop").answer == "unknown"
    other_line = _LINE._replace(lines=(("train.py", 11),))
    assert between({}, {"stack": other_line}, where="busy_loop").answer == "unknown", "lines of one loop"
    assert between({"where": "user_code"}, {"stack": other_line, "where": "busy_loop"}).answer == "moves"


def test_work_of_the_judged_thread_moves_outside_of_waits_that_spin() -> None:
    assert between({"cpu_ticks": 0}, {"cpu_ticks": 20}, where="user_code").answer == "moves"
    assert between({"cpu_ticks": 0}, {"cpu_ticks": 200}, where="collective", in_collective=True).answer == "stands"


def test_children_count_where_they_are_waited_for() -> None:
    before, after = {"children": (SeenChild(9, 0),)}, {"children": (SeenChild(9, 100),)}
    assert between(before, after, waits_for_children=True).answer == "moves"
    assert between(before, after).answer == "stands"


def test_a_loaders_worker_that_computes_where_it_computed_before_tells_nothing() -> None:
    """For long, or for ever; a worker at other lines of the job's own code makes a batch."""
    busy = {"children": (SeenChild(9, 0, _LINE),)}, {"children": (SeenChild(9, 100, _LINE),)}
    told = between(*busy, where="dataloader")
    assert told.answer == "unknown"
    assert told.because[0].fact == "its child process 9 was at the same lines at both looks, on the CPU"
    assert between(*busy, where="lock").answer == "stands", "nobody waits for it"
    other_line = _LINE._replace(lines=(("train.py", 11),))
    elsewhere = {"children": (SeenChild(9, 100, other_line),)}
    assert between(busy[0], elsewhere, where="dataloader", waits_for_children=True).answer == "moves"


def test_bytes_of_files_move_outside_of_waits_that_have_none() -> None:
    mebibyte = 1 << 20
    for name, done in (("read_bytes", "read"), ("write_bytes", "wrote")):
        before, after = {name: 0}, {name: 3 * mebibyte}
        told = between(before, after, where="filesystem")
        assert told.answer == "moves"
        assert told.because[0].fact == f"its process {done} 3 MiB between the two looks"
        assert between(before, {name: mebibyte - 1}, where="filesystem").answer == "stands", "a log's lines"
        assert between(before, {name: mebibyte}, where="filesystem").answer == "moves"
        assert between({}, after, where="filesystem").answer == "stands", "what was read before is not known"
        assert between(before, after, where="collective").answer == "stands", "another thread's"


def test_what_the_thread_does_that_it_waits_for_is_its_own_progress() -> None:
    elsewhere = _LINE._replace(polling_way=(("train.py", "read", 0),))
    in_numpy = _LINE._replace(is_in_job=False)
    stands = {"awaited": (SeenChild(8, 10, _LINE),)}
    assert between(stands, {"awaited": (SeenChild(8, 10, elsewhere),)}, where="lock").answer == "moves"
    assert (
        between({"awaited": (SeenChild(8, 10, in_numpy),)}, {"awaited": (SeenChild(8, 90, in_numpy),)}).answer
        == "moves"
    )
    assert between(stands, {"awaited": (SeenChild(8, 90, _LINE),)}, where="lock").answer == "stands", (
        "for long, or for ever"
    )
    assert between(stands, {"awaited": (SeenChild(9, 10, elsewhere),)}, where="lock").answer == "stands", (
        "another thread"
    )
    idle = SeenChild(7, 3, _LINE)
    one_works = between({"awaited": (idle, SeenChild(8, 10, _LINE))}, {"awaited": (idle, SeenChild(8, 10, elsewhere))})
    assert one_works.answer == "moves", "one of several"


def test_a_sleep_in_a_loop_that_calls_other_ranks_goes_round_when_it_ends_again_and_again() -> None:
    loop: dict[str, Any] = {"where": "user_code", "round_call": "all_reduce"}
    assert between({"wakes": 10}, {"wakes": 14}, **loop).answer == "moves"
    assert between({"wakes": 10}, {"wakes": 400}, **loop).answer == "moves", "however short"
    assert between({"wakes": 10}, {"wakes": 13}, **loop).answer == "stands", "somebody else's pauses"
    assert between({"wakes": 10, "own_wakes": 1}, {"wakes": 14}, **loop).answer == "stands", "our own pauses"
    assert between({"wakes": 10}, {"wakes": 14}, where="user_code").answer == "stands", "it calls nobody"
    assert between({"wakes": 10}, {"wakes": 14, "round_call": "barrier"}, **loop).answer == "stands", "another loop"
    assert between({"wakes": 10, "step": 5}, {"wakes": 14, "step": 5}, **loop).answer == "stands", "known by its steps"
    assert between({}, {"wakes": 14}, **loop).answer == between({"wakes": 0}, {}, **loop).answer == "stands"
    for wakes, answer in ((39, "stands"), (40, "moves")):
        first, last = (
            Observation(stack=_LINE, at_ns=second * 10**9, wakes=count, **loop)
            for second, count in ((1, 10), (61, wakes))
        )
        assert compare(first, last, None).answer == answer, "one round in two seconds at the least"


def test_ranks_whose_waits_in_collectives_end_now_and_then_meet() -> None:
    both: dict[str, Any] = {"where": "collective", "in_collective": True}
    assert between({"wakes": 10}, {"wakes": 14}, **both).answer == "moves"
    assert between({"wakes": 10, "own_wakes": 2}, {"wakes": 12}, **both).answer == "stands", "our own pauses"
    looks: list[dict[str, Any]] = [{"wakes": 10, "at_ns": 2 * 10**9}, {"wakes": 18, "at_ns": 62 * 10**9}]
    first, last = (Observation(stack=_LINE, **both, **look) for look in looks)
    assert compare(first, last, None).answer == "stands", "another monitor pauses it now and then"
    assert between({"wakes": 10}, {"wakes": 210}, **both).answer == "stands", "a wait that polls"
    assert between({"wakes": 10}, {"wakes": 14}, where="lock").answer == "stands"
    spins = {"wakes": 14, "cpu_ticks": 190}
    assert between({"wakes": 10, "cpu_ticks": 0}, spins, **both).answer == "stands", "a wait that spins"


def test_a_look_without_a_stack_tells_nothing() -> None:
    assert between({}, {"stack": None}).answer == "unknown"


def test_a_process_whose_gil_is_kept_stands_without_a_stack() -> None:
    nothing: dict[str, Any] = {"stack": None, "where": "gil"}
    assert between({"state": "S", "cpu_ticks": 7}, {"state": "S", "cpu_ticks": 7}, **nothing).answer == "stands"
    assert between({"state": "R"}, {"state": "R"}, **nothing).answer == "unknown", "it computes, perhaps"


def test_the_answer_as_a_truth_value() -> None:
    assert [Progress(answer).moves for answer in ("moves", "stands", "unknown")] == [True, False, None]


@pytest.mark.parametrize("went_on", [("pulses", 40, 43), ("cpu_ticks", 100, 102)])
def test_what_is_stopped_at_both_looks_and_ran_between_them_moves(went_on: tuple[str, int, int]) -> None:
    name, before, after = went_on
    told = between({"state": "T", name: before}, {"state": "T", name: after}, stack=None)
    assert (told.answer, told.between_stops) == ("moves", True)
    still = between({"state": "T", name: before}, {"state": "T", name: before}, stack=None)
    assert (still.answer, still.between_stops) == ("stands", False)
    only_now = between({"state": "S", name: before}, {"state": "T", name: after}, stack=None)
    assert not only_now.between_stops


def test_what_is_stopped_at_both_looks_stands_whatever_else_is_not_known() -> None:
    for first, last in (("T", "T"), ("t", "T"), ("T", "t")):
        told = between({"state": first}, {"state": last}, stack=None)
        assert (told.answer, told.because[0].fact) == ("stands", "it stood stopped at both looks")
    assert between({"state": "S"}, {"state": "T"}, stack=None).answer == "unknown", "it was stopped just now"
    assert between({"state": "T"}, {"state": "S"}, stack=None).answer == "unknown"
    assert between({"state": "T", "step": 1}, {"state": "T", "step": 2}, stack=None).answer == "moves"


def test_who_sleeps_with_the_gil_stands_though_nothing_could_read_its_stack() -> None:
    told = between({"state": "S"}, {"state": "S"}, stack=None, where="gil")
    assert (told.answer, told.because[0].source) == ("stands", "heartbeat")
    assert between({"state": "R"}, {"state": "S"}, stack=None, where="gil").answer == "unknown"
    assert between({"state": "S"}, {"state": "S"}, stack=None, where="lock").answer == "unknown"


def test_another_thread_at_work_moves() -> None:
    told = between({}, {"stack": _LINE._replace(thread=8)})
    assert (told.answer, told.because[0].fact) == ("moves", "another thread was at work at the second look")


def test_lines_of_one_function_tell_nothing() -> None:
    told = between({}, {"stack": _LINE._replace(lines=(("train.py", 11),))})
    assert (told.answer, told.because[0].fact) == ("unknown", "it changed between neighbouring lines of one function")


@pytest.mark.parametrize(("ticks", "answer"), [((3, 4, 4), "moves"), ((3, 4), "stands"), ((1,) * 40, "stands")])
def test_children_that_work_together_count_together(ticks: tuple[int, ...], answer: str) -> None:
    """A launcher and the processes that it started since the first look, each with some per cent of a core."""
    first = {"children": (SeenChild(9, 0),)}
    last = {"children": tuple(SeenChild(9 + place, used) for place, used in enumerate(ticks))}
    assert between(first, last, waits_for_children=True).answer == answer
    assert between(first, last).answer == "stands", "not waited for"
    assert between({}, last, waits_for_children=True).answer == "stands", "they may be older"


@pytest.mark.parametrize(("reaped", "answer"), [(17, "stands"), (99, "stands"), (100, "moves"), (190, "moves")])
def test_programs_that_a_child_ran_to_their_end_are_work_from_half_a_core_on(reaped: int, answer: str) -> None:
    """`until python3 -c "…connect…"; do sleep 1; done` takes a tenth of a core for ever; a shell whose programs decode
    works most of the time."""
    first, last = ({"children": (SeenChild(9, 0, reaped_ticks=ticks),)} for ticks in (4_000, 4_000 + reaped))
    assert between(first, last, waits_for_children=True).answer == answer
    assert between(first, last).answer == "stands", "not waited for"
    by_xargs = {"children": (SeenChild(9, 0, reaped_ticks=3_000), SeenChild(10, 0, reaped_ticks=1_000))}
    assert between(by_xargs, last, waits_for_children=True).answer == answer, "what xargs has used passes to its shell"


@pytest.mark.parametrize(
    ("moved", "seconds", "answer"),
    [(2 << 20, 5.0, "moves"), (500_000, 1.0, "stands"), (2 << 20, 60.0, "stands"), (9 << 20, 60.0, "moves")],
)
def test_a_child_that_copies_moves_though_it_uses_no_cpu(moved: int, seconds: float, answer: str) -> None:
    """A download of curl's, at a megabyte a second, was to be told after two minutes as a program that may have ended.
    The hooks of a job within the job write a tenth of that."""
    copies = (SeenChild(9, 0, moved_bytes=40),), (SeenChild(9, 1, moved_bytes=40 + moved),)
    waits = Observation(stack=_LINE, waits_for_children=True)
    first, last = (
        waits._replace(at_ns=int((1 + at) * 1e9), children=seen)
        for at, seen in zip((0.0, seconds), copies, strict=True)
    )
    assert compare(first, last, None).answer == answer
    assert compare(first, last._replace(waits_for_children=False), None).answer == "stands"
    assert compare(first, last._replace(where="dataloader"), None).answer == "stands", "it may reject its samples"
    assert compare(first._replace(children=()), last, None).answer == "stands", "it may have been there before"


def test_what_programs_read_by_which_a_child_polls_is_no_copy() -> None:
    """`until python3 -c "…connect…"; do sleep 1; done` reads the modules of python3 each time."""
    first, last = ({"children": (SeenChild(9, 0, reaped_ticks=n, moved_bytes=n << 20),)} for n in (3, 12))
    assert between(first, last, waits_for_children=True).answer == "stands"


def test_the_stack_of_a_child_that_is_waited_for_tells_though_it_uses_no_cpu() -> None:
    elsewhere = _LINE._replace(polling_way=(("load.py", "read", 0),))
    before = {"children": (SeenChild(9, 0, None, (_LINE,)),)}
    told = between(before, {"children": (SeenChild(9, 0, None, (elsewhere,)),)}, waits_for_children=True)
    assert (told.answer, told.because[0].fact) == (
        "moves",
        "the stack of its child process 9 changed between the two looks",
    )
    same = between(before, {"children": (SeenChild(9, 0, None, (_LINE,)),)}, waits_for_children=True)
    assert same.answer == "stands"
    new_thread = elsewhere._replace(thread=70)
    assert (
        between(before, {"children": (SeenChild(9, 0, None, (new_thread,)),)}, waits_for_children=True).answer
        == "stands"
    )
    assert between({}, {"children": (SeenChild(9, 0, None, (elsewhere,)),)}, waits_for_children=True).answer == "stands"
    assert between(before, {"children": (SeenChild(9, 0, None, (elsewhere,)),)}).answer == "stands", "not waited for"


def test_a_wait_in_a_collective_that_ends_again_and_again_moves() -> None:
    inside: dict[str, Any] = {"where": "collective", "in_collective": True}
    assert between({"wakes": 10}, {"wakes": 14}, **inside).answer == "moves"
    assert between({"wakes": 10}, {"wakes": 13}, **inside).answer == "stands", "somebody else's pauses"
    assert between({"wakes": 10}, {"wakes": 30}, **inside).answer == "moves"
    assert between({"wakes": 10}, {"wakes": 31}, **inside).answer == "stands", "it polls"
    spins = {"wakes": 14, "cpu_ticks": 100}
    assert between({"wakes": 10, "cpu_ticks": 0}, spins, **inside).answer == "stands", "it spins"
    assert between({"wakes": 10, "cpu_ticks": 0}, {**spins, "cpu_ticks": 99}, **inside).answer == "moves"
    assert between({"wakes": 10, "own_wakes": 1}, {"wakes": 14}, **inside).answer == "stands"
    assert between({}, {"wakes": 14}, **inside).answer == between({"wakes": 10}, {}, **inside).answer == "stands"
    one = {**inside, "in_collective": None}
    assert between({"wakes": 10}, {"wakes": 14}, **one).answer == "stands", "nothing tells that it is in one"


def test_looks_without_times_are_some_seconds_apart() -> None:
    first = Observation(stack=_LINE, where="user_code", cpu_ticks=0)
    for ticks, answer in ((24, "stands"), (25, "moves")):
        assert compare(first, first._replace(cpu_ticks=ticks), None).answer == answer
    back = first._replace(at_ns=9 * 10**9), first._replace(at_ns=3 * 10**9, cpu_ticks=25)
    assert compare(*back, None).answer == "moves", "of clocks that go backwards nothing is believed"


def apart(seconds: float, first: dict[str, Any], last: dict[str, Any], **both: Any) -> str:
    fixed = {"stack": _LINE, "where": "socket", **both}
    one, other = Observation(**{**fixed, **first, "at_ns": 10**9}), Observation(**{**fixed, **last})
    return compare(one, other._replace(at_ns=10**9 + int(seconds * 10**9)), None).answer


def test_what_was_done_before_the_first_look_is_no_work_between_them() -> None:
    before: dict[str, Any] = {"cpu_ticks": 9_000, "read_bytes": 1 << 30, "write_bytes": 1 << 30, "step": 5}
    assert between(before, before, where="user_code").answer == "stands"


def test_work_is_five_per_cent_of_a_core_of_whoever_it_is() -> None:
    in_numpy = _LINE._replace(is_in_job=False)
    for ticks, answer in ((9, "stands"), (10, "moves")):
        assert between({"cpu_ticks": 0}, {"cpu_ticks": ticks}, where="user_code").answer == answer
        awaited = {"awaited": (SeenChild(8, 0, in_numpy),)}, {"awaited": (SeenChild(8, ticks, in_numpy),)}
        assert between(*awaited, where="lock").answer == answer
        children = {"children": (SeenChild(9, 0),)}, {"children": (SeenChild(9, ticks),)}
        assert between(*children, waits_for_children=True).answer == answer
        loads = {"children": (SeenChild(9, 0, _LINE),)}, {"children": (SeenChild(9, ticks, _LINE),)}
        assert between(*loads, where="dataloader").answer == ("unknown" if ticks == 10 else "stands")


def test_of_a_thread_or_child_without_a_stack_at_both_looks_its_lines_say_nothing() -> None:
    busy = SeenChild(8, 90, _LINE._replace(is_in_job=False))
    for first, last in ((SeenChild(8, 0), busy), (busy._replace(cpu_ticks=0), SeenChild(8, 90))):
        assert between({"awaited": (first,)}, {"awaited": (last,)}, where="lock").answer == "stands"
        batch = {"children": (first,)}, {"children": (last,)}
        assert between(*batch, where="dataloader", waits_for_children=True).answer == "moves"


def test_bytes_flow_when_some_come_each_other_second() -> None:
    for seconds, woke, answer in ((2, 2, "stands"), (2, 3, "moves"), (10, 4, "stands"), (10, 5, "moves")):
        assert apart(seconds, {"wakes": 0}, {"wakes": woke}, receives=True) == answer
    for receives in ({"receives": True}, {"receives": False}):
        other = {"receives": not receives["receives"]}
        assert apart(2, {"wakes": 0, **receives}, {"wakes": 50, **other}) == "stands"


def test_bytes_flow_to_the_threads_that_it_waits_for() -> None:
    """Answers of models come word by word to threads of a pool: neither their stacks nor a megabyte tell it."""
    for woke, own, answer in ((4, 0, "stands"), (5, 0, "moves"), (5, 1, "stands")):
        first, last = SeenChild(8, 0, _LINE, answers=10, own_wakes=own), SeenChild(8, 0, _LINE, answers=10 + woke)
        assert apart(10, {"awaited": (first,)}, {"awaited": (last,)}, where="lock") == answer
    for then, now in ((None, 50), (0, None)):
        seen = SeenChild(8, 0, _LINE, answers=then), SeenChild(8, 0, _LINE, answers=now)
        assert apart(10, {"awaited": seen[:1]}, {"awaited": seen[1:]}, where="lock") == "stands"


def test_waits_of_a_collective_end_now_and_then_and_not_all_the_time() -> None:
    inside: dict[str, Any] = {"where": "collective", "in_collective": True}
    for woke, answer in ((4, "stands"), (5, "moves"), (100, "moves"), (101, "stands")):
        assert apart(10, {"wakes": 0}, {"wakes": woke}, **inside) == answer
    assert apart(2, {"wakes": 0, "in_collective": False}, {"wakes": 4, "in_collective": True}) == "stands"
    assert apart(2, {"wakes": 0, "in_collective": True}, {"wakes": 4, "in_collective": False}) == "stands"


def test_two_looks_at_one_moment_are_no_division_by_nothing() -> None:
    assert apart(0, {"cpu_ticks": 0}, {"cpu_ticks": 24}, where="user_code") == "stands", "they are five seconds apart"
    assert apart(0, {"cpu_ticks": 0}, {"cpu_ticks": 25}, where="user_code") == "moves"
    assert apart(0.05, {"cpu_ticks": 0}, {"cpu_ticks": 1}, where="user_code") == "moves"
