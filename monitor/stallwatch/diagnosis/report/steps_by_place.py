"""Steps for a rank that is stuck in its own code, by what it does there, and by what the wait is for."""

from stallwatch.diagnosis.activity import RankActivity
from stallwatch.diagnosis.activity.thread_place import Place
from stallwatch.diagnosis.report.step_context import StepContext, StepPlace
from stallwatch.diagnosis.report.text import format_location
from stallwatch.diagnosis.step import NextStep, Step, of_the_living, restart, starts_job
from stallwatch.model.verdict import Frame, Where

# Steps for waits that name what they are for: a child process, the other end of a pipe, a database, a person.


_CHILDREN_SHOWN = 6


def steps_by_wait(host: str, pid: str, place: StepPlace, activity: RankActivity) -> list[NextStep] | None:
    """Given what a rank does, return the steps that fit this very wait; None where `where` alone tells them."""
    if activity.helpers.stopped_child is not None:
        return _stopped(host, activity.helpers.stopped_child, place)
    if activity.helpers.waits_for_children and activity.place.where in ("user_code", "lock"):
        return _child(host, pid, place.line, activity)
    if "pipe" in activity.place.detail and activity.place.where == "filesystem":
        return _pipe(host, pid, place, writes=activity.place.detail.startswith("writes"))
    if activity.place.detail == "waits for a database":
        return _database(host, pid, place)
    if activity.place.detail == "waits for input from a person":
        return [
            of_the_living(
                f"On {host} see what it reads: `ls -l /proc/{pid}/fd/0`; it asks at {place.line}, and in a job nobody "
                "answers."
            ),
            "Take the question out, answer it by a flag, or start the job with `</dev/null`, so that it fails at once.",
            "Look for what asks: a debugger's prompt (breakpoint, pdb), a login, a licence, an overwrite warning.",
        ]
    return None


def _gone(name: str, line: str) -> list[NextStep]:
    return [
        f"Ask why {name} stood at {line} until its launcher ended it: its stack is kept with the incident.",
        "If what it does there ends by itself, do it before the collective that the others wait in, or raise the "
        "timeout of init_process_group: they waited as long as that allows.",
        restart("Start the job from its last checkpoint."),
    ]


def _beside(activity: RankActivity | None) -> str:
    """The sentence says where that thread stands."""
    beside = activity.helpers.beside if activity else None
    named = beside is not None and beside.frame is not None
    return ". If its only other thread holds it, or is to set it, mend what that one waits for" if named else ""


def _stopped(host: str, child: int, place: StepPlace) -> list[NextStep]:
    return [
        of_the_living(
            f"On {host} see the child that is stopped: `ps -o pid,ppid,stat,etime,args -p {child}`"
            f"{place.clause('; the rank waits at', with_pid=False)}."
        ),
        of_the_living(f"If nobody needs it stopped, let it go on: `kill -CONT {child}`. The rank then goes on, too."),
        "Ask who sent it SIGSTOP: a debugger, Ctrl-Z in a terminal, cpulimit, a script that suspends by name.",
        of_the_living(
            f"Ending that child (`kill -KILL {child}`) lets the rank go on or fail with an error that tells more."
        ),
    ]


def _child(host: str, pid: str, line: str, activity: RankActivity) -> list[NextStep]:
    if child := activity.helpers.child:
        at = format_location(child.frame) or "a line that was not read"
        see = f"On {host} its child process {child.pid} is at {at}: `py-spy dump --pid {child.pid}`."
    else:
        see = f"On {host} see what its children do: `ps -o pid,stat,wchan:32,etime,args --ppid {pid}`."
        if activity.helpers.child_pids:
            shown = " ".join(str(child) for child in activity.helpers.child_pids[:_CHILDREN_SHOWN])
            see += f" They are {shown}."
    forked = (
        "at a lock, it was forked while a thread held it: start it with spawn or forkserver. If it waits for a pipe, "
        "nobody reads its output: use communicate() or a file."
    )
    return [
        of_the_living(f"{see} The rank waits for it at {line}."),
        "Give that wait a time-out (subprocess.run(timeout=…), Process.join(timeout), Pool.map_async().get(timeout)), "
        "so that the rank fails instead of waiting for ever.",
        Step(f"If the child stands {forked}", left=f"If the child stood {forked}"),
        of_the_living(
            f"Ending that child (`kill <pid>` on {host}) lets the rank go on or fail with an error that tells more."
        ),
    ]


