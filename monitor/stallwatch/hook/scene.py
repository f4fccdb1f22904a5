"""What no recorder and no stack shows of a rank that stands: the exception that its main thread handles, and with whom
its calls of torch.distributed speak. gloo records no send and no receive, and no recorder records a root.

Made on request only, by a thread of ours. Names, lines and numbers of ranks, no values of the job.
"""

import sys
import threading
from types import FrameType, TracebackType
from typing import Any, Optional

NAME = "scene"
_MOST_FRAMES = 64
_MOST_CALLS = 16
_MOST_MEMBERS = 4096  # ranks of a group: more would make the answer long, and are all of them as a rule
_C10D = "torch.distributed.distributed_c10d"
_TRANSFERS = frozenset({"send", "isend", "recv", "irecv", "send_object_list", "recv_object_list"})
_MAKES_GROUP = "_new_group_with_tag"  # what new_group and its siblings call, with `ranks`, in torch 2.1 to 2.13
_ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})


def scene_json() -> bytes:
    """Return as JSON what the main thread handles and which calls name other ranks; None of the former is told where
    this Python (before 3.10) cannot say."""
    import json

    return json.dumps(
        {"can_tell_handling": _can_tell(), "handling": _handling(), "calls": _calls(), "inside": _inside()}
    ).encode("utf-8")


def _can_tell() -> bool:
    return hasattr(sys, "_current_exceptions")  # Python 3.10


def _handling() -> "Optional[dict[str, object]]":
    """The exception on whose account the main thread is where it is: in an `except`, a `finally`, an `__exit__`."""
    if not _can_tell():
        return None
    current: Any = sys._current_exceptions()  # type: ignore[attr-defined,unused-ignore]
    found = current.get(threading.main_thread().ident)
    if isinstance(found, tuple):  # until Python 3.11
        found = found[1]
    if not isinstance(found, BaseException):
        return None
    return {"type": type(found).__name__, "frames": _raised_at(found.__traceback__)}


def _raised_at(trace: "Optional[TracebackType]") -> "list[dict[str, object]]":
    """Innermost first, as in a stack."""
    frames: list[dict[str, object]] = []
    while trace is not None:
        code = trace.tb_frame.f_code
        name = str(getattr(code, "co_qualname", code.co_name))  # Python 3.11
        frames.append({"name": name, "filename": code.co_filename, "line": trace.tb_lineno})
        trace = trace.tb_next
    return frames[::-1][:_MOST_FRAMES]


def _calls() -> "list[dict[str, object]]":
    """Of each thread the innermost call that names another rank."""
    calls: list[dict[str, object]] = []
    for ident, frame in list(sys._current_frames().items()):
        call = _call_of(frame)
        if call is not None and len(calls) < _MOST_CALLS:
            calls.append({"thread_id": ident, **call})
    return calls


def _call_of(frame: "Optional[FrameType]") -> "Optional[dict[str, object]]":
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        function = frame.f_code.co_name
        if function in _TRANSFERS | _ROOTED and frame.f_globals.get("__name__") == _C10D:
            return {"function": function, "rank": _named_rank(frame), "is_transfer": function in _TRANSFERS}
        frame = frame.f_back
    return None


def _inside() -> "list[dict[str, object]]":
    """Of each thread the group that its innermost call of torch.distributed was given, or makes. A group's first call
    is recorded once its members are connected, and a dump lists groups that were used: nothing else tells who is
    waited for until then."""
    calls: list[dict[str, object]] = []
    for ident, frame in list(sys._current_frames().items()):
        group = _group_of(frame)
        if group is not None and len(calls) < _MOST_CALLS:
            calls.append({"thread_id": ident, **group})
    return calls


def _group_of(frame: "Optional[FrameType]") -> "Optional[dict[str, object]]":
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        if frame.f_globals.get("__name__") == _C10D:
            if frame.f_code.co_name == _MAKES_GROUP:
                return _made_of(frame)
            if "group" in frame.f_code.co_varnames:
                return _given_to(frame)
        frame = frame.f_back
    return None


def _made_of(frame: FrameType) -> "Optional[dict[str, object]]":
    """The members that a group which is being made was given, and its name: the number of groups made so far."""
    ranks, name = frame.f_locals.get("ranks"), frame.f_locals.get("group_name")
    if not isinstance(ranks, (list, tuple)) or len(ranks) > _MOST_MEMBERS:
        return None
    return {
        "members": sorted(rank for rank in ranks if isinstance(rank, int)),
        "name": str(name) if isinstance(name, str) else None,
    }


def _given_to(frame: FrameType) -> "Optional[dict[str, object]]":
    """The members of the group that a call was given, and torch's own name of it."""
    given = frame.f_globals
    try:
        group = frame.f_locals.get("group") or given["_get_default_group"]()
        ranks = sorted(int(rank) for rank in given["get_process_group_ranks"](group))
        name = getattr(group, "group_name", None)
    except Exception:  # functions of torch's: their absence, or a group that is gone, only costs the members
        return None
    return {"members": ranks, "name": name if isinstance(name, str) else None} if len(ranks) <= _MOST_MEMBERS else None


def _named_rank(frame: FrameType) -> "Optional[int]":
    """The global rank that the call was given; None: any, or not told."""
    given = frame.f_locals
    for name in ("src", "dst"):
        if isinstance(given.get(name), int):
            return int(given[name])
    place = next((given[name] for name in ("group_src", "group_dst") if isinstance(given.get(name), int)), None)
    if place is None:
        return None
    try:
        return int(frame.f_globals["get_process_group_ranks"](given.get("group"))[place])
    except Exception:  # a function of torch's: its absence, or a group that is gone, only costs the number
        return None
