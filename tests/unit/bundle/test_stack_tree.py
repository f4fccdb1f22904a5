"""Merged stacks: a prefix tree by rank ranges with the outlier first."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwatch import outputs
from stallwatch.bundle import stack_tree
from stallwatch.bundle.stack_tree import MAXIMUM_DEPTH, ROOT, merge, render
from stallwatch.model.evidence import CodeFrame
from stallwatch.model.verdict import StackNode

Stack = tuple[CodeFrame, ...]


def stack(*calls: str) -> Stack:
    """Innermost first, from "function:line" given outermost first."""
    frames = (call.split(":") for call in calls)
    return tuple(reversed([CodeFrame(name, "/job/train.py", int(line)) for name, line in frames]))


WAITING = stack("<module>:9", "main:5", "step:3")
OUTLIER = stack("<module>:9", "main:5", "load:7")


def test_no_stack_gives_no_tree() -> None:
    assert merge({}) is None
    assert merge({0: ()}) is None


def test_the_branch_of_the_fewest_ranks_comes_first() -> None:
    tree = merge({0: WAITING, 1: WAITING, 2: OUTLIER, 3: WAITING})
    assert tree is not None
    assert (tree.function, tree.ranks, tree.count) == (ROOT, "0-3", 4)
    main = tree.children[0].children[0]
    assert [(child.function, child.ranks, child.count) for child in main.children] == [
        ("load", "2", 1),
        ("step", "0-1,3", 3),
    ]


def test_another_line_of_the_same_function_is_another_branch() -> None:
    tree = merge({0: stack("main:5"), 1: stack("main:6")})
    assert tree is not None
    assert [(child.line, child.ranks) for child in tree.children] == [(5, "0"), (6, "1")]


def test_a_rank_whose_stack_ends_early_stays_counted_at_its_last_frame() -> None:
    tree = merge({0: stack("main:5", "step:3"), 1: stack("main:5")})
    assert tree is not None
    main = tree.children[0]
    assert (main.ranks, [child.ranks for child in main.children]) == ("0-1", ["0"])
    assert render(tree)[-1].endswith("[rank 0]")


def test_text_branches_only_where_ranks_part_ways() -> None:
    tree = merge({0: WAITING, 1: WAITING, 2: OUTLIER})
    assert tree is not None
    assert render(tree) == [
        "all ranks with a stack  [3 ranks: 0-2]",
        "<module> /job/train.py:9",
        "main /job/train.py:5",
        "├─ load /job/train.py:7  [rank 2]",
        "└─ step /job/train.py:3  [2 ranks: 0-1]",
    ]


def test_lines_below_a_branch_stay_in_it() -> None:
    tree = merge({0: stack("main:5", "step:3", "wait:1"), 1: stack("main:5", "load:7", "read:2")})
    assert tree is not None
    assert render(tree)[2:] == [
        "├─ step /job/train.py:3  [rank 0]",
        "│  wait /job/train.py:1",
        "└─ load /job/train.py:7  [rank 1]",
        "   read /job/train.py:2",
    ]


SITE = "/env/lib/python3.11/site-packages/"
WRAPPERS = [
    ("_run_code", "<frozen runpy>"), ("_run_script", f"{SITE}stallwatch/run.py"),
    ("wrapper", f"{SITE}torch/distributed/c10d_logger.py"), ("decorate_context", f"{SITE}torch/utils/_contextlib.py"),
    ("_wrapped_call_impl", f"{SITE}torch/nn/modules/module.py"), ("run_module", "/usr/lib/python3.9/runpy.py"),
]  # fmt: skip


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_ways_into_the_script_and_wrappers_of_torch_are_left_out(wrapper: tuple[str, str]) -> None:
    wraps, main = CodeFrame(*wrapper, 1), CodeFrame("main", "/job/train.py", 5)
    called = CodeFrame("all_reduce", f"{SITE}torch/distributed/distributed_c10d.py", 3252)
    tree = merge({0: (called, wraps, main), 1: (CodeFrame("load", "/job/train.py", 7), wraps, main)})
    assert tree is not None
    assert render(tree)[1:] == [
        "main /job/train.py:5",
        "├─ all_reduce torch/distributed/distributed_c10d.py:3252  [rank 0]",
        "└─ load /job/train.py:7  [rank 1]",
    ]


def test_a_wrapper_in_which_a_stack_ends_stays() -> None:
    wraps = CodeFrame("_call_impl", f"{SITE}torch/nn/modules/module.py", 9)
    tree = merge({0: (wraps,), 1: (CodeFrame("forward", "/job/model.py", 3), wraps)})
    assert tree is not None
    assert render(tree)[1].startswith("_call_impl torch/nn/modules/module.py:9")


def test_text_says_how_much_was_left_out() -> None:
    tree = merge({rank: stack(f"main:{rank}") for rank in range(10)})
    assert tree is not None
    lines = render(tree, maximum_lines=4)
    assert len(lines) == 4
    assert lines[-1] == "… 8 more lines"


def test_the_middle_of_an_endless_recursion_is_left_out() -> None:
    tree = merge({0: tuple(CodeFrame("again", "/job/train.py", line) for line in range(5000))})
    assert tree is not None
    lines = render(tree, maximum_lines=10**6)
    assert len(lines) == 1 + MAXIMUM_DEPTH + 1
    assert lines[1].endswith(":4999")
    assert lines[-1].endswith(":0")
    assert f"… {5000 - MAXIMUM_DEPTH} frames …" in lines


frames = st.builds(CodeFrame, st.sampled_from("abc"), st.just("/job/train.py"), st.integers(1, 2))
all_stacks = st.dictionaries(st.integers(0, 40), st.lists(frames, max_size=5).map(tuple), max_size=12)


def leaves(node: StackNode) -> int:
    return node.count - sum(child.count for child in node.children) + sum(leaves(child) for child in node.children)


@given(all_stacks, st.randoms())
def test_order_of_ranks_is_irrelevant_and_no_rank_is_lost(stacks: dict[int, Stack], random: object) -> None:
    shuffled = list(stacks.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    tree = merge(stacks)
    assert tree == merge(dict(shuffled))
    present = [rank for rank, frames_ in stacks.items() if frames_]
    assert (tree.count if tree else 0) == len(present)
    assert (leaves(tree) if tree else 0) == len(present)


def test_the_page_leaves_out_the_same_frames() -> None:
    script = (Path(outputs.__file__).parent / "page/stacks.js").read_text(encoding="utf-8")
    built = re.search(r"const WRAPPER = new RegExp\((.*?)\);", script, re.DOTALL)
    calls = re.search(r"const WRAPPING_CALL = /\^\(\?:(.*)\)\$/;", script)
    assert built is not None
    assert calls is not None
    pattern = "".join(json.loads(part) for part in re.findall(r'"(?:[^"\\]|\\.)*"', built[1]))
    assert (pattern, calls[1]) == (stack_tree._WRAPPERS.pattern, stack_tree._WRAPPING_CALLS.pattern)
