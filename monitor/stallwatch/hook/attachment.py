"""attach(): once a process, whatever happens."""

import atexit
import os
import sys
from time import monotonic_ns
from typing import Optional

from stallwatch.hook import ending, identity, native, recorder_switch
from stallwatch.hook.beat import OFF, Beat, Phases, step_counter
from stallwatch.hook.guard import Guard, say
from stallwatch.hook.publication import Publication
from stallwatch.hook.pulse import Pulse
from stallwatch.hook.training_thread import TrainingThread

_TURN_SECONDS = 2.0  # how long an attach() waits for one in another thread, which a dead file system may hold


class _Attached:
    """What this process has attached."""

    def __init__(self) -> None:
        self.guard = Guard()
        self.step, self.read_steps, stepper = step_counter()
        self.world = identity.world_of(os.environ, process := identity.this_process())
        is_child = identity.is_child(os.environ.get(identity.PARENT_VARIABLE, ""), process, self.world)
        phases = Phases(monotonic_ns())
        training = TrainingThread(stepper)
        self.publication = Publication(process, self.world, is_child, self.read_steps, phases, self.guard, training)
        self.pulse = Pulse(self.publication, self.guard)
        self.pulse.recorder_set_by_us = recorder_switch.turn_on(os.environ, sys.path)
        self.beat = Beat(self.step, phases, lambda: self.publication.file is not None, self.publication.describe)
        self.counts_optimizer = False
        # Inherited by what this process starts; changed here only, while no other thread reads the environment.
        os.environ[identity.PARENT_VARIABLE] = identity.parent_mark(process, self.world)


_attached: Optional[_Attached] = None
_turn = native.RLock()  # again in the same thread: a signal handler may attach too
_watches_process = False
_parent_world: "Optional[identity.World]" = None  # in a forked child: what its parent is


def attach(auto: bool = False) -> Beat:
    """Publish this process' progress for stallwatch's daemon; call it before `init_process_group`.

    Given auto=True, count the steps of one torch optimizer instead of waiting for `step()`. Return an object with
    `step()` and `phase(name)`; the same one at every call. Where publishing is impossible or STALLWATCH_DISABLE=1 it is
    false and does no harm. Never raises.
    """
    try:
        if os.environ.get("STALLWATCH_DISABLE", "").strip().lower() not in ("", "0", "no", "false", "off"):
            return OFF
        if sys.platform != "linux":
            say(f"needs Linux and does nothing on {sys.platform}")
            return OFF
        if sys.byteorder != "little":  # a record is filled with this machine's words (image.py)
            say("needs a little-endian machine and does nothing on this one")
            return OFF
        if not _turn.acquire(timeout=_TURN_SECONDS):
            say("another thread attaches and does not come to an end")
            return OFF
        try:
            return _attach(auto)
        finally:
            _turn.release()
    except Exception as error:
        say(f"could not attach: {type(error).__name__}: {error}; not tried again")
        return OFF


def _attach(auto: bool) -> Beat:
    global _attached
    if _attached is None:
        if _is_forked_copy():
            return OFF
        _watch_process()
        made = _Attached()
        made.pulse.start()
        _attached = made
    if auto:
        _count_optimizer(_attached)
    else:
        _attached.publication.counts_steps = True
    return _attached.beat


def _is_forked_copy() -> bool:
    """A forked child of an attached rank is no rank, unless its environment was given another place in a world."""
    if _parent_world is None:
        return False
    world = identity.world_of(os.environ, identity.this_process())
    return (world.rank, world.epoch) == (_parent_world.rank, _parent_world.epoch)


def _watch_process() -> None:
    global _watches_process
    if not _watches_process:
        _watches_process = True
        ending.watch_exit_status()
        os.register_at_fork(before=_pause, after_in_parent=_resume, after_in_child=_detach)
        atexit.register(_end)


def _pause() -> None:
    if _attached is not None:
        _attached.guard.run("fork", _attached.pulse.pause)


def _resume() -> None:
    if _attached is not None:
        _attached.guard.run("fork", _attached.pulse.resume)


def _detach() -> None:
    """In a forked child (a data loader's worker): nothing here is ours to write."""
    global _attached, _parent_world, _turn
    _turn = native.RLock()  # a thread that had it may be no more
    if _attached is not None:
        _parent_world = _attached.world
        _attached.publication.abandon()
        _attached = None


def _end() -> None:
    if _attached is not None:
        _attached.guard.run("end", _attached.pulse.end)


def _count_optimizer(attached: _Attached) -> None:
    if not attached.counts_optimizer:
        from stallwatch.hook.optimizer import count_optimizer_steps

        attached.counts_optimizer = True
        count_optimizer_steps(attached.step, lambda: attached.read_steps()[0], attached.guard)
