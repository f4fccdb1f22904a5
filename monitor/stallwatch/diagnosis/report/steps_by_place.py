"""Steps for a rank that is stuck in its own code, by the kind of place where it stands."""

from collections.abc import Callable

from stallwatch.diagnosis.activity import RankActivity
from stallwatch.diagnosis.activity.kernel_waits import WAITS_FOR_MEMORY
from stallwatch.diagnosis.activity.thread_place import Place
from stallwatch.diagnosis.frames.meaning import AT_A_BUILD_LOCK, AT_A_QUEUE, LOOKS_UP_A_NAME
from stallwatch.diagnosis.report.step_context import StepContext, Stuck
from stallwatch.diagnosis.report.steps_at_a_store import store
from stallwatch.diagnosis.report.steps_by_wait import by_wait
from stallwatch.diagnosis.report.text import format_location
from stallwatch.diagnosis.step import NextStep, of_the_living, restart, starts_job
from stallwatch.model.verdict import Frame, Where


def _gone(at: Stuck) -> list[NextStep]:
    return [
        f"Ask why {at.name} stood at {at.line} until its launcher ended it: its stack is kept with the incident.",
        "If what it does there ends by itself, do it before the collective that the others wait in, or raise the "
        "timeout of init_process_group: they waited as long as that allows.",
        restart("Start the job from its last checkpoint."),
    ]


def _beside(activity: RankActivity | None) -> str:
    """The sentence says where that thread stands."""
    beside = activity.helpers.beside if activity else None
    named = beside is not None and beside.frame is not None
    return ". If its only other thread holds it, or is to set it, mend what that one waits for" if named else ""


def _replaced(at: Stuck) -> list[NextStep]:
    return [
        of_the_living(f"On {at.host} see what it runs and who started it: `ps -o args,ppid,lstart -p {at.pid}`."),
        f"Look for `os.exec*` in what {at.name} runs, an error path or a clean-up among it: start such a program as a "
        "child, or end the rank with an exit code.",
        starts_job("It will not train on: stop the job and start it from its last checkpoint."),
    ]


def _lock(at: Stuck) -> list[NextStep]:
    shared = at.activity.place.shared_lock if at.activity else None
    if shared == "lock_file":
        return _build_lock(at) if at.activity and at.activity.place.detail == AT_A_BUILD_LOCK else _lock_file(at)
    if at.activity and shared is not None:
        return _shared_lock(at, at.activity.place)
    waits = at.place.clause("; it waits at", with_pid=False)
    if at.activity and at.activity.place.detail == AT_A_QUEUE:
        return [
            of_the_living(
                f"{at.stacks}{f'{waits}:' if waits else ';'} look for the thread at the other end of the queue"
                f"{_beside(at.activity)}."
            ),
            "If no thread is at the other end of the queue, it has ended, most likely by an exception: its traceback "
            "is in the rank's log, below `Exception in thread`. Have it put its exception, or an end mark, into the "
            "queue in a `finally`.",
            "Give that wait a time-out (`queue.get(timeout=…)`), so that the rank fails instead of waiting for ever.",
            restart("Stop the job and start it from its last checkpoint if no thread is left at the other end."),
        ]
    return [
        of_the_living(
            f"{at.stacks}{f'{waits}:' if waits else ';'} look for the thread that should release or signal what "
            f"it waits for{_beside(at.activity)}."
        ),
        "If another thread of it waits for a collective or for this one, the two block each other: take the "
        "lock after the collective.",
        "If the lock was taken before a fork, start workers with spawn or forkserver, or before any thread.",
        restart("Stop the job and start it from its last checkpoint if no thread is left that could release it."),
    ]


def _storage(at: Stuck) -> list[NextStep]:
    return [
        of_the_living(
            f"On {at.host} see which file: `ls -l /proc/{at.pid}/fd` and `cat /proc/{at.pid}/wchan`"
            f"{at.place.clause('; it stands at')}."
        ),
        "Check the mount behind it: `timeout 5 stat -f <path>`, `df -h`, `dmesg -T | grep -i -E 'nfs|not "
        f"responding'` on {at.host}.",
        of_the_living("If it writes and grows (`ls -l` twice), wait: it is slow, not stuck."),
        "Write checkpoints to a local disk first and copy them in the background, so that storage never holds a step.",
    ]


