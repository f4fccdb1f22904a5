"""Where a thread stands: the meaning of its frames, refined by the kernel's wait and the text of the line."""

from typing import NamedTuple

from stallwatch.diagnosis.activity.kernel_waits import KERNEL_WORDS, KernelWait
from stallwatch.diagnosis.activity.rank_activity import UNNAMED_TRANSFER
from stallwatch.diagnosis.activity.thread_place import SharedLock
from stallwatch.diagnosis.frames.code_origin import Hint, Origin, code_origin
from stallwatch.diagnosis.frames.meaning import (
    A_POOL,
    AT_A_NEIGHBOUR,
    ITS_LOADER,
    LOOKS_UP_A_NAME,
    READ_BY_NOBODY,
    FrameMeaning,
    Role,
    collective_name,
    meaning,
    trade_word,
)
from stallwatch.model.evidence import CodeFrame
from stallwatch.model.verdict import Where


class BlockingLocation(NamedTuple):
    """Where the innermost line of the job's own code stands, by one stack: the place, a predicate for a sentence, and
    what the call and its callers are for."""

    where: Where
    detail: str
    roles: frozenset[Role] = frozenset()  # of the call that the job's innermost line makes
    context: frozenset[Role] = frozenset()  # of everything it is called from
    in_collective: bool | None = False  # None: a wait in C at a line that does not tell
    collective: str | None = None
    waits_for_children: bool = False
    gpu_guessed: bool = False  # on the CPU, in C, and nothing says in what: it may compute as well as wait for its GPU
    shared_lock: SharedLock | None = None  # it waits for a lock that another process may hold


class Circumstances(NamedTuple):
    """What surrounds a stack."""

    wait: KernelWait | None
    on_cpu: bool | None
    gpu: bool  # the process uses one
    hint: Hint | None = None  # by the text of the innermost line
    phase: str = ""  # of the heartbeat
    holds_gil: bool = False
    pool: bool = False  # another thread of the process hands its work to child processes
    children: bool = False  # the process is seen to have some


STRONG_ROLES: frozenset[Role] = frozenset({
    "teardown", "init", "store", "file_lock", "collective", "gpu_sync", "compile", "checkpoint", "dataloader",
    "backward",
})  # fmt: skip
# Inside of these, what waits beneath is a means: init calls a barrier, a checkpoint may too, but then waits for others.
_SWALLOWS: frozenset[Role] = frozenset({"teardown", "init"})
_CONTEXT: frozenset[Role] = frozenset({"dataloader", "checkpoint", "compile"})
# Which lock another process may hold: by what the kernel says that a thread sleeps in, whatever surrounds it; else by
# what the call is that the job makes, or its text.
_SHARED_BY_KERNEL: dict[KernelWait | None, SharedLock] = {"file_lock": "file", "semaphore": "processes"}
_SHARED_BY_ROLE: dict[Role | None, SharedLock] = {"file_lock": "lock_file", "shared_lock": "processes"}
_SHARED_BY_HINT: dict[Hint, SharedLock] = {"database": "database"}
WAITS_FOR_A_KEY = "waits for the store"  # by the job's own line; a rendezvous waits in frames of torch's
WAITS_FOR_WORKERS = "opens a store and waits for those that are to connect to it"
_HINTED: dict[Hint, tuple[Where, str]] = {
    "sleep": ("user_code", "sleeps"),
    "store": ("store", WAITS_FOR_A_KEY),
    "own_store": ("store", WAITS_FOR_WORKERS),
    "lock": ("lock", "waits for a lock"),
    "queue": ("lock", "waits for a queue"),
    "join": ("lock", "waits for a thread or a background task"),
    "collective": ("collective", "waits for a collective"),
    "socket": ("socket", "waits for a socket"),
    "child": ("user_code", "waits for a child process"),
    "filesystem": ("filesystem", "reads or writes a file"),
    "gpu_sync": ("gpu_sync", "waits for its GPU"),
    "database": ("lock", "waits for a database"),
    "input": ("user_code", "waits for input from a person"),
    "signal": ("user_code", "waits for a signal"),
    "print": ("filesystem", "waits for whoever reads its output"),
}
# Which waits of the kernel fit a hint; a line may hold several calls.
_FITS: dict[Hint, frozenset[KernelWait | None]] = {
    "sleep": frozenset({"sleep", "futex", "poll", None}),
    "signal": frozenset({"signal", None}),
    # A store of files, and the server of one that waits for its workers, sleep between two looks (torch 2.13).
    "store": frozenset({"poll", "socket", "futex", "sleep", None}),
    "own_store": frozenset({"sleep", "poll", "socket", "futex", None}),
    "lock": frozenset({"futex", "semaphore", "file_lock", None}),
    "queue": frozenset({"futex", "semaphore", "pipe", "pipe_write", "poll", None}),
    "join": frozenset({"futex", "child", None}),
    "collective": frozenset({"futex", "sleep", "poll", "socket", None}),
    "socket": frozenset({"poll", "socket", None}),
    "child": frozenset({"child", "pipe", "pipe_write", "vfork", None}),
    "filesystem": frozenset({"file", "pipe", "pipe_write", "terminal", "file_lock", None}),
    "gpu_sync": frozenset({"futex", "poll", "gpu", "sleep", None}),
    # SQLite sleeps between its tries for a lock; clients of servers wait for a socket.
    "database": frozenset({"sleep", "file_lock", "file", "futex", "poll", "socket"}),
    # A terminal's driver sleeps as a socket does; where nobody read of what, it may be either.
    "input": frozenset({"pipe", "poll", "socket", "terminal"}),
    "print": frozenset({"pipe_write", "poll", "socket", "terminal"}),
}


