"""The answer to "what does this rank do", from its stacks, its process looks and its heartbeat."""

import msgspec

from stallwatch.model.evidence import RankEvidence
from stallwatch.model.verdict import Fact, Frame, Where


class Activity(msgspec.Struct, frozen=True):
    """What a rank does at the last look, judged on the thread that blocks. None means that nothing tells."""

    rank: int
    host: str | None = None
    pid: int | None = None
    where: Where = "unknown"
    frame: Frame | None = None  # the line of the job's code to show a person
    detail: str = ""  # what it does, a predicate: "waits for a lock"; "" when unknown
    thread: str = ""  # name of the thread that was judged, "" when there is no stack
    os_thread_id: int | None = None
    in_collective: bool = False  # blocked in a torch.distributed call, a Work.wait, or the autograd engine's all-reduce
    collective: str | None = None  # its name, where the stack tells it: "all_reduce"
    gpu_sync: bool = False  # waits for its GPU: under NCCL this is how a waiting rank looks
    in_store_or_init: bool = False  # rendezvous, store, new_group, creation of a communicator
    in_teardown: bool = False  # destroy_process_group, atexit, a finally after an exception
    exception: str | None = None  # "RuntimeError: …", from its log
    exception_is_consequence: bool = False  # the exception says that a peer went away: never the first cause
    exception_swallowed: bool = False  # the rank lives on though its log shows an exception
    moving: bool | None = None  # over two looks; None: one look, or they do not tell
    waits_for_children: bool = False
    child_pids: tuple[int, ...] = ()
    holds_gil_long: bool = False
    stopped: bool = False  # state T or t
    traced: bool = False  # a debugger is attached
    uninterruptible: bool = False  # state D of the thread that blocks
    gone: bool = False  # no process any more, or a zombie
    why: tuple[Fact, ...] = ()

    @property
    def known(self) -> bool:
        """False: nothing is known of what the rank does; it must not be accused by what it does."""
        return self.where != "unknown" or self.stopped or self.gone or self.frame is not None


def read_activity(rank: RankEvidence) -> Activity:
    """Given everything known of one rank, say what it does. Never raise; order of threads and looks is irrelevant."""
    return Activity(rank=rank.rank, host=rank.host, pid=rank.pid)
