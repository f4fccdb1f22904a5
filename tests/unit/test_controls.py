"""What a run of the controls counts as shown: a quiet job is evidence where somebody could have been told of it; and
what their programs are to be: tensors where NCCL finds them, expectations of each back end, twins that differ."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bench.lanes import Line, summary
from tests.controls.catalogue import GLOO_ALONE, HANGS, ON_GPUS, PROGRAMS, hangs, program_of, situations
from tests.controls.outcome import Control, line, total
from tests.controls.twins import has_twin

EVERY_PROGRAM = (*PROGRAMS, *HANGS, ON_GPUS)
FACTORIES = ("empty", "full", "ones", "rand", "randn", "tensor", "zeros")  # of torch
ON_GLOO_ALONE = frozenset(name for some in GLOO_ALONE.values() for name in some)


def control(name: str = "storage_stall", **fields: Any) -> Control:
    """One that ended well, without a hook, and was watched for long enough."""
    usual: dict[str, Any] = {
        "exit_code": 0, "stepped": True, "seconds": 150.0, "hooked": False, "worked_at": 1.0, "watched_seconds": 130.0
    }  # fmt: skip
    return Control(name, 0, f"{name}-0", **{**usual, **fields})


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"stepped": False, "worked_at": None}, "never seen"),
        ({"worked_at": None}, "never seen to work"),
        ({"watched_seconds": 12.0}, "seen to work for its last 12 s alone"),
        ({"stepped": False, "hooked": True}, "never seen to step"),
    ],
)
def test_quiet_of_a_job_of_which_nothing_could_be_told_is_no_evidence(fields: dict[str, Any], why: str) -> None:
    idle = control(**fields)
    assert idle.proves_nothing == why
    assert not idle.right
    assert f"NO EVIDENCE: {why}" in line(idle)
    assert "quiet" not in line(idle)


def test_quiet_of_a_job_that_was_watched_is_evidence() -> None:
    assert control().right
    assert control(hooked=True, watched_seconds=5.0).right  # who has a hook is watched from its first step on
    assert "quiet" in line(control())


def test_what_was_told_is_no_evidence_of_calm_however_little_was_seen() -> None:
    told = control(worked_at=None, told=("critical: rank_exited [1]",))
    assert told.proves_nothing == ""
    assert not told.right
    assert "TOLD critical" in line(told)


def test_a_job_that_ended_badly_is_not_called_told() -> None:
    bad = control(exit_code=1)
    assert not bad.right
    assert "TOLD" not in line(bad)
    assert "exit 1" in line(bad)
    hung = control(exit_code=None, worked_at=None)
    assert hung.proves_nothing == ""
    assert "ENDED BADLY: exit None" in line(hung)


def test_a_total_counts_what_proves_nothing_apart_and_by_name() -> None:
    every = [
        control("a"),
        control("b", thought=("none: not_entered [1] filesystem (likely)",)),
        control("c", worked_at=None),
        control("d", told=("warning: undecided []",)),
        control("e", exit_code=1),
        control("f", was_cut=True, exit_code=None, worked_at=None),
    ]
    assert total(every) == (
        "right in 2 of 6 runs: 2 quiet, of which 1 were thought about; 1 told; 1 ended badly (e); 1 cut short; "
        "1 no evidence (c: never seen to work)"
    )


def test_twins_are_counted_by_whether_they_are_right() -> None:
    assert total([control(is_twin=True, told_at=5.0), control(is_twin=True)]) == "right in 1 of 2 runs"


def test_a_lane_s_table_calls_no_evidence_neither_right_nor_wrong() -> None:
    text = summary(["a", "b"], [Line("a", True, "a quiet"), Line("b", False, "b", "never seen to work")])
    assert "WRONG" not in text
    assert "no evidence: b (never seen to work)" in text
    assert "right in 1 of 2 runs" in text


@pytest.mark.parametrize("program", EVERY_PROGRAM, ids=lambda path: path.stem)
def test_tensors_of_collectives_and_modules_of_ddp_are_on_the_device(program: Path) -> None:
    elsewhere = [
        ast.unparse(call)
        for function in ast.parse(program.read_text()).body
        if isinstance(function, ast.FunctionDef) and function.name not in ON_GLOO_ALONE
        # A group that is gloo's with either back end has its tensors on the processor.
        if not any(word in ast.unparse(function) for word in ("backend='gloo'", "ProcessGroup"))
        for call in communicating(function)
        if any(makes_a_tensor(part) and "DEVICE" not in ast.unparse(call) for part in ast.walk(call))
    ]
    assert not elsewhere


def communicating(function: ast.FunctionDef) -> Iterator[ast.Call]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("dist.", "torch.nn.parallel.")):
            yield node


def makes_a_tensor(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    named = ast.unparse(node.func)
    return named in (f"torch.{one}" for one in FACTORIES) or named.startswith("torch.nn.Linear")


def test_what_gloo_alone_can_do_is_a_program_that_is_there() -> None:
    for name in ON_GLOO_ALONE:
        assert program_of(name, EVERY_PROGRAM)


def test_a_hang_is_expected_as_its_back_end_tells_of_it() -> None:
    assert hangs()["sizes_differ"].culprits == ()
    assert hangs(on_gpus=True)["sizes_differ"].culprits == (1,)


def test_a_call_returns_under_nccl_before_the_line_that_stands() -> None:
    name = "averages_one_step_early"
    assert hangs()[name].lines
    assert not hangs(on_gpus=True)[name].lines
    assert hangs(on_gpus=True)["end_of_training"].lines  # it stands at a lock, whatever the back end


@pytest.mark.parametrize(
    ("name", "is_there"),
    [
        ("checkpoint", True),
        ("gradient_accumulation", False),  # so many rounds, however long
        ("asks_a_person", False),  # the runner answers
        ("terminated", False),  # done from outside
        ("storage_stall", True),
        ("server_of_inference_is_no_member", True),
        ("staggered_arrival", True),  # before its rendezvous
        ("slow_download", True),  # by a function of its program
        ("one_imports_late", True),
    ],
)
def test_a_twin_is_a_situation_that_lasts_for_as_long_as_it_is_told(name: str, is_there: bool) -> None:
    assert has_twin(name) is is_there


def test_most_situations_have_a_twin() -> None:
    without = [name for name in situations(on_gpus=True) if not has_twin(name)]
    assert 0 < len(without) < len(situations()) / 5