def _gil(at: Stuck) -> list[NextStep]:
    return [
        of_the_living(
            f"On {at.host} see the call that keeps the GIL: `py-spy dump --native --pid {at.pid}`; it was entered at "
            f"{at.line}."
        ),
        "Let that extension release the GIL around its wait (Py_BEGIN_ALLOW_THREADS; ctypes.CDLL rather than PyDLL).",
        "Or run the call in a process of its own with a time-out.",
    ]


def _busy_loop(at: Stuck) -> list[NextStep]:
    return [
        of_the_living(
            f"On {at.host} look twice, some seconds apart: `py-spy dump --locals --pid {at.pid}`; it computes at "
            f"{at.line}."
        ),
        of_the_living(
            "If the locals change, it works on more data than the others: balance it, or do it before training."
        ),
        of_the_living("If they do not, its loop has no end: give it a bound and log when it is reached."),
    ]


def _name(at: Stuck) -> list[NextStep]:
    return [
        of_the_living(
            f"On {at.host} see whether its name servers answer: `cat /etc/resolv.conf`, `time getent hosts NAME` with "
            f"the name that is asked for{at.place.clause('; the call is at')}."
        ),
        "No time-out of a client counts there: shorten the resolver's (`RES_OPTIONS='timeout:2 attempts:2'`, or "
        "`options` in resolv.conf), keep names on the node (systemd-resolved, nscd), or write them into /etc/hosts.",
        "Do not call out between two collectives on one rank only.",
    ]


def _socket(at: Stuck) -> list[NextStep]:
    if at.activity and at.activity.place.detail == LOOKS_UP_A_NAME:
        return _name(at)
    thread = at.activity.helpers.awaited if at.activity else None
    if thread:
        awaited = at.who.place(thread.frame)
        return [
            of_the_living(
                f"On {at.host} see what keeps the thread of its executor{awaited.clause(' at')}: "
                f"`py-spy dump --pid {at.pid}`; its event loop most likely waits for it."
            ),
            "Put a time-out around what the loop awaits (`asyncio.wait_for`), and one into the call that the "
            "thread makes: a thread cannot be cancelled.",
            of_the_living(
                f"If it is none of its executor's, see whom the loop talks to: `ss -tuxanp | grep pid={at.pid},`."
            ),
        ]
    return [
        of_the_living(
            f"On {at.host} see whom it talks to: `ss -tuxanp | grep pid={at.pid},`"
            f"{at.place.clause('; the call is at')}."
        ),
        "Give that call a time-out, and do not make it between two collectives on one rank only.",
        "If it is an experiment tracker, start it in offline mode or before init_process_group.",
    ]


def _compiler(at: Stuck) -> list[NextStep]:
    return [
        of_the_living(
            f"On {at.host} see whether compilers work: `ps -o pid,pcpu,etime,args --ppid {at.pid}`"
            f"{at.place.clause('; the rank is at')}."
        ),
        of_the_living(
            "If they do, wait, and give the first step more time: compile before the first collective, or "
            "raise the time-out of the process group."
        ),
        "Keep TORCHINDUCTOR_CACHE_DIR, TRITON_CACHE_DIR and TORCH_EXTENSIONS_DIR on a local disk of each node.",
    ]


def _gpu(at: Stuck) -> list[NextStep]:
    return [
        of_the_living(
            f"On {at.host} see the CUDA call that it is in: `py-spy dump --native --pid {at.pid}`"
            f"{at.place.clause('; it waits at')}."
        ),
        of_the_living("See what the GPU does: `nvidia-smi` (100 % busy at low power is waiting, not work)."),
        "Look for an operation on another process group before that line, which its GPU may still wait for.",
    ]


def _teardown(at: Stuck) -> list[NextStep]:
    return [
        of_the_living(f"{at.stacks}; {at.name} is ending at {at.line} while others still train."),
        "Read its log for an exception before that, and keep collectives out of exit handlers and `finally`.",
        restart("Stop the job and start it from its last checkpoint."),
    ]


