"""The value that says what one rank does."""

import msgspec

from stallwatch.diagnosis.frames.code_origin import Origin, place
from stallwatch.model.evidence import CodeFrame, SourceBlock
from stallwatch.model.scene import Handled, NamedCall
from stallwatch.model.verdict import EndsByItself, Fact, Frame, Where


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
    stack: tuple[CodeFrame, ...] = ()  # of that thread at the last look that has one, innermost first
    # Blocked in a torch.distributed call, a Work.wait or the autograd engine. None: waits in C at a line that does not
    # tell a lock from a Work.wait; `where` is then "lock" though it may be "collective".
    in_collective: bool | None = False
    collective: str | None = None  # its public name, where the stack tells it: "all_reduce"
    gpu_sync: bool = False  # waits for its GPU: under NCCL this is how a waiting rank looks
    gpu_guessed: bool = False  # or computes in native code: nothing says which
    in_store_or_init: bool = False  # rendezvous, store, new_group, creation of a communicator
    in_teardown: bool = False  # destroy_process_group, atexit, threads joined at the end
    exception: str | None = None  # "RuntimeError: …", from its hook or its log
    exception_frame: Frame | None = None  # line of the job's code that raised it
    exception_is_consequence: bool = False  # it says only that a peer went away: never the first cause
    exception_swallowed: bool = False  # the rank lives on outside teardown though its log shows the exception
    handled: Handled | None = None  # the exception on whose account it is where it is, by its hook
    logged_beside: str | None = None  # the traceback that ends a log which it shares: some rank's
    named_call: NamedCall | None = None  # the call of torch.distributed that it stands in, with the rank that it names
    # (file, function, block) around the lines of its stack, outermost first; None: its source was not read.
    blocks: tuple[tuple[str, str, SourceBlock], ...] | None = None
    ends_by_itself: EndsByItself | None = None  # what it does is of this kind
    awaited_frame: Frame | None = None  # of the thread of its own process that it waits for
    awaited_detail: str = ""
    awaited_stack: tuple[CodeFrame, ...] = ()  # innermost first
    polls: str = ""  # the loop in which it sleeps and looks again: "while not path.exists():"
    moving: bool | None = None  # over two looks; None: one look, or they do not tell (a busy loop)
    io_known: bool = False  # what it read and wrote between the looks is known
    cpu_share: float | None = None  # cores used by the judged thread between the looks
    waits_for_children: bool = False
    child_pids: tuple[int, ...] = ()
    child_pid: int | None = None  # the child that is not idle, where its stack was read
    child_frame: Frame | None = None  # and its line of the job's code
    child_detail: str = ""
    uses_gpu: bool = False
    stopped: bool = False  # state T or t
    tracer_pid: int | None = None  # a debugger is attached
    uninterruptible: bool = False  # state D of the thread that blocks
    gone: bool = False  # no process any more, or a zombie
    exit_code: int | None = None
    exit_signal: int | None = None
    out_of_memory: bool | None = None  # ended by the kernel because memory ran out; None: not known
    joined: bool | None = None  # it has a process group; False: asked, and it has none, or none any more
    phase: str = ""  # as the job told it
    why: tuple[Fact, ...] = ()

    @property
    def path(self) -> tuple[tuple[str, str], ...]:
        """The functions of the job's own code, (file, function), outermost first, through which it came to where it
        stands: by the thread that it waits for where that is known."""
        frames = self.awaited_stack or self.stack
        own = [frame for frame in frames if place(frame.filename).origin is Origin.JOB]
        return tuple((frame.filename, frame.name) for frame in reversed(own))

    @property
    def known(self) -> bool:
        """False: nothing is known of what the rank does; it must not be accused by what it does."""
        return self.where != "unknown" or self.stopped or self.gone or self.frame is not None
