"""What one rank does, a value for each question: where it stands, in which call, whether it moves, for which of its own
threads and children it waits, what it raised, how its process is and how it ended; and what its recorder, its own log
and hook, and the source around its lines add."""

import re
from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from stallwatch.diagnosis.activity.thread_place import Place
from stallwatch.diagnosis.frames.code_origin import Origin, code_origin, post_transfers
from stallwatch.diagnosis.logs.consequence import is_consequence, is_of_training, meaning
from stallwatch.diagnosis.logs.logged_failure import shown_message
from stallwatch.diagnosis.recorder.signature import names_transfer
from stallwatch.model.evidence import CodeFrame, RankEvidence, SourceBlock, SourceLine
from stallwatch.model.hook_report import Handled, HookReport, NamedCall
from stallwatch.model.log_event import LogEvent
from stallwatch.model.summary import RankSummary
from stallwatch.model.verdict import EndsByItself, Fact, Frame, Where


class CommunicationCall(msgspec.Struct, frozen=True):
    """What of torch.distributed the judged thread is in."""

    # Blocked in a torch.distributed call, a Work.wait or the autograd engine. None: waits in C at a line that does not
    # tell a lock from a Work.wait; its place is then "lock" though it may be "collective".
    in_collective: bool | None = False
    collective: str | None = None  # its public name, where the stack tells it: "all_reduce"
    named_call: NamedCall | None = None  # as its hook saw it, with the rank that it names
    members: tuple[int, ...] | None = None  # of the group that it was given, or makes, by its hook; None: not told
    group_name: str | None = None  # torch's own, of that group: of most the number of those made before; None: not told

    @property
    def is_transfer(self) -> bool:
        """In a send or receive, by its stack. gloo's host stands in the call itself: in one of these it is not in the
        collective that others wait in."""
        return names_transfer(self.collective or "")

    @property
    def is_collective(self) -> bool:
        """The training thread is in a collective, by its stack, as another thread may be."""
        return bool(self.in_collective) and not self.is_transfer

    @property
    def names_collective(self) -> bool:
        """Whether it is one by name: a `Work.wait`, which has none, may be of a transfer that no recorder shows."""
        return self.is_collective and self.collective is not None


class RankProgress(msgspec.Struct, frozen=True):
    """Whether it moves over two looks, and whether what it does ends by itself."""

    moving: bool | None = None  # None: one look, or they do not tell (a busy loop)
    cpu_share: float | None = None  # cores used by the judged thread between the looks
    io_known: bool = False  # what it read and wrote between the looks is known
    ends_by_itself: EndsByItself | None = None  # what it does is of this kind


class HelperThread(msgspec.Struct, frozen=True):
    """Another thread of its process, on which its wait may depend."""

    frame: Frame | None  # its line of the job's code
    detail: str = ""
    stack: tuple[CodeFrame, ...] = ()  # innermost first


class HelperChild(msgspec.Struct, frozen=True):
    """A child process that is at work, and whose stack was read."""

    pid: int
    frame: Frame | None  # its line of the job's code
    detail: str = ""
    where: Where = "unknown"
    in_collective: bool = False  # with processes of other ranks


class Helpers(msgspec.Struct, frozen=True):
    """For which of its own threads and children it waits, as far as that shows."""

    awaited: HelperThread | None = None  # the thread whose result or end it waits for
    beside: HelperThread | None = None  # its only other thread, where it waits for what a thread gives back or sets
    waits_for_children: bool = False
    child_pids: tuple[int, ...] = ()
    child: HelperChild | None = None
    stopped_child: int | None = None  # that somebody stopped, and for which it may wait


class RaisedException(msgspec.Struct, frozen=True):
    """An exception that left its code."""

    text: str  # "RuntimeError: …", from its hook or its log
    frame: Frame | None = None  # line of the job's code that raised it
    is_consequence: bool = False  # it says only that a peer went away: never the first cause
    swallowed: bool = False  # the rank lives on outside teardown though its log shows the exception


