"""Where the thread of a rank that matters stands."""

from typing import Literal

import msgspec

from stallwatch.model.evidence import CodeFrame, SourceBlock
from stallwatch.model.verdict import Frame, Where

# What another process may hold, a rank of the job among them: locks and semaphores of multiprocessing and of System V,
# what the kernel locks of a file, a file that is the lock, a database.
SharedLock = Literal["processes", "file", "lock_file", "database"]


class Place(msgspec.Struct, frozen=True):
    """Where the judged thread stands, at the last look that has its stack."""

    where: Where = "unknown"
    detail: str = ""  # what it does, a predicate: "waits for a lock"; "" when unknown
    frame: Frame | None = None  # the line of the job's code to show a person
    stack: tuple[CodeFrame, ...] = ()  # innermost first
    thread: str = ""  # name of the thread that was judged, "" when there is no stack
    os_thread_id: int | None = None
    in_teardown: bool = False  # destroy_process_group, atexit, threads joined at the end
    gpu_guessed: bool = False  # waits for its GPU, or computes in native code: nothing says which
    # (file, function, block) around the lines of its stack, outermost first; None: its source was not read.
    blocks: tuple[tuple[str, str, SourceBlock], ...] | None = None
    polls: str = ""  # the loop in which it sleeps and looks again: "while not path.exists():"
    waits_on: str = ""  # the file system or server that it, or its child at work, waits for: "nfs4 filer:/vol"
    shared_lock: SharedLock | None = None  # the kind of lock that it waits for, where another process may hold it
    lock_holder_pid: int | None = None  # holds the lock on a file that its process waits for; None: not known
    lock_is_inherited: bool = False  # that lock is one of flock(2), which a forked child of its holder holds, too

    @property
    def gpu_sync(self) -> bool:
        """Waits for its GPU: under NCCL this is how a waiting rank looks."""
        return self.where == "gpu_sync"

    @property
    def in_store_or_init(self) -> bool:
        """Rendezvous, store, new_group, creation of a communicator."""
        return self.where in ("init", "store")