def _other_collective(at: Stuck) -> list[NextStep]:
    return [
        of_the_living(f"{at.stacks}; it is in another collective, at {at.line}."),
        "Compare its path to the line where the others wait: a branch that depends on the rank or on its data.",
    ]


def _own_code(at: Stuck) -> list[NextStep]:
    return [
        of_the_living(f"{at.stacks}{at.place.clause('; it stands at')}."),
        f"Ask why {at.name} takes this path or takes longer there than the others: a branch on the rank, a sleep, "
        "more data, a retry.",
        "Do such work on every rank, or before the collective that the others wait in.",
    ]


def _shared_lock(at: Stuck, place: Place) -> list[NextStep]:
    """Another process holds it; which one, the kernel tells of locks on files."""
    if (holder := place.lock_holder_pid) is not None:
        first = (
            f"On {at.host} see what holds it: `ps -o pid,ppid,stat,etime,args -p {holder}`, `py-spy dump -p {holder}`."
        )
        inherited = (
            "If that process has ended, a child that it had forked with the file open holds the lock on: start helpers "
            "before it is taken, or close the file in them."
        )
        after = [inherited] if place.lock_is_inherited else []
    else:
        first = (
            f"On {at.host} find which process holds it: `lslocks` for a lock on a file, `ipcs -s -p` for a semaphore "
            f"of System V; `ls -l /proc/{at.pid}/fd` lists the files of the rank."
        )
        after = [
            "One that has died keeps a semaphore and a lock file for ever, and no lock of flock or fcntl: use those, "
            "or SEM_UNDO."
        ]
    return [
        of_the_living(first),
        *after,
        "A rank that holds it must let go before it waits in a collective.",
        restart("Stop the job and start it from its last checkpoint if what holds it does not let go."),
    ]


def _lock_file(at: Stuck) -> list[NextStep]:
    """By a library that tries again and again: the rank has the file open now and then only."""
    return [
        of_the_living(
            f"On {at.host} find the lock's file, whose path is given at {at.line}, and who holds it: `lslocks -o "
            f"PID,COMMAND,MODE,PATH` shows locks of the kernel, `ps -fp PID` what holds one; the rank is {at.pid}."
        ),
        of_the_living(
            "If nobody holds it there and the file is there, its being there is the lock (SoftFileLock), or its holder "
            "is on another host: where the process that made it is gone, remove that one file, and the rank goes on."
        ),
        "Give the lock a time-out (`FileLock(path, timeout=600)`), so that the rank raises instead of waiting.",
    ]


def _build_lock(at: Stuck) -> list[NextStep]:
    return [
        of_the_living(
            f"On {at.host} find the lock file: `ls -l /proc/{at.pid}/fd` and `find "
            f"${{TORCH_EXTENSIONS_DIR:-~/.cache/torch_extensions}} "
            f"-name lock -ls`{at.place.clause('; the rank waits at')}."
        ),
        of_the_living(
            "If no compiler or other owner lives (`ps -ef | grep -E 'ninja|nvcc|cc1plus'`), remove that one file: it "
            "is stale and the rank goes on."
        ),
        "Give each node its own build directory on a local disk.",
    ]


