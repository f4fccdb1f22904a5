"""Steps for waits that name what they are for: a child process, the other end of a pipe, a terminal, a database, a
person."""

from stallwatch.diagnosis.activity import RankActivity
from stallwatch.diagnosis.activity.doing import STARVES
from stallwatch.diagnosis.frames.meaning import ANY_PROCESS, NO_RESULT
from stallwatch.diagnosis.report.step_context import Stuck
from stallwatch.diagnosis.report.text import format_location
from stallwatch.diagnosis.step import NextStep, Step, of_the_living

_CHILDREN_SHOWN = 6


def by_wait(at: Stuck, activity: RankActivity) -> list[NextStep] | None:
    """Given what a rank does, return the steps that fit this very wait; None where `where` alone tells them."""
    if activity.helpers.stopped_child is not None:
        return _stopped(at, activity.helpers.stopped_child)
    if activity.place.detail == NO_RESULT:
        return _no_result(at)
    if activity.helpers.waits_for_children and activity.place.where in ("user_code", "lock"):
        return _child(at, activity)
    if "pipe" in activity.place.detail and activity.place.where == "filesystem":
        return _pipe(at, writes=activity.place.detail.startswith("writes"))
    if activity.place.detail == STARVES:
        return _starved(at)
    if activity.place.detail == "waits for a terminal":
        return _terminal(at, activity.place.waits_on)
    if activity.place.detail == "waits for a database":
        return _database(at)
    if activity.place.detail == "waits for input from a person":
        return [
            of_the_living(
                f"On {at.host} see what it reads: `ls -l /proc/{at.pid}/fd/0`; it asks at {at.line}, and in a job "
                "nobody answers."
            ),
            "Take the question out, answer it by a flag, or start the job with `</dev/null`, so that it fails at once.",
            "Look for what asks: a debugger's prompt (breakpoint, pdb), a login, a licence, an overwrite warning.",
        ]
    return None


def _stopped(at: Stuck, child: int) -> list[NextStep]:
    return [
        of_the_living(
            f"On {at.host} see the child that is stopped: `ps -o pid,ppid,stat,etime,args -p {child}`"
            f"{at.place.clause('; the rank waits at', with_pid=False)}."
        ),
        of_the_living(f"If nobody needs it stopped, let it go on: `kill -CONT {child}`. The rank then goes on, too."),
        "Ask who sent it SIGSTOP: a debugger, Ctrl-Z in a terminal, cpulimit, a script that suspends by name.",
        of_the_living(
            f"Ending that child (`kill -KILL {child}`) lets the rank go on or fail with an error that tells more."
        ),
    ]


def _child(at: Stuck, activity: RankActivity) -> list[NextStep]:
    if child := activity.helpers.child:
        line = format_location(child.frame) or "a line that was not read"
        see = f"On {at.host} its child process {child.pid} is at {line}: `py-spy dump --pid {child.pid}`."
    elif not activity.helpers.child_pids and activity.place.detail == ANY_PROCESS:
        return _any_process(at)
    else:
        see = f"On {at.host} see what its children do: `ps -o pid,stat,wchan:32,etime,args --ppid {at.pid}`."
        if activity.helpers.child_pids:
            shown = " ".join(str(child) for child in activity.helpers.child_pids[:_CHILDREN_SHOWN])
            see += f" They are {shown}."
    forked = (
        "at a lock, it was forked while a thread held it: start it with spawn or forkserver, and subprocess without "
        "`preexec_fn`. If it waits for a pipe, nobody reads its output: use communicate() or a file."
    )
    return [
        of_the_living(f"{see} The rank waits for it at {at.line}."),
        "Give that wait a time-out (subprocess.run(timeout=…), Process.join(timeout), Pool.map_async().get(timeout)), "
        "so that the rank fails instead of waiting for ever.",
        Step(f"If the child stands {forked}", left=f"If the child stood {forked}"),
        of_the_living(
            f"Ending that child (`kill <pid>` on {at.host}) lets the rank go on or fail with an error that tells more."
        ),
    ]


