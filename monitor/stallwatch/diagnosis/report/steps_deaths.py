"""Steps for processes that ended, raised or were stopped."""

from stallwatch.diagnosis.report.steps_scene import Scene
from stallwatch.diagnosis.report.text import named_signal, place


def exited(scene: Scene) -> list[str]:
    activity = scene.activity
    number = activity.exit_signal if activity else None
    last = f"Read the last lines of {scene.name}'s log for what it did before the end."
    restart = "Stop the other ranks and start the job from its last checkpoint: they cannot go on without it."
    if activity and activity.out_of_memory:
        return [
            f"On {scene.host} read who took the memory: `dmesg -T | grep -A 20 -i 'killed process {scene.pid}'`.",
            "Lower what the rank holds in host memory (loader workers × prefetch_factor, pinned memory, checkpoint "
            "copies), or raise the memory limit of the container or job.",
            restart,
        ]
    if number == 9:
        return [
            f"On {scene.host} check whether memory ran out: `dmesg -T | grep -i -E 'out of memory|oom-kill'` and "
            "oom_kill in memory.events of its cgroup.",
            "If not, ask the scheduler who ended it: pre-emption, time limit, `sacct -j <job>` or `kubectl describe "
            "pod`.",
            last,
            restart,
        ]
    if number is not None and number in (4, 6, 7, 8, 11):
        return [
            f"On {scene.host} look for the crash of pid {scene.pid}: `coredumpctl info {scene.pid}` or a core file; "
            f"{named_signal(number)} comes from native code.",
            last,
            "Start again with PYTHONFAULTHANDLER=1 and TORCH_SHOW_CPP_STACKTRACES=1 to get the line if it comes back.",
            restart,
        ]
    if activity and activity.exit_code == 0:
        return [
            f"Find out why {scene.name} ended without an error before the others: sys.exit, an early return, a "
            "shorter data shard.",
            last,
            "Let all ranks decide together when to end, for example by an all_reduce of a flag.",
        ]
    where = f" It was raised at {place(activity.exception_frame)}." if activity and activity.exception_frame else ""
    return [
        f"Read the traceback of {scene.name}: it is the first to end, later errors of others are consequences.{where}",
        "If there is none, decorate main with torch.distributed.elastic.multiprocessing.errors.record, which keeps it.",
        restart,
    ]


def raised(scene: Scene) -> list[str]:
    activity = scene.activity
    where = f" at {place(activity.exception_frame)}" if activity and activity.exception_frame else ""
    what = activity.exception if activity and activity.exception else "the exception"
    victims = f"; ranks {scene.verdict.waiting} wait for it" if scene.verdict.waiting else ""
    return [
        f"Mend what raised {what}{where} on {scene.name}{victims}.",
        # Only where the rank was seen there.
        *([_OUT_OF_FINALLY] if activity and (activity.in_teardown or activity.exception_swallowed) else []),
        f"Stop the job now: {scene.name} cannot come back into the step.",
    ]


_OUT_OF_FINALLY = (
    "Keep collectives, barriers and destroy_process_group out of `finally` and `except`: after an error on one rank "
    "the others never join them. Let the process exit instead, so that the launcher sees it."
)


def stopped(scene: Scene) -> list[str]:
    activity = scene.activity
    if activity and activity.tracer_pid:
        return [
            f"On {scene.host} see who debugs it: `ps -o pid,user,args -p {activity.tracer_pid}`; let it continue or "
            f"detach.",
            "If nobody knows it, stop that debugger: the rank goes on by itself.",
        ]
    return [
        f"On {scene.host} let it go on: `kill -CONT {scene.pid}`.",
        f"Find out who stopped it before that if you can: `ps -o pid,ppid,stat,tty,user,args -p {scene.pid}`; a "
        f"terminal's "
        "Ctrl-Z, a scheduler that suspends jobs, or a snapshot tool.",
    ]
