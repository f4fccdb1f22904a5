"""Whether a thread keeps the GIL: every other Python thread of its process then stands still."""

from stallwatch.diagnosis.activity.blocking_location import Standing
from stallwatch.diagnosis.activity.looks import Look
from stallwatch.diagnosis.activity.observed import Moment
from stallwatch.model.verdict import Fact

# What the thread does is then the story, and the GIL a detail of it.
_TELLS_MORE = frozenset({"checkpoint", "dataloader", "compile", "store", "init", "collective", "teardown"})
_PULSE_STILL_NS = 3_000_000_000  # the hook's pulse beats once a second


def with_gil(now: Moment, seen: tuple[Look, ...]) -> tuple[Standing, tuple[Fact, ...]]:
    """A thread that owns the GIL while it sleeps stops every other Python thread, the hook's pulse among them."""
    beats = [(look.process.at_ns if look.process else None, look.heartbeat) for look in seen if look.heartbeat]
    still, alive = False, False
    if beats:
        (_, first), (at_ns, last) = beats[0], beats[-1]
        dumping = last.dump_started_ns is not None
        alive = last.pulse_count != first.pulse_count
        old = at_ns is not None and at_ns - last.pulse_ns >= _PULSE_STILL_NS
        still = not alive and not dumping and old
    state = now.kernel.state
    if state in ("T", "t"):
        return now.standing, ()  # a process that is stopped gives nothing back: the stop is the story
    owner = now.thread if now.thread and now.thread.owns_gil else None
    asleep = owner is not None and not owner.active
    frozen = owner is not None and still and owner.active and now.standing.where in ("busy_loop", "gpu_sync")
    if (asleep and not alive) or frozen:
        fact = Fact("the thread owns the GIL and does not give it back", "py-spy")
        if now.standing.where in _TELLS_MORE:
            return now.standing._replace(detail=f"{now.standing.detail} and holds the GIL meanwhile"), (fact,)
        detail = (
            "computes in a call that keeps the GIL" if frozen else "holds the GIL in a call that does not give it back"
        )
        return now.standing._replace(where="gil", detail=detail, in_collective=False, gpu_guessed=False), (fact,)
    if now.thread is None and still and state in ("R", "S"):
        fact = Fact("the hook's own thread stands still though the process is not stopped", "heartbeat")
        return Standing("gil", "holds the GIL: no Python thread of it runs"), (fact,)
    return now.standing, ()