class Exceptions(msgspec.Struct, frozen=True):
    """What was raised in it, or beside it."""

    raised: RaisedException | None = None
    handled: Handled | None = None  # the exception on whose account it is where it is, by its hook
    logged_beside: str | None = None  # the traceback that ends a log which it shares: some rank's

    @property
    def text(self) -> str | None:
        """What it raised: "RuntimeError: …"; None: nothing is known to have been."""
        return self.raised.text if self.raised else None

    @property
    def tell_of_a_peer(self) -> bool:
        """What it raised says only that a peer went away."""
        return self.raised is not None and self.raised.is_consequence


class ProcessState(msgspec.Struct, frozen=True):
    """Its process, by the kernel's and its hook's word."""

    stopped: bool = False  # state T or t, or frozen
    frozen: bool = False  # with its control group
    replaced: bool = False  # by exec: it is another program, and will not go on with what it was
    tracer_pid: int | None = None  # a debugger is attached
    uninterruptible: bool = False  # state D of the thread that blocks
    uses_gpu: bool = False
    joined: bool | None = None  # it has a process group; False: asked, and it has none, or none any more
    phase: str = ""  # as the job told it


class RankEnd(msgspec.Struct, frozen=True):
    """Whether and how its process ended. A launcher may tell how before anybody saw that it is gone."""

    gone: bool = False  # no process any more, or a zombie
    exit_code: int | None = None
    exit_signal: int | None = None
    out_of_memory: bool | None = None  # ended by the kernel because memory ran out; None: not known


class RankActivity(msgspec.Struct, frozen=True):
    """What a rank does at the last look, judged on the thread that blocks. None means that nothing tells."""

    rank: int
    host: str | None = None
    pid: int | None = None
    place: Place = Place()
    call: CommunicationCall = CommunicationCall()
    progress: RankProgress = RankProgress()
    helpers: Helpers = Helpers()
    exceptions: Exceptions = Exceptions()
    process: ProcessState = ProcessState()
    end: RankEnd = RankEnd()
    why: tuple[Fact, ...] = ()

    @property
    def path(self) -> tuple[tuple[str, str], ...]:
        """The functions of the job's own code, (file, function), outermost first, through which it came to where it
        stands: by the thread that it waits for where that is known."""
        own = [frame for frame in self.deepest_stack if code_origin(frame.filename).origin is Origin.JOB]
        return tuple((frame.filename, frame.name) for frame in reversed(own))

    @property
    def deepest_stack(self) -> tuple[CodeFrame, ...]:
        """The stack of the thread that it waits for where that is known, else its own; innermost first."""
        return (self.helpers.awaited.stack if self.helpers.awaited else ()) or self.place.stack

    @property
    def known(self) -> bool:
        """False: nothing is known of what the rank does; it must not be accused by what it does."""
        place = self.place
        return place.where != "unknown" or self.process.stopped or self.end.gone or place.frame is not None


# A Work.wait that the recorder explains: gloo records every collective and no transfer, so a wait for communication
# with nothing unfinished in the recorder is a wait for a send or a receive.


UNNAMED_TRANSFER = "p2p"
_WAITS = "waits for a collective"


def with_transfer(activity: RankActivity, summary: RankSummary) -> RankActivity:
    """Given what a rank does and what its recorders say, name the wait where only both together tell."""
    place, call = activity.place, activity.call
    waits = bool(call.in_collective) and not call.collective and not place.in_store_or_init
    if not waits or summary.backends != ("gloo",) or not summary.streams or summary.pending or summary.cut_short:
        return activity
    if place.detail and place.detail != _WAITS:
        return activity  # a pipeline stage, the backward pass: the stack has said more already
    return _in_transfer(activity)


