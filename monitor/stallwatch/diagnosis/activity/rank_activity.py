"""The value that says what one rank does, and what its recorder, its own hook and the source around its lines add to
it."""

import msgspec

from stallwatch.diagnosis.frames.code_origin import Origin, code_origin
from stallwatch.diagnosis.logs.consequence import as_raised, is_consequence
from stallwatch.diagnosis.logs.reading import shares_its_log
from stallwatch.model.evidence import CodeFrame, RankEvidence, SourceBlock, SourceLine
from stallwatch.model.hook_report import Handled, HookReport, NamedCall
from stallwatch.model.summary import RankSummary
from stallwatch.model.verdict import EndsByItself, Fact, Frame, Where


class Activity(msgspec.Struct, frozen=True):
    """What a rank does at the last look, judged on the thread that blocks. None means that nothing tells."""

    rank: int
    host: str | None = None
    pid: int | None = None
    where: Where = "unknown"
    frame: Frame | None = None  # the line of the job's code to show a person
    detail: str = ""  # what it does, a predicate: "waits for a lock"; "" when unknown
    thread: str = ""  # name of the thread that was judged, "" when there is no stack
    os_thread_id: int | None = None
    stack: tuple[CodeFrame, ...] = ()  # of that thread at the last look that has one, innermost first
    # Blocked in a torch.distributed call, a Work.wait or the autograd engine. None: waits in C at a line that does not
    # tell a lock from a Work.wait; `where` is then "lock" though it may be "collective".
    in_collective: bool | None = False
    collective: str | None = None  # its public name, where the stack tells it: "all_reduce"
    gpu_sync: bool = False  # waits for its GPU: under NCCL this is how a waiting rank looks
    gpu_guessed: bool = False  # or computes in native code: nothing says which
    in_store_or_init: bool = False  # rendezvous, store, new_group, creation of a communicator
    in_teardown: bool = False  # destroy_process_group, atexit, threads joined at the end
    exception: str | None = None  # "RuntimeError: …", from its hook or its log
    exception_frame: Frame | None = None  # line of the job's code that raised it
    exception_is_consequence: bool = False  # it says only that a peer went away: never the first cause
    exception_swallowed: bool = False  # the rank lives on outside teardown though its log shows the exception
    handled: Handled | None = None  # the exception on whose account it is where it is, by its hook
    logged_beside: str | None = None  # the traceback that ends a log which it shares: some rank's
    named_call: NamedCall | None = None  # the call of torch.distributed that it stands in, with the rank that it names
    # (file, function, block) around the lines of its stack, outermost first; None: its source was not read.
    blocks: tuple[tuple[str, str, SourceBlock], ...] | None = None
    ends_by_itself: EndsByItself | None = None  # what it does is of this kind
    awaited_frame: Frame | None = None  # of the thread of its own process that it waits for
    awaited_detail: str = ""
    awaited_stack: tuple[CodeFrame, ...] = ()  # innermost first
    beside_frame: Frame | None = None  # of its only other thread, where it waits for what a thread gives back or sets
    beside_detail: str = ""
    polls: str = ""  # the loop in which it sleeps and looks again: "while not path.exists():"
    moving: bool | None = None  # over two looks; None: one look, or they do not tell (a busy loop)
    io_known: bool = False  # what it read and wrote between the looks is known
    cpu_share: float | None = None  # cores used by the judged thread between the looks
    waits_for_children: bool = False
    child_pids: tuple[int, ...] = ()
    child_pid: int | None = None  # the child that is not idle, where its stack was read
    child_frame: Frame | None = None  # and its line of the job's code
    child_detail: str = ""
    stopped_child: int | None = None  # that somebody stopped, and for which it may wait
    uses_gpu: bool = False
    stopped: bool = False  # state T or t
    tracer_pid: int | None = None  # a debugger is attached
    uninterruptible: bool = False  # state D of the thread that blocks
    gone: bool = False  # no process any more, or a zombie
    exit_code: int | None = None
    exit_signal: int | None = None
    out_of_memory: bool | None = None  # ended by the kernel because memory ran out; None: not known
    joined: bool | None = None  # it has a process group; False: asked, and it has none, or none any more
    phase: str = ""  # as the job told it
    why: tuple[Fact, ...] = ()

    @property
    def path(self) -> tuple[tuple[str, str], ...]:
        """The functions of the job's own code, (file, function), outermost first, through which it came to where it
        stands: by the thread that it waits for where that is known."""
        frames = self.awaited_stack or self.stack
        own = [frame for frame in frames if code_origin(frame.filename).origin is Origin.JOB]
        return tuple((frame.filename, frame.name) for frame in reversed(own))

    @property
    def known(self) -> bool:
        """False: nothing is known of what the rank does; it must not be accused by what it does."""
        return self.where != "unknown" or self.stopped or self.gone or self.frame is not None


# A Work.wait that the recorder explains: gloo records every collective and no transfer, so a wait for communication
# with nothing unfinished in the recorder is a wait for a send or a receive.


UNNAMED_TRANSFER = "p2p"


def with_transfer(activity: Activity, summary: RankSummary) -> Activity:
    """Given what a rank does and what its recorders say, name the wait where only both together tell."""
    waits = bool(activity.in_collective) and not activity.collective and not activity.in_store_or_init
    if not waits or summary.backends != ("gloo",) or not summary.streams or summary.pending:
        return activity
    if activity.detail and activity.detail != "waits for a collective":
        return activity  # a pipeline stage, the backward pass: the stack has said more already
    return msgspec.structs.replace(activity, collective=UNNAMED_TRANSFER, detail="waits for a send or receive")


# What its own hook and the source around its lines add to what a rank does.


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


def _with_handled(activity: Activity, scene: HookReport) -> Activity:
    handled = scene.handled
    if handled is None:
        return activity
    frame = next((f for f in handled.frames if code_origin(f.filename).origin is Origin.JOB), None)
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
    return code_origin(file).module.startswith(("torch.distributed", "torch.autograd"))


def _call_of(scene: HookReport, ident: str) -> NamedCall | None:
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