def _loader(at: Stuck) -> list[NextStep]:
    activity = at.activity
    if activity and activity.place.stack and not activity.helpers.waits_for_children:
        return [
            of_the_living(
                f"On {at.host} see all its threads: `py-spy dump --pid {at.pid}`; its data set's own code stands at "
                f"{at.line}."
            ),
            "Give what that code waits for (a queue, a download, a file) a time-out that raises, so that the rank "
            "fails instead of waiting for ever.",
            of_the_living(
                f"Check storage and network of {at.host}: `dmesg -T | tail -50`, `ss -tuxanp | grep pid={at.pid},`."
            ),
        ]
    child = activity.helpers.child if activity else None
    children = activity.helpers.child_pids if activity else ()
    if child is not None:
        line = format_location(child.frame) or "a line that was not read"
        first = f"On {at.host} its worker {child.pid} is at {line}: `py-spy dump --pid {child.pid}`."
    elif children:
        listed = " ".join(str(pid) for pid in children[:6])
        first = f"On {at.host} see where its workers stand: `for p in {listed}; do py-spy dump --pid $p; done`."
    else:
        first = f"On {at.host} see where it and its workers stand: `py-spy dump --subprocesses --pid {at.pid}`."
    waits = at.place.clause(" The rank waits at", with_pid=child is None and not children)
    return [
        of_the_living(f"{first}{waits and f'{waits}.'}"),
        of_the_living(
            f"Check shared memory, storage and dead workers on {at.host}: `df -h /dev/shm`, `ps -o "
            f"pid,stat,wchan:32,args --ppid {at.pid}`."
        ),
        "Pass timeout=120 to the DataLoader, so that a stuck worker raises on its rank, and try num_workers=0 to see "
        "the error itself.",
        "If workers stand at a lock, they were forked while a thread held it: use "
        "multiprocessing_context='forkserver'.",
    ]


def _uninterruptible(at: Stuck) -> list[NextStep]:
    if at.activity and at.activity.place.detail == WAITS_FOR_MEMORY:
        return [
            of_the_living(
                f"On {at.host} see its limit of memory and who uses it: `cat /proc/{at.pid}/cgroup`, and of that group "
                f"`memory.max` (v1: memory.limit_in_bytes, memory.oom_control){at.place.clause('; it stands at')}."
            ),
            of_the_living("A higher limit lets it go on at once; so does ending another process of its group."),
            "Give the job the memory that it takes (Slurm `--mem`, Kubernetes `resources.limits.memory`), or let it "
            "take less: fewer loader workers, smaller caches.",
        ]
    return [
        of_the_living(
            f"On {at.host} the kernel holds it (state D), signals do not reach it: `cat /proc/{at.pid}/wchan`, as root "
            f"`cat /proc/{at.pid}/stack`{at.place.clause('; it stands at')}."
        ),
        f"Check storage and devices of {at.host}: `dmesg -T | tail -50`, `timeout 5 stat -f <path>` for each network "
        f"mount.",
        starts_job(
            "Mend the mount or the device; if it does not come back, start the job without that node. Do not attach a "
            "debugger."
        ),
    ]


# Where it stands as it always does: by `where` alone.
_BY_PLACE: dict[Where, Callable[[Stuck], list[NextStep]]] = {
    "lock": _lock,
    "dataloader": _loader,
    "checkpoint": _storage,
    "filesystem": _storage,
    "gil": _gil,
    "busy_loop": _busy_loop,
    "socket": _socket,
    "store": store,
    "init": store,
    "compile": _compiler,
    "gpu_sync": _gpu,
    "teardown": _teardown,
    "collective": _other_collective,
}


def stuck_steps(where: Where, who: StepContext, frame: Frame | None) -> list[NextStep]:
    """Given where a rank stands, say what to look at on its host and what mends it."""
    at = Stuck(who, who.place(frame))
    return [*_on_account_of(at), *_by_what_it_does(where, at)]


def _on_account_of(at: Stuck) -> list[NextStep]:
    """What it does there, a retry's pause above all, it does because of an exception: that is what to mend. The end of
    an iteration is none."""
    activity = at.activity
    if activity is None or activity.end.gone or activity.process.replaced:
        return []
    handled, raised = activity.exceptions.handled, activity.exceptions.raised
    if handled is None or raised is None or not raised.text.startswith(handled.kind):
        return []
    where = f", raised at {format_location(raised.frame)}" if raised.frame else ""
    return [
        f"It is there on account of {handled.kind}{where}: read {at.name}'s log for what that says, and mend it; where "
        "it is tried again for ever, give up after some tries and raise."
    ]


def _by_what_it_does(where: Where, at: Stuck) -> list[NextStep]:
    activity = at.activity
    if activity is not None:
        if activity.end.gone:
            return _gone(at)
        if activity.process.replaced:
            return _replaced(at)
        if activity.process.uninterruptible:
            return _uninterruptible(at)
        if where == activity.place.where and (special := by_wait(at, activity)):
            return special
    return _BY_PLACE.get(where, _own_code)(at)