def _with_transfer_by_source(activity: RankActivity, sources: tuple[SourceLine, ...]) -> RankActivity:
    """Given what a rank does and the lines that were read, name the wait of a `request.wait()` where these tell that it
    is for a send or a receive."""
    place, call = activity.place, activity.call
    if not call.in_collective or call.collective or place.detail != _WAITS or not place.stack:
        return activity
    own = [line for line in sources if (line.file, line.line) == (place.stack[0].filename, place.stack[0].line)]
    texts = [text for line in own for text in (line.text, *line.given, *(b.text for b in (line.blocks or ())[-1:]))]
    return _in_transfer(activity) if post_transfers(texts) else activity


def _in_transfer(activity: RankActivity) -> RankActivity:
    return replace(
        activity,
        place=replace(activity.place, detail="waits for a send or receive"),
        call=replace(activity.call, collective=UNNAMED_TRANSFER),
    )


# What a rank's own log tells of it: the exception that it ended with, and how its launcher saw it end.


_MOST_OF_TEXT = 300
# Kinds that say nothing about who failed first.
_WEAK = ("interrupted", "cancelled", "nccl_error", "size_mismatch", "init_timeout", "store_unreachable")


def last_exception(events: Iterable[LogEvent], rank: int, *, shared: bool = False) -> RaisedException | None:
    """Given the events of a log, return its last exception. Those that another rank wrote are left out; where ranks
    share the file, so are those that name nobody."""
    own = [
        event
        for event in events
        if event.kind == "exception" and (event.rank == rank or (event.rank is None and not shared))
    ]
    own = [event for event in own if is_of_training(event)] or own
    return _as_raised(_of_chain(own)) if own else None


def exception_of_nobody(events: Iterable[LogEvent], kind: str) -> RaisedException | None:
    """Given what a log tells that ranks share, return the one exception of this kind of which it does not say whose it
    is: torch puts a rank before its traceback once that has a process group, and no sooner."""
    found = [event for event in events if event.kind == "exception" and event.rank is None and event.exception == kind]
    if len({shown_message(event) for event in found}) != 1:
        return None
    raised = _as_raised(found[-1])
    # Of who lost a peer there are several, and the one that was lost may have written what is no more in the log.
    return None if raised.is_consequence and len(found) > 1 else raised


def _of_chain(events: Sequence[LogEvent]) -> LogEvent:
    """The last exception; of those that were raised while others were handled, the first that is no consequence."""
    chain = [events[-1]]
    for event, after in zip(reversed(events[:-1]), reversed(events[1:]), strict=True):
        if not after.chained:
            break
        chain.append(event)
    if len(chain) > 1 and _follows(chain[-1]):
        return chain[-1]
    return next((event for event in chain if not _follows(event)), chain[0])


def _follows(event: LogEvent) -> bool:
    said = meaning(event)
    return bool(said.consequence) or said.kind in _WEAK


def _as_raised(event: LogEvent) -> RaisedException:
    """Given an event with an exception, return it as what its rank raised, its text cut to a line."""
    message = shown_message(event)
    text = f"{event.exception}: {message}" if message else event.exception or ""
    return RaisedException(text[:_MOST_OF_TEXT], _frame_of_job(event.frame), _follows(event))


def _frame_of_job(frame: CodeFrame | None) -> Frame | None:
    """A frame of a traceback, if it is the job's own code; else None."""
    if frame is None or code_origin(frame.filename).origin not in (Origin.JOB, Origin.LIBRARY):
        return None
    return Frame(frame.filename, frame.line, frame.name)


def logged_end(events: Iterable[LogEvent], rank: int) -> LogEvent | None:
    """The launcher's word on how this rank ended."""
    told = [event for event in events if event.kind == "launcher_failure" and event.rank in (rank, None)]
    return next((event for event in told if event.first), told[0] if told else None)


# What its own hook and the source around its lines add to what a rank does.


# Ways to leave a loop that are no failure: the data has ended, or the program asked to end.
_ORDERLY = frozenset({"StopIteration", "StopAsyncIteration", "GeneratorExit", "SystemExit", "EOFError"})
_SLEEPS = "sleeps"  # as activity.standing words it
# `while child.poll() is None:`, `while worker.is_alive():`, and results of a pool of processes.
_ASKS_A_CHILD = re.compile(r"\.(?:poll|is_alive|done|ready)\(\)|\.(?:returncode|exitcode)\b|\bwaitpid\(")
_LAST_LINES = 12  # of a log: what ranks that stand print no more