def _pipe(host: str, pid: str, place: StepPlace, *, writes: bool) -> list[NextStep]:
    ends = f"`ls -l /proc/{pid}/fd | grep pipe`, and who has the same pipe: `ls -l /proc/[0-9]*/fd 2>/dev/null | grep`"
    first = of_the_living(
        f"On {host} find the other end: {ends} with its number{place.clause('; the rank stands at')}."
    )
    if writes:
        return [
            first,
            of_the_living(
                "If the pipe is its own output, whatever read its log (tee, a launcher, a terminal that is paused) has "
                "stopped: let it read on, or send output to a file (`torchrun --log-dir D --redirects 3`)."
            ),
            of_the_living(
                "If the other end is a child process, that child has stopped reading: see what it does by `py-spy "
                "dump`."
            ),
        ]
    return [
        first,
        "A named pipe (FIFO) blocks the one that opens it until the other side comes: see that the writer or reader "
        "was started, and is alive.",
        "Close the ends that a process does not use, so that a peer that dies is seen as the end of the stream.",
    ]


def _database(host: str, pid: str, place: StepPlace) -> list[NextStep]:
    return [
        of_the_living(
            f"On {host} see which database: `ls -l /proc/{pid}/fd` for a file, `ss -tanp | grep pid={pid},` for a "
            f"server{place.clause('; the call is at')}."
        ),
        of_the_living(
            "See who holds it: `fuser -v <file>` or `lslocks` for SQLite, the server's own list of sessions "
            "otherwise; a rank that keeps a transaction open while it waits in a collective blocks the others for ever."
        ),
        "Commit before the next collective, give connections a time-out, and let one rank alone write.",
    ]


