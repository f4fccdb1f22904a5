"""In which thread the ranks of a job train, where no hook and no recorder tells it and their main threads only wait for
its results (Ray's workers, loops of one's own): known from all ranks together. An engine that serves has such a loop,
too, which waits for requests where others wait for it: of it, and of what looks like it, nothing is said."""

from collections import Counter
from collections.abc import Iterable, Sequence

from stallwatch.diagnosis.activity.kernel_waits import kernel_wait
from stallwatch.diagnosis.activity.threads import (
    RankLook,
    ended_meanwhile,
    is_python_thread,
    is_service,
    looks,
    main_thread,
    thread_look,
)
from stallwatch.diagnosis.frames.code_origin import Origin, code_origin, function
from stallwatch.diagnosis.frames.meaning import Role, meaning
from stallwatch.model.evidence import RankEvidence, ThreadStack

Entry = tuple[str, str]  # file and function in which a thread begins, below Python's own

# Where a main thread waits for its own threads.
_FOR_THREADS: frozenset[Role] = frozenset({"queue", "join", "lock"})
# Where a loop may wait for requests; one that polls sleeps.
_FOR_REQUESTS: frozenset[Role] = frozenset({"queue", "process_queue", "socket", "idle"})
_IDLES = ("sleep", "signal", "socket")
_SERVERS = ("uvicorn", "hypercorn", "gunicorn", "grpc", "zmq", "tornado", "aiohttp", "asyncio", "socketserver")
_TRAINS: frozenset[Role] = frozenset({"collective", "backward", "init", "teardown"})
_WAITS: frozenset[Role] = frozenset({"collective", "gpu_sync"})


def training_entry(ranks: Sequence[RankEvidence]) -> Entry | None:
    """Return where the threads of all ranks begin of which most stand in one collective, or for their GPU, from look to
    look; None where there is none or more than one such, where anything else tells who trains, or where it serves."""
    if any(rank.heartbeat or rank.recorders for rank in ranks):
        return None
    standing: Counter[Entry] = Counter()
    everywhere: set[Entry] | None = None
    seen_ranks = 0
    for rank in ranks:
        seen = [look for look in looks(rank) if look.threads]
        if not seen:
            continue
        seen_ranks += 1
        main = main_thread(seen[-1].threads, rank.pid)
        if main is None or _roles(main) & _TRAINS or not _roles(main) & _FOR_THREADS:
            return None  # a main thread that communicates is the one
        if any(_serves(thread) for thread in seen[-1].threads):
            return None
        here = Counter(entry for thread in _others(seen[-1], main) if (entry := entry_of(thread)))
        once = {entry for entry, count in here.items() if count == 1}
        everywhere = once if everywhere is None else everywhere & once
        if len(seen) > 1:
            standing.update(_that_stand(seen[-2], seen[-1], main))
    found = [entry for entry in everywhere or () if 2 * standing[entry] >= max(seen_ranks, 2)]
    if len(found) != 1 or any(_may_wait_for_requests(rank, found[0]) for rank in ranks):
        return None
    return found[0]


def thread_of(threads: Iterable[ThreadStack], entry: Entry | None) -> ThreadStack | None:
    """The thread that begins there; None where none does, or no entry is known."""
    if entry is None:
        return None
    return next((thread for thread in threads if is_python_thread(thread) and entry_of(thread) == entry), None)


def entry_of(thread: ThreadStack) -> Entry | None:
    """The outermost frame that is not Python's own; None: it has none."""
    for frame in reversed(thread.frames):
        if code_origin(frame.filename).origin not in (Origin.STDLIB, Origin.SYNTHETIC, Origin.LAUNCHER):
            return frame.filename, function(frame.name)
    return None


def _serves(thread: ThreadStack) -> bool:
    return any(code_origin(frame.filename).module.startswith(_SERVERS) for frame in thread.frames)


def _may_wait_for_requests(rank: RankEvidence, entry: Entry) -> bool:
    seen = [look for look in looks(rank) if look.threads]
    thread = thread_of(seen[-1].threads, entry) if seen else None
    if thread is None or _roles(thread) & _TRAINS:
        return False
    kernel = thread_look(seen[-1].process, thread, main=False)
    return bool(_roles(thread) & _FOR_REQUESTS) or kernel_wait(kernel.wchan, kernel.state) in _IDLES


def _others(look: RankLook, main: ThreadStack) -> list[ThreadStack]:
    return [t for t in look.threads if t is not main and is_python_thread(t) and not is_service(t)]


def _that_stand(before: RankLook, now: RankLook, main: ThreadStack) -> set[Entry]:
    was = {thread.os_thread_id: thread for thread in before.threads}
    entries = set()
    at_ns = [look.process.at_ns if look.process else None for look in (before, now)]
    seconds = (at_ns[1] - at_ns[0]) / 1e9 if at_ns[0] is not None and at_ns[1] is not None else 0.0
    for thread in _others(now, main):
        old = was.get(thread.os_thread_id)
        if old is None or old.frames != thread.frames or not _roles(thread) & _WAITS:
            continue
        first, last = (thread_look(look.process, one, main=False) for look, one in ((before, old), (now, thread)))
        # A keep-alive, or a saver that gathers, comes out of its collectives.
        if not ended_meanwhile(first, last, seconds) and (entry := entry_of(thread)):
            entries.add(entry)
    return entries


def _roles(thread: ThreadStack) -> set[Role]:
    return {found.role for frame in thread.frames if (found := meaning(frame))}
