"""Which thread of a process matters: the main one, or the one that does the training or blocks it."""

from stallwatch.diagnosis.activity.looks import thread_key
from stallwatch.diagnosis.frames.code_origin import Origin, function, place
from stallwatch.diagnosis.frames.meaning import meaning
from stallwatch.diagnosis.frames.table import Role
from stallwatch.model.evidence import CodeFrame, ThreadStack

_WAITS_FOR_A_THREAD: frozenset[Role] = frozenset({"join", "lock", "queue"})
_TRAINS: frozenset[Role] = frozenset({"collective", "backward", "init", "dataloader"})
# A background thread (checkpoint saver) may use collectives of its own; these only a training loop does.
_TRAINS_SURELY: frozenset[Role] = frozenset({"backward", "dataloader"})


def main_thread(threads: tuple[ThreadStack, ...], pid: int | None) -> ThreadStack | None:
    """The thread whose id is the process', else by Python's name, else the one that runs a module."""
    by_id = [thread for thread in threads if pid is not None and thread.os_thread_id == pid]
    by_name = [thread for thread in threads if thread.name == "MainThread"]
    by_module = [thread for thread in threads if thread.frames and thread.frames[-1].name == "<module>"]
    return min(by_id or by_name or by_module, key=thread_key, default=None)


def training_thread(threads: tuple[ThreadStack, ...], pid: int | None, ident: int | None) -> ThreadStack | None:
    """The thread that steps, by its hook's word; else the main thread."""
    stepper = next((thread for thread in threads if ident is not None and thread.ident == ident), None)
    return stepper if stepper is not None and stepper.frames else main_thread(threads, pid)


def blocking_thread(
    threads: tuple[ThreadStack, ...],
    pid: int | None,
    issuers: frozenset[str] = frozenset(),
    training: int | None = None,
) -> ThreadStack | None:
    """Choose the thread to judge. `issuers` are idents of threads that issued collectives, by the recorder; `training`
    is that of the thread that steps, by the hook."""
    main = training_thread(threads, pid, training)
    others = [t for t in threads if t is not main and t.frames and not is_service(t)]
    # A service thread that has the GIL, our pulse too, has it for a moment: that is not who keeps it.
    owners = [t for t in threads if t.owns_gil and not t.active and t.frames and (t is main or not is_service(t))]
    if owners and not (main and main.active):
        return min(owners, key=thread_key)
    if main is None or not main.frames:
        return _busiest(others) or main
    inner = meaning(main.frames[0])
    if inner and inner.role == "backward":
        # The engine runs Python hooks and custom functions in threads of its own, without Python's thread start.
        engine = [t for t in others if not _python_thread(t)]
        return _busiest(engine) or main
    if ident_of(main) in issuers or _has(main.frames, _TRAINS) or _roles(main.frames) & {"teardown", "init"}:
        return main
    if others_issuing := [t for t in others if ident_of(t) in issuers]:
        return _busiest(others_issuing) or main
    waits = _call_roles(main.frames)
    if waits & {"join"} or _runs_event_loop(main.frames):
        candidates = [t for t in others if _has(t.frames, _TRAINS)] or [t for t in others if _has_job_code(t)]
        return candidates[0] if len(candidates) == 1 else _busiest(candidates, _TRAINS) or main
    if waits & _WAITS_FOR_A_THREAD or not main.active:
        return _busiest([t for t in others if _has(t.frames, _TRAINS_SURELY)]) or main
    return main


def ident_of(thread: ThreadStack) -> str:
    return str(thread.ident) if thread.ident is not None else ""


def is_service(thread: ThreadStack) -> bool:
    """Threads of libraries that wait for work or watch: feeders, monitors, loggers, our own pulse, memory pinning."""
    if thread.name.startswith("stallwatch") or not thread.frames:
        return True
    inner = meaning(thread.frames[0])
    if inner and inner.role == "idle":
        return True
    for frame in thread.frames:
        code = place(frame.filename)
        if code.module.startswith(("torch.utils.data._utils.pin_memory", "tqdm.", "stallwatch")):
            return True
        if code.origin is Origin.STDLIB and function(frame.name) in ("_feed", "_monitor", "serve_forever"):
            return True
    origins = {place(frame.filename).origin for frame in thread.frames}
    return origins <= {Origin.STDLIB, Origin.SYNTHETIC, Origin.LAUNCHER}


def _python_thread(thread: ThreadStack) -> bool:
    return any(place(f.filename).module == "threading" and "bootstrap" in f.name for f in thread.frames[-2:])


def _call_roles(frames: tuple[CodeFrame, ...]) -> set[Role]:
    """Meanings between the innermost frame and the innermost frame of the job."""
    roles: set[Role] = set()
    for frame in frames:
        if place(frame.filename).origin is Origin.JOB:
            break
        if found := meaning(frame):
            roles.add(found.role)
    return roles


def _roles(frames: tuple[CodeFrame, ...]) -> set[Role]:
    return {found.role for frame in frames if (found := meaning(frame))}


def _has(frames: tuple[CodeFrame, ...], roles: frozenset[Role]) -> bool:
    return bool(_roles(frames) & roles)


def _runs_event_loop(frames: tuple[CodeFrame, ...]) -> bool:
    return any(place(frame.filename).module.startswith("asyncio.") for frame in frames)


def _has_job_code(thread: ThreadStack) -> bool:
    return any(place(frame.filename).origin in (Origin.JOB, Origin.LIBRARY) for frame in thread.frames)


def _busiest(threads: list[ThreadStack], roles: frozenset[Role] = _TRAINS) -> ThreadStack | None:
    """Prefer a thread inside of training, then the deepest; ties by thread id."""
    return min(threads, key=lambda t: (not _has(t.frames, roles), -len(t.frames), thread_key(t)), default=None)