def locate(frames: tuple[CodeFrame, ...], around: Circumstances) -> BlockingLocation:
    """Given a stack, innermost first, say where it stands. An empty stack stands by the kernel's word alone."""
    call, outer = _split(frames)
    inner = [found for frame in call if (found := meaning(frame))]
    roles = frozenset(found.role for found in inner)
    above = [found for frame in outer if (found := meaning(frame))]
    context = frozenset(found.role for found in above)
    if around.pool and roles & {"join", "queue"}:
        roles |= {"process_queue"}  # what it waits for comes from there
    standing = _strong(inner, call, around) or _refined(above, call, outer, around)
    children = bool(roles & {"child", "process_queue"}) or around.wait in ("child", "vfork") or around.hint == "child"
    # A loader that pins memory waits for its own thread, which waits for the workers; compilers work in children.
    children = children or (standing.where == "dataloader" and "queue" in roles)
    children = children or (standing.where == "compile" and not around.on_cpu)
    shared = _SHARED_BY_KERNEL.get(around.wait, standing.shared_lock)
    return standing._replace(roles=roles, context=context, waits_for_children=children, shared_lock=shared)


def _split(frames: tuple[CodeFrame, ...]) -> tuple[tuple[CodeFrame, ...], tuple[CodeFrame, ...]]:
    """The call that the innermost code of the job makes, and that code with all its callers."""
    for index, frame in enumerate(frames):
        origin = code_origin(frame.filename).origin
        if origin in (Origin.JOB, Origin.LIBRARY) and meaning(frame) is None:
            return frames[:index], frames[index:]
    return frames, ()


def _strong(inner: list[FrameMeaning], call: tuple[CodeFrame, ...], around: Circumstances) -> BlockingLocation | None:
    swallowing = next((found for found in reversed(inner) if found.role in _SWALLOWS), None)
    if any(found.detail == READ_BY_NOBODY for found in inner):  # within what waits for all at the end of a process
        return BlockingLocation("teardown", READ_BY_NOBODY)
    nearest = swallowing or next((found for found in inner if found.role in STRONG_ROLES), None)
    if nearest is None or (nearest.role == "dataloader" and around.children and _maps_by_a_pool(inner)):
        return None
    if nearest.role == "collective":
        name = collective_name(call)
        detail = f"waits in {name}" if name and "{" not in name else nearest.detail
        name = name or (UNNAMED_TRANSFER if detail == AT_A_NEIGHBOUR else None)
        return BlockingLocation("collective", detail, in_collective=True, collective=name)
    if nearest.role == "backward":
        if around.on_cpu:
            where: Where = "gpu_sync" if _busy(around).where == "gpu_sync" else "user_code"
            return BlockingLocation(where, "runs its backward pass")
        # Under NCCL the engine's own threads launch; a wait for them says nothing about a collective.
        return BlockingLocation("collective", nearest.detail, in_collective=None if around.gpu else True)
    shared = _SHARED_BY_ROLE.get(nearest.role)
    return BlockingLocation(nearest.where, _joined(nearest, _weak(call)), shared_lock=shared)


