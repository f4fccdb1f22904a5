"""Threads of a rank in a PID namespace of its own (a container): py-spy names them by the ids that they have there,
finds no state of a thread of that id, and calls every one active. The kernel's word for a thread is taken instead."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from stallwatch.model.evidence import ProcessLook, Stacks

_RUNNING = "R"


class _Thread(NamedTuple):
    tid: int  # as the node numbers them
    state: str


def as_the_node_numbers(stacks: Iterable[Stacks], processes: Iterable[ProcessLook]) -> tuple[Stacks, ...]:
    """Given a rank's stacks and looks at its process, return the stacks with the node's thread ids and activity."""
    looks = sorted(processes, key=lambda look: look.look)
    return tuple(_translated(one, _of(one, looks)) for one in stacks)


def _of(stacks: Stacks, looks: Iterable[ProcessLook]) -> Mapping[int, _Thread]:
    """The process' threads by the id in its namespace, of the look that was made with the stacks where there is one;
    empty when it lives in ours, or nothing is known of it."""
    found: dict[int, _Thread] = {}
    for look in looks:
        if look.look > stacks.look and found:
            break
        here = _threads(look) if look.pid == stacks.pid else _child(look, stacks.pid)
        found = here or found
    ours = {thread.tid for thread in found.values()}
    if any(thread.os_thread_id in ours for thread in stacks.threads if thread.os_thread_id not in found):
        return {}  # not by this py-spy
    return found


def _threads(look: ProcessLook) -> dict[int, _Thread]:
    known = {t.namespace_tid: _Thread(t.tid, t.state) for t in look.threads if t.namespace_tid is not None}
    if known or look.namespace_pid in (None, look.pid):
        return known
    # A look of an older version: of its threads only the first is known.
    main = [_Thread(thread.tid, thread.state) for thread in look.threads if thread.tid == look.pid]
    return dict(zip([look.namespace_pid], main, strict=False))


def _child(look: ProcessLook, pid: int | None) -> dict[int, _Thread]:
    for child in look.children:
        if child.pid == pid and child.namespace_pid is not None:
            return {child.namespace_pid: _Thread(child.pid, child.state)}
    return {}


def _translated(stacks: Stacks, known: Mapping[int, _Thread]) -> Stacks:
    if not known:
        return stacks
    threads = []
    for thread in stacks.threads:
        found = known.get(thread.os_thread_id) if thread.os_thread_id is not None else None
        # What nobody saw run is not called busy: that would be an accusation.
        changed = {"os_thread_id": found.tid, "active": found.state == _RUNNING} if found else {"active": False}
        threads.append(replace(thread, **changed))
    return replace(stacks, threads=tuple(threads))
