"""Steps for waits that name what they are for: a child process, the other end of a pipe, a database, a person."""

from stallwatch.diagnosis.activity import Activity
from stallwatch.diagnosis.report.text import place

_CHILDREN_SHOWN = 6


def steps_by_wait(host: str, pid: str, line: str, activity: Activity) -> list[str] | None:
    """Given what a rank does, return the steps that fit this very wait; None where `where` alone tells them."""
    if activity.waits_for_children and activity.where in ("user_code", "lock"):
        return _child(host, pid, line, activity)
    if "pipe" in activity.detail and activity.where == "filesystem":
        return _pipe(host, pid, line, writes=activity.detail.startswith("writes"))
    if activity.detail == "waits for a database":
        return _database(host, pid, line)
    if activity.detail == "waits for input from a person":
        return [
            f"On {host} see what it reads: `ls -l /proc/{pid}/fd/0`; it asks at {line}, and in a job nobody answers.",
            "Take the question out, answer it by a flag, or start the job with `</dev/null`, so that it fails at once.",
            "Look for what asks: a debugger's prompt (breakpoint, pdb), a login, a licence, an overwrite warning.",
        ]
    return None


def _child(host: str, pid: str, line: str, activity: Activity) -> list[str]:
    if activity.child_pid is not None:
        at = place(activity.child_frame) or "a line that was not read"
        see = f"On {host} its child process {activity.child_pid} is at {at}: `py-spy dump --pid {activity.child_pid}`."
    else:
        see = f"On {host} see what its children do: `ps -o pid,stat,wchan:32,etime,args --ppid {pid}`."
        if activity.child_pids:
            shown = " ".join(str(child) for child in activity.child_pids[:_CHILDREN_SHOWN])
            see += f" They are {shown}."
    return [
        f"{see} The rank waits for it at {line}.",
        "Give that wait a time-out (subprocess.run(timeout=…), Process.join(timeout), Pool.map_async().get(timeout)), "
        "so that the rank fails instead of waiting for ever.",
        "If the child stands at a lock, it was forked while a thread held it: start it with spawn or forkserver. If it "
        "waits for a pipe, nobody reads its output: use communicate() or a file.",
        f"Ending that child (`kill <pid>` on {host}) lets the rank go on or fail with an error that tells more.",
    ]


def _pipe(host: str, pid: str, line: str, *, writes: bool) -> list[str]:
    ends = f"`ls -l /proc/{pid}/fd | grep pipe`, and who has the same pipe: `ls -l /proc/[0-9]*/fd 2>/dev/null | grep`"
    first = f"On {host} find the other end: {ends} with its number; the rank stands at {line}."
    if writes:
        return [
            first,
            "If the pipe is its own output, whatever read its log (tee, a launcher, a terminal that is paused) has "
            "stopped: let it read on, or send output to a file (`torchrun --log-dir D --redirects 3`).",
            "If the other end is a child process, that child has stopped reading: see what it does by `py-spy dump`.",
        ]
    return [
        first,
        "A named pipe (FIFO) blocks the one that opens it until the other side comes: see that the writer or reader "
        "was started, and is alive.",
        "Close the ends that a process does not use, so that a peer that dies is seen as the end of the stream.",
    ]


def _database(host: str, pid: str, line: str) -> list[str]:
    return [
        f"On {host} see which database: `ls -l /proc/{pid}/fd` for a file, `ss -tanp | grep pid={pid},` for a server; "
        f"the call is at {line}.",
        "See who holds it: `fuser -v <file>` or `lslocks` for SQLite, the server's own list of sessions otherwise; a "
        "rank that keeps a transaction open while it waits in a collective blocks the others for ever.",
        "Commit before the next collective, give connections a time-out, and let one rank alone write.",
    ]