def _maps_by_a_pool(inner: list[FrameMeaning]) -> bool:
    """Whether a library of data maps something over all of it by a pool, and waits for no batch. Each process of the
    pool calls one function of the job again and again, and is at the same lines at every look. A pool of threads, with
    which a data set makes a batch for its loader, is of the same module."""
    details = {found.detail for found in inner}
    return A_POOL in details and ITS_LOADER not in details


def _refined(
    above: list[FrameMeaning],
    call: tuple[CodeFrame, ...],
    outer: tuple[CodeFrame, ...],
    around: Circumstances,
) -> BlockingLocation:
    """A plain way to wait: what surrounds it says what the wait is for."""
    weak = _weak(call)
    shared = _SHARED_BY_ROLE.get(weak.role if weak else None)
    own = BlockingLocation(weak.where, weak.detail, shared_lock=shared) if weak else _native(call, around)
    surrounding = next((found for found in above if found.role in _CONTEXT), None)
    if surrounding:
        return BlockingLocation(
            surrounding.where, _joined(surrounding, weak) if weak else _within(surrounding, own, around)
        )
    if any(found.role == "teardown" for found in above) and own.where != "collective":
        return BlockingLocation("teardown", f"is ending: {own.detail}")
    purpose = _purpose(weak, own, outer, around)
    if purpose and own.in_collective is False:
        return BlockingLocation(purpose, _purpose_detail(purpose, own.detail))
    return own


def _weak(call: tuple[CodeFrame, ...]) -> FrameMeaning | None:
    """The outermost of the plain waits speaks best: Event.wait rather than the Condition.wait inside it. But what reads
    files may do so over the network, and what talks to a server first looks up its name, for which no time-out of the
    client counts."""
    plain = [(frame, found) for frame in reversed(call) if (found := meaning(frame)) and found.role not in STRONG_ROLES]
    if not plain:
        return None
    named = next((inner for _, inner in plain if inner.detail == LOOKS_UP_A_NAME), None)
    if named is not None:
        return named
    frame, found = plain[0]
    if found.role == "filesystem":
        return next((inner for _, inner in plain if inner.role == "socket"), found)
    if found.role == "lock" and any(inner.role == "shared_lock" for _, inner in plain):
        found = FrameMeaning("shared_lock", found.detail)  # multiprocessing's barrier is one of threading
    if found.role == "shared_lock" and (met := _PROCESS_WORDS.get(_class_of(frame))):
        return FrameMeaning("lock", met)
    return found._replace(detail=_LOCK_WORDS.get(_class_of(frame), found.detail)) if found.role == "lock" else found


# Of multiprocessing: what nobody holds.
_PROCESS_WORDS = {
    "Event": "waits for an event that another process must set",
    "Condition": "waits for a condition that another process must signal",
    "Barrier": "waits at a barrier for other processes",
}
ENDED_BY_PROCESSES = frozenset(_PROCESS_WORDS.values())
AT_A_BARRIER_OF_PROCESSES = _PROCESS_WORDS["Barrier"]  # no thread of its own process comes there for it
_LOCK_WORDS = {
    "Event": "waits for an event that another thread must set",
    "Condition": "waits for a condition that another thread must signal",
    "Barrier": "waits at a barrier for other threads",
    "Semaphore": "waits for a semaphore",
    "BoundedSemaphore": "waits for a semaphore",
}


def _class_of(frame: CodeFrame) -> str:
    return frame.name.rpartition(".")[0].rpartition(".")[2]