def _no_result(at: Stuck) -> list[NextStep]:
    return [
        of_the_living(
            f"Stop the job: no result comes any more, whatever the workers do; {at.name} waits at {at.line} for ever."
        ),
        "Read the rank's log from `Exception in thread` on, where `_handle_results` is in the traceback: most often an "
        "exception of a worker could not be unpickled, because its constructor takes other arguments than it hands to "
        "`Exception.__init__`.",
        "Have workers raise what pickles (`raise RuntimeError(repr(error)) from None`), or use "
        "concurrent.futures.ProcessPoolExecutor, which raises where multiprocessing's pool waits.",
        "Give that wait a time-out (`pool.map_async(…).get(timeout=…)`), so that the rank fails instead.",
    ]


def _any_process(at: Stuck) -> list[NextStep]:
    """It has no child: who is to answer started it, or was started beside it (mp.spawn, a launcher of one's own)."""
    return [
        of_the_living(
            f"It waits at {at.line} for a process that is none of its children. On {at.host} see who started it, and "
            f"what that one runs beside it: `ps -o pid,ppid,stat,etime,args -p $(ps -o ppid= -p {at.pid}) --ppid $(ps "
            f"-o ppid= -p {at.pid})`, and where the one stands that is to answer: `py-spy dump --pid <pid>`.",
        ),
        "If that one, or its thread that puts into the queue, has ended by an exception, its traceback is in the log "
        "of the process that started the ranks.",
        "Give that wait a time-out (`queue.get(timeout=…)`, `connection.poll(timeout)`), so that the rank fails "
        "instead of waiting for ever.",
    ]


def _pipe(at: Stuck, *, writes: bool) -> list[NextStep]:
    ends = (
        f"`ls -l /proc/{at.pid}/fd | grep pipe`, and who has the same pipe: `ls -l /proc/[0-9]*/fd 2>/dev/null | grep`"
    )
    first = of_the_living(
        f"On {at.host} find the other end: {ends} with its number{at.place.clause('; the rank stands at')}."
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


def _starved(at: Stuck) -> list[NextStep]:
    return [
        of_the_living(
            f"On {at.host} see its limit of processor time: `cat /proc/{at.pid}/cgroup`, and of that group "
            f"`cpu.stat` (nr_throttled) and `cpu.max`{at.place.clause('; the rank stands at')}."
        ),
        of_the_living(
            f"See who has its cores: `taskset -cp {at.pid}`, `ps -eLo pid,psr,cls,ni,pcpu,args --sort=-pcpu | head`."
        ),
        "Give every rank cores of its own: no limit below what it takes (Kubernetes `resources.limits.cpu`, Slurm "
        "`--cpus-per-task`), no two ranks bound to one core.",
    ]


def _terminal(at: Stuck, waits_on: str) -> list[NextStep]:
    device = (waits_on.split() or ["", ""])[1]
    return [
        of_the_living(
            f"On {at.host} see whose terminal {device} is and what reads it: `fuser -v {device}`, `who -a`"
            f"{at.place.clause('; the rank stands at')}."
        ),
        of_the_living("If it was paused by Ctrl-S, Ctrl-Q in that terminal lets the rank go on."),
        "Send a job's output to a file (`torchrun --log-dir D --redirects 3`): a terminal, `screen` or `ssh` that is "
        "not read stops whoever writes.",
    ]


def _database(at: Stuck) -> list[NextStep]:
    return [
        of_the_living(
            f"On {at.host} see which database: `ls -l /proc/{at.pid}/fd` for a file, `ss -tuxanp | grep pid={at.pid},` "
            f"for a server{at.place.clause('; the call is at')}."
        ),
        of_the_living(
            "See who holds it: `fuser -v <file>` or `lslocks` for SQLite, the server's own list of sessions "
            "otherwise; a rank that keeps a transaction open while it waits in a collective blocks the others for ever."
        ),
        "Commit before the next collective, give connections a time-out, and let one rank alone write.",
    ]