def stuck_steps(where: Where, who: StepContext, frame: Frame | None) -> list[NextStep]:
    """Given where a rank stands, say what to look at on its host and what mends it."""
    host, pid, name, activity, place = who.host, who.pid, who.name, who.activity, who.place(frame)
    line = place.line
    stacks = f"On {host} see all its threads: `py-spy dump --pid {pid}`"
    if activity and activity.end.gone:
        return _gone(name, line)
    if activity and activity.process.replaced:
        return [
            of_the_living(f"On {host} see what it runs and who started it: `ps -o args,ppid,lstart -p {pid}`."),
            f"Look for `os.exec*` in what {name} runs, an error path or a clean-up among it: start such a program as a "
            "child, or end the rank with an exit code.",
            starts_job("It will not train on: stop the job and start it from its last checkpoint."),
        ]
    if activity and activity.process.uninterruptible:
        return _uninterruptible(host, pid, place)
    if activity and where == activity.place.where and (special := steps_by_wait(host, pid, place, activity)):
        return special
    match where:
        case "lock":
            if activity and "lock file" in activity.place.detail:
                return _lock_file(host, pid, place)
            if activity and activity.place.at_shared_lock:
                return _shared_lock(host, pid, activity.place)
            waits = place.clause("; it waits at", with_pid=False)
            return [
                of_the_living(
                    f"{stacks}{f'{waits}:' if waits else ';'} look for the thread that should release or signal what "
                    f"it waits for{_beside(activity)}."
                ),
                "If another thread of it waits for a collective or for this one, the two block each other: take the "
                "lock after the collective.",
                "If the lock was taken before a fork, start workers with spawn or forkserver, or before any thread.",
                restart(
                    "Stop the job and start it from its last checkpoint if no thread is left that could release it."
                ),
            ]
        case "dataloader":
            return _loader(host, pid, place, activity)
        case "checkpoint" | "filesystem":
            return [
                of_the_living(
                    f"On {host} see which file: `ls -l /proc/{pid}/fd` and `cat /proc/{pid}/wchan`"
                    f"{place.clause('; it stands at')}."
                ),
                "Check the mount behind it: `timeout 5 stat -f <path>`, `df -h`, `dmesg -T | grep -i -E 'nfs|not "
                f"responding'` on {host}.",
                of_the_living("If it writes and grows (`ls -l` twice), wait: it is slow, not stuck."),
                "Write checkpoints to a local disk first and copy them in the background, so that storage never "
                "holds a step.",
            ]
        case "gil":
            return [
                of_the_living(
                    f"On {host} see the call that keeps the GIL: `py-spy dump --native --pid {pid}`; it was entered at "
                    f"{line}."
                ),
                "Let that extension release the GIL around its wait (Py_BEGIN_ALLOW_THREADS; ctypes.CDLL rather "
                "than PyDLL).",
                "Or run the call in a process of its own with a time-out.",
            ]
        case "busy_loop":
            return [
                of_the_living(
                    f"On {host} look twice, some seconds apart: `py-spy dump --locals --pid {pid}`; it computes at "
                    f"{line}."
                ),
                of_the_living(
                    "If the locals change, it works on more data than the others: balance it, or do it before training."
                ),
                of_the_living("If they do not, its loop has no end: give it a bound and log when it is reached."),
            ]
        case "socket" if activity and activity.helpers.awaited:
            awaited = who.place(activity.helpers.awaited.frame)
            return [
                of_the_living(
                    f"On {host} see what keeps the thread of its executor{awaited.clause(' at')}: "
                    f"`py-spy dump --pid {pid}`; its event loop most likely waits for it."
                ),
                "Put a time-out around what the loop awaits (`asyncio.wait_for`), and one into the call that the "
                "thread makes: a thread cannot be cancelled.",
                of_the_living(
                    f"If it is none of its executor's, see whom the loop talks to: `ss -tanp | grep pid={pid},`."
                ),
            ]
        case "socket":
            return [
                of_the_living(
                    f"On {host} see whom it talks to: `ss -tanp | grep pid={pid},`{place.clause('; the call is at')}."
                ),
                "Give that call a time-out, and do not make it between two collectives on one rank only.",
                "If it is an experiment tracker, start it in offline mode or before init_process_group.",
            ]
        case "store" | "init":
            return [
                of_the_living(f"{stacks}; it waits at {line} for ranks that have not come."),
                "Let every rank of the job call init_process_group and new_group, in the same order, members or not.",
                of_the_living(
                    f"From {host} reach the store: `nc -vz $MASTER_ADDR $MASTER_PORT`; rank 0 serves it and must be "
                    "alive."
                ),
                "Run `stallwatch doctor` on the nodes of the missing ranks.",
            ]
        case "compile":
            return [
                of_the_living(
                    f"On {host} see whether compilers work: `ps -o pid,pcpu,etime,args --ppid {pid}`"
                    f"{place.clause('; the rank is at')}."
                ),
                of_the_living(
                    "If they do, wait, and give the first step more time: compile before the first collective, or "
                    "raise the time-out of the process group."
                ),
                "Keep TORCHINDUCTOR_CACHE_DIR, TRITON_CACHE_DIR and TORCH_EXTENSIONS_DIR on a local disk of each node.",
            ]
        case "gpu_sync":
            return [
                of_the_living(
                    f"On {host} see the CUDA call that it is in: `py-spy dump --native --pid {pid}`"
                    f"{place.clause('; it waits at')}."
                ),
                of_the_living("See what the GPU does: `nvidia-smi` (100 % busy at low power is waiting, not work)."),
                "Look for an operation on another process group before that line, which its GPU may still wait for.",
            ]
        case "teardown":
            return [
                of_the_living(f"{stacks}; {name} is ending at {line} while others still train."),
                "Read its log for an exception before that, and keep collectives out of exit handlers and `finally`.",
                restart("Stop the job and start it from its last checkpoint."),
            ]
        case "collective":
            return [
                of_the_living(f"{stacks}; it is in another collective, at {line}."),
                "Compare its path to the line where the others wait: a branch that depends on the rank or on its data.",
            ]
        case _:
            return [
                of_the_living(f"{stacks}{place.clause('; it stands at')}."),
                f"Ask why {name} takes this path or takes longer there than the others: a branch on the rank, a sleep, "
                "more data, a retry.",
                "Do such work on every rank, or before the collective that the others wait in.",
            ]


def rendezvous() -> list[NextStep]:
    """Everybody who was seen is at the rendezvous."""
    variables = "MASTER_ADDR|MASTER_PORT|WORLD_SIZE|RANK|NODE_RANK"
    return [
        of_the_living(
            f"Compare what the ranks were given: `for p in $(pgrep -f <script>); do tr '\\0' '\\n' </proc/$p/environ | "
            f"grep -E '^({variables})='; done` on each node, and `stallwatch doctor`, which names the ranks that "
            "differ."
        ),
        "Count the ranks: as many as WORLD_SIZE must run, each with a RANK of its own; the launcher's log tells "
        "of those that never started.",
        of_the_living("From every node reach the store: `nc -vz $MASTER_ADDR $MASTER_PORT`; rank 0 serves it."),
    ]