def _native(call: tuple[CodeFrame, ...], around: Circumstances) -> BlockingLocation:
    """The stack ends in C: the line's text, else the kernel's wait, else whether it runs."""
    hinted = around.hint if not call else None
    if hinted and _agrees(hinted, around):
        where, detail = _HINTED[hinted]
        kernel = KERNEL_WORDS.get(around.wait) if around.wait not in (None, "futex") else None
        if kernel and kernel[0] == where:
            detail = kernel[1]  # "a lock on a file" says more than "a lock"
        if hinted == "database" and around.wait in ("poll", "socket"):
            where = "socket"
        shared = _SHARED_BY_HINT.get(hinted) if where == "lock" else None
        return BlockingLocation(where, detail, in_collective=hinted == "collective", shared_lock=shared)
    if around.on_cpu:
        return _busy(around._replace(gpu=around.gpu and hinted not in _OF_HOST))
    if around.wait == "futex":
        if call and code_origin(call[0].filename).module.startswith("torch."):
            return BlockingLocation("collective", "waits inside torch", in_collective=None)
        return BlockingLocation("lock", "waits for a lock or a result", in_collective=None)
    if around.wait and around.wait in KERNEL_WORDS:
        where, detail = KERNEL_WORDS[around.wait]
        return BlockingLocation(where, detail)
    # Asleep in C, and nobody says in what: a wait of gloo's looks just so.
    return BlockingLocation("user_code", "is in the job's own code", in_collective=False if around.wait else None)


def locate_without_stack(around: Circumstances) -> BlockingLocation:
    """What the kernel and the phase tell when no stack was read: a futex may be anything."""
    phase = around.phase.lower()
    if around.wait in (None, "futex", "poll", "stopped"):
        where: Where = "unknown"
        if "checkpoint" in phase or "ckpt" in phase:
            where = "checkpoint"
        return BlockingLocation(where, f"is in its phase {around.phase!r}" if around.phase else "", in_collective=None)
    where, detail = KERNEL_WORDS[around.wait]
    standing = BlockingLocation(
        where,
        detail,
        waits_for_children=around.wait in ("child", "vfork"),
        shared_lock=_SHARED_BY_KERNEL.get(around.wait),
    )
    if where == "filesystem" and ("checkpoint" in phase or "ckpt" in phase):
        return standing._replace(where="checkpoint", detail=_purpose_detail("checkpoint", detail))
    return standing


# Who is awake there is so between two waits of the host's. Not who prints or writes, which may be what a GPU computes.
_OF_HOST: frozenset[Hint | None] = frozenset({"sleep", "signal", "child"})


def _agrees(hinted: Hint, around: Circumstances) -> bool:
    """Whether the thread's state fits what the line's text says."""
    if hinted == "gpu_sync":
        return around.gpu and around.wait in _FITS[hinted]
    return around.wait in _FITS[hinted] and not around.on_cpu


def _busy(around: Circumstances) -> BlockingLocation:
    # Waiting for CUDA spins without the GIL by default (cudaDeviceScheduleAuto on a host with enough cores).
    if around.gpu and not around.holds_gil:
        return BlockingLocation("gpu_sync", "computes in native code or waits for its GPU", gpu_guessed=True)
    return BlockingLocation("busy_loop", "computes on the CPU")


def _purpose(
    weak: FrameMeaning | None, own: BlockingLocation, outer: tuple[CodeFrame, ...], around: Circumstances
) -> Where | None:
    """Words of the trade in the job's function names, and the phase it told: only for waits that they can explain."""
    role = weak.role if weak else None
    slow = own.where in ("filesystem", "socket") or role == "child"
    handed = role in ("queue", "process_queue") or around.hint == "queue"
    words = [word for frame in outer if (word := trade_word(frame))]
    if slow and ("checkpoint" in words or "checkpoint" in around.phase.lower() or "ckpt" in around.phase.lower()):
        return "checkpoint"
    if (slow or handed) and "dataloader" in words:
        return "dataloader"
    return None


def _purpose_detail(purpose: Where, own: str) -> str:
    return f"{own} while it {'saves or loads a checkpoint' if purpose == 'checkpoint' else 'loads data'}"


def _joined(outer: FrameMeaning, weak: FrameMeaning | None) -> str:
    if weak is None or weak.detail == outer.detail:
        return outer.detail
    if outer.role == "dataloader" and weak.role == "process_queue":
        return "waits for the worker processes of its data loader"
    if outer.role == "teardown" and weak.role == "join":
        return outer.detail  # for which of its threads, these tell themselves
    return f"{outer.detail}, which {weak.detail}"


def _within(outer: FrameMeaning, own: BlockingLocation, around: Circumstances) -> str:
    return outer.detail if around.on_cpu or not own.detail else f"{outer.detail}, whose code {own.detail}"
