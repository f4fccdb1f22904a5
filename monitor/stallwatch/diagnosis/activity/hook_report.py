"""What its own hook and the source around its lines add to what a rank does."""

import msgspec

from stallwatch.diagnosis.activity.rank_activity import Activity
from stallwatch.diagnosis.frames.code_origin import Origin, place
from stallwatch.diagnosis.logs.consequence import is_consequence
from stallwatch.diagnosis.logs.of_rank import as_raised
from stallwatch.diagnosis.logs.owners import shares_its_log
from stallwatch.model.evidence import CodeFrame, RankEvidence, SourceBlock, SourceLine
from stallwatch.model.scene import NamedCall, Scene
from stallwatch.model.verdict import Fact, Frame

# Ways to leave a loop that are no failure: the data has ended, or the program asked to end.
_ORDERLY = frozenset({"StopIteration", "StopAsyncIteration", "GeneratorExit", "SystemExit", "EOFError"})
_SLEEPS = "sleeps"  # as activity.standing words it
_LAST_LINES = 12  # of a log: what ranks that stand print no more


def with_scene(activity: Activity, rank: RankEvidence, ident: str) -> Activity:
    """Given what a rank does and the ident of the thread that was judged, add what is told beside its stack."""
    blocks = _blocks(activity.stack, rank.sources)
    activity = msgspec.structs.replace(
        activity,
        blocks=blocks,
        polls=_polls(activity, blocks or ()),
        logged_beside=None if activity.gone else _logged_beside(rank),
    )
    scene = max(rank.scenes, key=lambda scene: (scene.look, scene.source), default=None)
    if scene is None or activity.gone:
        return activity
    call = _call_of(scene, ident) if activity.in_collective else None
    if call is not None:
        activity = msgspec.structs.replace(activity, named_call=call, why=(*activity.why, _names(call)))
    return _with_handled(activity, scene)


def _with_handled(activity: Activity, scene: Scene) -> Activity:
    handled = scene.handled
    if handled is None:
        return activity
    frame = next((f for f in handled.frames if place(f.filename).origin is Origin.JOB), None)
    at = f", raised at {frame.filename}:{frame.line} in {frame.name}" if frame else ""
    activity = msgspec.structs.replace(
        activity, handled=handled, why=(*activity.why, Fact(f"it handles {handled.kind}{at}", "its hook"))
    )
    # What torch.distributed raised itself is a peer's fault as likely as its own; its text is not told.
    inner = handled.frames[0].filename if handled.frames else ""
    if activity.exception or handled.kind in _ORDERLY or is_consequence(handled.kind) or _is_of_torch(inner):
        return activity
    return msgspec.structs.replace(
        activity,
        exception=handled.kind,
        exception_frame=Frame(frame.filename, frame.line, frame.name) if frame else None,
        exception_swallowed=not activity.in_teardown,
    )


def _is_of_torch(file: str) -> bool:
    return place(file).module.startswith(("torch.distributed", "torch.autograd"))


def _call_of(scene: Scene, ident: str) -> NamedCall | None:
    """The call of the judged thread; where its stack carries no ident, the only one there is."""
    own = [call for call in scene.calls if call.thread == ident]
    if own or ident:
        return own[0] if own else None
    return scene.calls[0] if len(scene.calls) == 1 else None


def _names(call: NamedCall) -> Fact:
    if call.rank is None:
        return Fact(f"its {call.function} names no other rank", "its hook")
    what = "as its peer" if call.is_transfer else "as the root"
    return Fact(f"its {call.function} names rank {call.rank} {what}", "its hook")


def _blocks(
    stack: tuple[CodeFrame, ...], sources: tuple[SourceLine, ...]
) -> tuple[tuple[str, str, SourceBlock], ...] | None:
    around = {(line.file, line.line): line.blocks for line in sources if line.blocks is not None}
    # What is around the program is its launcher's.
    program = next((place for place, frame in enumerate(stack) if frame.name == "<module>"), len(stack) - 1)
    own = stack[: program + 1]
    known = [(frame, around[frame.filename, frame.line]) for frame in own if (frame.filename, frame.line) in around]
    if not known:
        return None
    return tuple((frame.filename, frame.name, block) for frame, blocks in reversed(known) for block in blocks or ())


def _polls(activity: Activity, blocks: tuple[tuple[str, str, SourceBlock], ...]) -> str:
    """The header of the loop around a sleep: what it sleeps for stands there, not in the line of the sleep."""
    own = [block for file, name, block in blocks if activity.stack and (file, name) == _function(activity.stack[0])]
    loop = own[-1] if own and own[-1].kind in ("for", "while") else None
    return loop.text.strip() if loop is not None and activity.detail == _SLEEPS else ""


def _function(frame: CodeFrame) -> tuple[str, str]:
    return frame.filename, frame.name


def _logged_beside(rank: RankEvidence) -> str | None:
    """The exception of a traceback at the very end of a log that ranks share, without a word of which rank's it is."""
    told = [event for event in rank.log_events if event.kind == "exception"]
    if not shares_its_log(rank) or not told or told[-1].rank is not None:
        return None
    if not any((told[-1].exception or "") in line for line in rank.log[-_LAST_LINES:]):
        return None
    raised = as_raised(told[-1])
    return None if raised.consequence else raised.text