def with_scene(activity: RankActivity, rank: RankEvidence, ident: str) -> RankActivity:
    """Given what a rank does and the ident of the thread that was judged, add what is told beside its stack."""
    blocks = _blocks(activity.place.stack, rank.sources)
    activity = replace(
        activity,
        place=replace(activity.place, blocks=blocks, polls=_polls(activity.place.stack, activity.place.detail, blocks)),
        exceptions=replace(activity.exceptions, logged_beside=None if activity.end.gone else _logged_beside(rank)),
    )
    activity = _with_transfer_by_source(activity, rank.sources)
    scene = max(rank.scenes, key=lambda scene: (scene.look, scene.source), default=None)
    if scene is None or activity.end.gone:
        return activity
    if activity.call.in_collective or activity.place.where == "init":
        group = next((call for call in scene.inside if call.thread == ident), None)
        if group is not None:
            activity = replace(activity, call=replace(activity.call, members=group.members, group_name=group.name))
    if not activity.call.in_collective:
        return _with_handled(activity, scene)
    call = _call_of(scene, ident)
    if call is not None:
        activity = replace(activity, call=replace(activity.call, named_call=call), why=(*activity.why, _names(call)))
    return _with_handled(activity, scene)


def _with_handled(activity: RankActivity, scene: HookReport) -> RankActivity:
    handled = scene.handled
    if handled is None:
        return activity
    frame = next((f for f in handled.frames if code_origin(f.filename).origin is Origin.JOB), None)
    at = f", raised at {frame.filename}:{frame.line} in {frame.name}" if frame else ""
    raised = activity.exceptions.raised
    # What torch.distributed raised itself is a peer's fault as likely as its own; its text is not told.
    inner = handled.frames[0].filename if handled.frames else ""
    if not (raised or handled.kind in _ORDERLY or is_consequence(handled.kind) or _is_of_torch(inner)):
        line = Frame(frame.filename, frame.line, frame.name) if frame else None
        raised = RaisedException(handled.kind, line, swallowed=not activity.place.in_teardown)
    return replace(
        activity,
        exceptions=replace(activity.exceptions, raised=raised, handled=handled),
        why=(*activity.why, Fact(f"it handles {handled.kind}{at}", "its hook")),
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


def _polls(stack: tuple[CodeFrame, ...], detail: str, blocks: tuple[tuple[str, str, SourceBlock], ...] | None) -> str:
    """The header of the loop around a sleep: what it sleeps for stands there, not in the line of the sleep."""
    own = [block for file, name, block in blocks or () if stack and (file, name) == _function(stack[0])]
    loop = own[-1] if own and own[-1].kind in ("for", "while") else None
    return loop.text.strip() if loop is not None and detail == _SLEEPS else ""


def polls_a_child(stack: tuple[CodeFrame, ...], detail: str, sources: tuple[SourceLine, ...]) -> bool:
    """Given a stack, what it does in words and the lines that were read, say whether it asks again and again, with a
    sleep between, whether a process has ended."""
    return _ASKS_A_CHILD.search(_polls(stack, detail, _blocks(stack, sources))) is not None


def _function(frame: CodeFrame) -> tuple[str, str]:
    return frame.filename, frame.name


def _logged_beside(rank: RankEvidence) -> str | None:
    """The exception of a traceback at the very end of a log that ranks share, without a word of which rank's it is."""
    told = [event for event in rank.log_events if event.kind == "exception"]
    from stallwatch.diagnosis.logs.log_reading import shares_its_log  # which a comparison of recorders does not need

    if not shares_its_log(rank) or not told or told[-1].rank is not None:
        return None
    if not any((told[-1].exception or "") in line for line in rank.log[-_LAST_LINES:]):
        return None
    raised = _as_raised(told[-1])
    return None if raised.is_consequence else raised.text
