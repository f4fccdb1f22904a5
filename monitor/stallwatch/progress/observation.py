"""What two looks at a rank compare: its judged thread, its process, and the children that it waits for."""

from typing import NamedTuple

from stallwatch.model.verdict import Where

Calls = tuple[tuple[str, str, int], ...]  # (file, function, line), outermost first; line 0: it says nothing there
Lines = tuple[tuple[str, int], ...]  # (file, line) of the job's own code and of libraries, innermost first


class Stack(NamedTuple):
    """A thread's stack, as far as it tells motion."""

    thread: int | None  # as the kernel numbers it
    way: Calls  # the calls that lead to the wait, as far as they say something
    lines: Lines
    polling_way: Calls  # the same, were it a loop that polls
    is_in_job: bool  # the innermost frame is a line of the job's own


class SeenChild(NamedTuple):
    """A child process at one observation."""

    pid: int
    cpu_ticks: int | None
    main: Stack | None = None
    threads: tuple[Stack, ...] = ()
    answers: int | None = None  # of a thread that stands in a blocking receive: how often it woke so far
    own_wakes: int = 0  # of those that follow: what the look itself did to it
    reaped_ticks: int = 0  # of the programs that it had run, and that have ended
    moved_bytes: int | None = None  # of a process: that it and these have read and written so far


class Observation(NamedTuple):
    """One rank at one look; None is "was not read"."""

    at_ns: int | None = None  # CLOCK_MONOTONIC
    step: int | None = None
    stepped_ns: int | None = None  # when it counted that step; the same clock
    state: str | None = None  # of the judged thread: R S D T t Z X
    stack: Stack | None = None  # of the judged thread
    where: Where = "unknown"
    in_collective: bool | None = False
    waits_for_children: bool = False
    cpu_ticks: int | None = None  # of the judged thread
    read_bytes: int | None = None
    write_bytes: int | None = None
    # Of its judged thread, of those of its threads that this one waits for, and of such as no Python runs in.
    moved_bytes: int | None = None
    waits_by_itself: bool = False  # for what the kernel gives it, or for a lock: what its other threads move is theirs
    # It stands in a blocking receive or send of a socket, or in the kernel for a file system: each wake is an answer.
    receives: bool = False
    at_a_pipe: bool = False  # which wakes it whenever its other end has written there, or made room
    own_bytes: int | None = None  # that its judged thread alone has read and written so far
    round_call: str = ""  # it sleeps in a loop, each round of which makes this call to other ranks
    pulses: int | None = None  # of its hook, so far
    frame_changes: int | None = None  # of its training thread, so far, as its hook counts them
    wakes: int | None = None  # of the judged thread, so far
    own_wakes: int = 0  # of those that follow: what the look itself did to it
    children: tuple[SeenChild, ...] = ()
    awaited: tuple[SeenChild, ...] = ()  # the threads of its process that it waits for; their ids are the threads'
