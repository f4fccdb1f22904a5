"""Stacks of all ranks merged into one prefix tree by rank ranges, as LLNL STAT does: the outlier is the story."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from stallwatch.formats.rank_ranges import rank_ranges
from stallwatch.model.evidence import CodeFrame
from stallwatch.model.verdict import StackNode

ROOT = "all ranks with a stack"
# JSON readers give up on nesting at about 1,000 levels; endless recursion in a job makes such stacks.
MAXIMUM_DEPTH = 200


class _Branch:
    """A node while the tree grows. A stack that no other shares is kept as a tail and grows no nodes."""

    __slots__ = ("children", "ranks", "tail")

    def __init__(self, tail: tuple[CodeFrame, ...]) -> None:
        self.ranks: list[int] = []
        self.tail = tail  # frames beneath this node, innermost first, of all its ranks
        self.children: dict[CodeFrame, _Branch] = {}


def merge(stacks: Mapping[int, Sequence[CodeFrame]]) -> StackNode | None:
    """Given one stack per rank, innermost frame first, return their prefix tree, or None when there is no stack.

    Outermost frames come first in the tree and the branch of the fewest ranks first among its siblings. A call from
    another line is another branch. The middle of a stack deeper than MAXIMUM_DEPTH is left out.
    """
    sharing: dict[tuple[CodeFrame, ...], list[int]] = {}  # most ranks stand in few stacks
    for rank in sorted(stacks):
        if frames := _shortened(tuple(stacks[rank])):
            sharing.setdefault(frames, []).append(rank)
    if not sharing:
        return None
    root = _Branch(())
    for frames, ranks in sharing.items():
        _grow(root, frames, ranks)
    return _freeze(root)


def _grow(root: _Branch, frames: tuple[CodeFrame, ...], ranks: list[int]) -> None:
    node, left = root, len(frames)
    node.ranks += ranks
    while left:
        if node.tail:
            _unfold(node, len(ranks))
        frame = frames[left - 1]
        found = node.children.get(frame)
        left -= 1
        if found is None:
            leaf = node.children[frame] = _Branch(frames[:left])
            leaf.ranks += ranks
            return
        node = found
        node.ranks += ranks
    if node.tail:
        _unfold(node, len(ranks))


def _unfold(node: _Branch, newcomers: int) -> None:
    """Another stack comes through: the tail becomes a child of those that were here before."""
    child = _Branch(node.tail[:-1])
    child.ranks = node.ranks[:-newcomers]
    node.children[node.tail[-1]] = child
    node.tail = ()


def _shortened(frames: tuple[CodeFrame, ...]) -> tuple[CodeFrame, ...]:
    if len(frames) <= MAXIMUM_DEPTH:
        return frames
    half = MAXIMUM_DEPTH // 2
    gap = CodeFrame(f"… {len(frames) - 2 * half} frames …", "", 0)
    return (*frames[:half], gap, *frames[-half:])


def _freeze(root: _Branch) -> StackNode:
    """Children before parents; a node with its parent's ranks shares the parent's text."""
    order: list[tuple[_Branch, str, CodeFrame | None]] = [(root, rank_ranges(root.ranks), None)]
    for node, text, _ in order:
        for frame, child in node.children.items():
            same = len(child.ranks) == len(node.ranks)
            order.append((child, text if same else rank_ranges(child.ranks), frame))
    frozen: dict[int, StackNode] = {}
    for node, text, own in reversed(order):
        count = len(node.ranks)
        keys = sorted(node.children, key=lambda f: (len(node.children[f].ranks), min(node.children[f].ranks), f.name))
        children = tuple(frozen.pop(id(node.children[key])) for key in keys)
        for frame in node.tail:
            children = (StackNode(frame.name, frame.filename, frame.line, text, count, children),)
        frozen[id(node)] = (
            StackNode(own.name, own.filename, own.line, text, count, children)
            if own
            else StackNode(ROOT, "", None, text, count, children)
        )
    return frozen[id(root)]


# Frames through which every program, or every call of torch, goes: Python's and our own way into the script, torch's
# wrappers around its functions. They part nobody from anybody and say nothing.
_WRAPPERS: Final = re.compile(
    r"<frozen (?:runpy|importlib\._bootstrap\w*)>|(?:^|/)runpy\.py|/stallwatch/(?:run\.py|hook/\w+\.py)"
    r"|/torch/(?:distributed/(?:c10d_logger|elastic/multiprocessing/errors/__init__)|utils/_contextlib"
    r"|_dynamo/(?:eval_frame|external_utils)|amp/autocast_mode)\.py"
)
_WRAPPING_CALLS: Final = re.compile(r"_(?:wrapped_)?call_impl|_call_with_frames_removed")
_INSTALLED: Final = re.compile(r".*/(?:site|dist)-packages/|.*/lib(?:64)?/python3\.\d+/")


def render(tree: StackNode, *, maximum_lines: int = 60) -> list[str]:
    """The tree as text: one line a call, branches where ranks part ways, the outlier first; ways into the script and
    torch's wrappers are left out.

    Return at most `maximum_lines` lines; the last one says how many were left out.
    """
    lines = list(_lines(tree))
    if len(lines) <= maximum_lines:
        return lines
    kept = lines[: max(0, maximum_lines - 1)]
    return [*kept, f"… {len(lines) - len(kept)} more lines"]


def _lines(tree: StackNode) -> Iterator[str]:
    pending = [(tree, "", "", True)]  # a node, what stands before its line and the lines after it, whether ranks part
    while pending:
        node, before, after, parted = pending.pop()
        place = f" {_INSTALLED.sub('', node.file)}:{node.line}" if node.file else ""
        who = f"  [{_ranks(node)}]" if parted else ""
        yield f"{before}{node.function}{place}{who}"
        children = _shown(node)
        # A rank whose stack ends here has no child; then its fellows part from it too.
        if len(children) == 1 and children[0].count == node.count:
            pending.append((children[0], after, after, False))
            continue
        last = len(children) - 1
        pending += [
            (child, after + ("└─ " if number == last else "├─ "), after + ("   " if number == last else "│  "), True)
            for number, child in reversed(list(enumerate(children)))
        ]


def _shown(node: StackNode) -> list[StackNode]:
    """The calls below a node, wrappers replaced by what they call. One in which a stack ends stays."""
    shown, pending = [], list(reversed(node.children))
    while pending:
        child = pending.pop()
        wraps = _WRAPPERS.search(child.file) or (child.file and _WRAPPING_CALLS.fullmatch(child.function))
        if wraps and child.children and sum(one.count for one in child.children) == child.count:
            pending += reversed(child.children)
        else:
            shown.append(child)
    return shown


def _ranks(node: StackNode) -> str:
    return f"rank {node.ranks}" if node.count == 1 else f"{node.count} ranks: {node.ranks}"