def _shared_lock(host: str, pid: str, place: Place) -> list[NextStep]:
    """Another process holds it; which one, the kernel tells of locks on files."""
    holder = place.lock_holder_pid
    if holder is not None:
        first = f"On {host} see what holds it: `ps -o pid,ppid,stat,etime,args -p {holder}`, `py-spy dump -p {holder}`."
    else:
        first = (
            f"On {host} find which process holds it: `lslocks` for a lock on a file, `ipcs -s -p` for a semaphore of "
            f"System V; `ls -l /proc/{pid}/fd` lists the files of the rank."
        )
    return [
        of_the_living(first),
        "One that has died keeps a semaphore and a lock file for ever, and no lock of flock or fcntl: use those, or "
        "SEM_UNDO.",
        "A rank that holds it must let go before it waits in a collective.",
        restart("Stop the job and start it from its last checkpoint if what holds it does not let go."),
    ]


def _lock_file(host: str, pid: str, place: StepPlace) -> list[NextStep]:
    return [
        of_the_living(
            f"On {host} find the lock file: `ls -l /proc/{pid}/fd` and `find "
            f"${{TORCH_EXTENSIONS_DIR:-~/.cache/torch_extensions}} "
            f"-name lock -ls`{place.clause('; the rank waits at')}."
        ),
        of_the_living(
            "If no compiler or other owner lives (`ps -ef | grep -E 'ninja|nvcc|cc1plus'`), remove that one file: it "
            "is stale and the rank goes on."
        ),
        "Give each node its own build directory on a local disk.",
    ]


def _loader(host: str, pid: str, place: StepPlace, activity: RankActivity | None) -> list[NextStep]:
    if activity and activity.place.stack and not activity.helpers.waits_for_children:
        return [
            of_the_living(
                f"On {host} see all its threads: `py-spy dump --pid {pid}`; its data set's own code stands at "
                f"{place.line}."
            ),
            "Give what that code waits for (a queue, a download, a file) a time-out that raises, so that the rank "
            "fails instead of waiting for ever.",
            of_the_living(f"Check storage and network of {host}: `dmesg -T | tail -50`, `ss -tanp | grep pid={pid},`."),
        ]
    child = activity.helpers.child if activity else None
    children = activity.helpers.child_pids if activity else ()
    if child is not None:
        at = format_location(child.frame) or "a line that was not read"
        first = f"On {host} its worker {child.pid} is at {at}: `py-spy dump --pid {child.pid}`."
    elif children:
        listed = " ".join(str(pid) for pid in children[:6])
        first = f"On {host} see where its workers stand: `for p in {listed}; do py-spy dump --pid $p; done`."
    else:
        first = f"On {host} see where it and its workers stand: `py-spy dump --subprocesses --pid {pid}`."
    waits = place.clause(" The rank waits at", with_pid=child is None and not children)
    return [
        of_the_living(f"{first}{waits and f'{waits}.'}"),
        of_the_living(
            f"Check shared memory, storage and dead workers on {host}: `df -h /dev/shm`, `ps -o pid,stat,wchan:32,args "
            f"--ppid {pid}`."
        ),
        "Pass timeout=120 to the DataLoader, so that a stuck worker raises on its rank, and try num_workers=0 to see "
        "the error itself.",
        "If workers stand at a lock, they were forked while a thread held it: use "
        "multiprocessing_context='forkserver'.",
    ]


def _uninterruptible(host: str, pid: str, place: StepPlace) -> list[NextStep]:
    return [
        of_the_living(
            f"On {host} the kernel holds it (state D), signals do not reach it: `cat /proc/{pid}/wchan`, as root "
            f"`cat /proc/{pid}/stack`{place.clause('; it stands at')}."
        ),
        f"Check storage and devices of {host}: `dmesg -T | tail -50`, `timeout 5 stat -f <path>` for each network "
        f"mount.",
        starts_job(
            "Mend the mount or the device; if it does not come back, start the job without that node. Do not attach a "
            "debugger."
        ),
    ]
