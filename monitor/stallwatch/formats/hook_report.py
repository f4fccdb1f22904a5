"""What the hook's scene.py answers: the exception in flight, and calls that name another rank."""

from typing import Any, Final

from stallwatch.formats.tolerant import boolean, decode_json, integer, items, mapping, text
from stallwatch.formats.unreadable import Unreadable
from stallwatch.model.hook_report import CodeFrame, GroupCall, Handled, HookReport, NamedCall

_MAXIMUM_CALLS: Final = 64
_MAXIMUM_FRAMES: Final = 128
_MAXIMUM_MEMBERS: Final = 4096  # as the hook tells at most


def parse(data: bytes, source: str, look: int = 1) -> HookReport:
    """Given the hook's answer, return it. Raise Unreadable."""
    said = decode_json(data)
    if type(said) is not dict:
        raise Unreadable("it is not what the hook answers")
    calls = (_call(mapping(call)) for call in items(said.get("calls"))[:_MAXIMUM_CALLS])
    inside = (_inside(mapping(call)) for call in items(said.get("inside"))[:_MAXIMUM_CALLS])
    return HookReport(
        source,
        look,
        _handled(mapping(said.get("handling"))),
        tuple(call for call in calls if call),
        tuple(call for call in inside if call),
    )


def _handled(said: dict[str, Any]) -> Handled | None:
    kind = text(said.get("type"))
    frames = (mapping(frame) for frame in items(said.get("frames"))[:_MAXIMUM_FRAMES])
    return Handled(kind, tuple(_frame(frame) for frame in frames)) if kind else None


def _frame(said: dict[str, Any]) -> CodeFrame:
    return CodeFrame(text(said.get("name")) or "", text(said.get("filename")) or "", integer(said.get("line")) or 0)


def _call(said: dict[str, Any]) -> NamedCall | None:
    function = text(said.get("function"))
    if not function:
        return None
    thread = integer(said.get("thread_id"))
    return NamedCall(
        function,
        boolean(said.get("is_transfer")) is True,
        integer(said.get("rank")),
        "" if thread is None else str(thread),
    )


def _inside(said: dict[str, Any]) -> GroupCall | None:
    members = [integer(rank) for rank in items(said.get("members"))[:_MAXIMUM_MEMBERS]]
    thread = integer(said.get("thread_id"))
    if not members or thread is None or any(rank is None or rank < 0 for rank in members):
        return None
    return GroupCall(
        tuple(sorted(rank for rank in members if rank is not None)), str(thread), text(said.get("name")) or None
    )
