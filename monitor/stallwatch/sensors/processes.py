"""A process as /proc shows it, read every tick: few files, kept open, and none that waits for the process' own locks
(cmdline and maps do; they are read once, or by a capture)."""

import os
from collections.abc import Iterator
from itertools import islice

from stallwatch.model.process import ChildProcess
from stallwatch.model.snapshot import ProcessSample
from stallwatch.node.procfs import (
    MOST_DESCENDANTS,
    ProcessDirectory,
    children_of,
    descendants,
    parse_file_limit,
    parse_io,
    parse_motion,
    parse_wchan,
    stat_of,
)
from stallwatch.sensors.busiest_threads import BusiestThreads

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Children of other threads than the main one are looked for every so many samples where nobody else knows them: a rank
# has hundreds of threads, and with eight of sixty each two thirds of all that was opened and read was for that.
_ALL_THREADS_EVERY = 10
_LAUNCHER_EVERY = 10
_FILES_EVERY = 10  # a rank has thousands of them

_OUR_TRACER = "py-spy"


class ProcessWatch:
    """One process, identified by pid and start ticks for as long as it is watched."""

    def __init__(self, pid: int, proc: str = "/proc") -> None:
        """Raise ProcessLookupError when there is no such process."""
        self.pid = pid
        self._proc = proc
        self.directory = ProcessDirectory(pid, proc)
        self.start_ticks = self.directory.stat().start_ticks
        self.command = ""  # its command line without secrets, once somebody has read it (sensors/slow_reads.py)
        self._samples = 0
        self._launcher_terminal = False
        self._open_files: tuple[int, int] | None = None
        self._thread_children: tuple[int, ...] = ()
        self._io_is_ours = True
        self._threads = BusiestThreads(self.directory)

    def sample(
        self,
        training_tid: int | None = None,
        most_children: int = MOST_DESCENDANTS,
        children: tuple[int, ...] | None = None,
        *,
        with_threads: bool = False,
    ) -> ProcessSample:
        """Raise ProcessLookupError when it is gone. What is not ours to read is None. `training_tid`: the thread that
        trains; None: the main thread. `children`: those that any of its threads has started, as far as that is known;
        None: its threads are asked. `with_threads`: what its busiest threads do is read as well."""
        stat = self.directory.stat()
        tracer_pid, wakes = self.directory.pauses()
        main_thread_state, main_thread_cpu_ticks = self._thread(training_tid)
        read_bytes, write_bytes = self._io()
        return ProcessSample(
            pid=self.pid,
            state=stat.state,
            tracer_pid=0 if self._looks_for_us(tracer_pid) else tracer_pid,
            command=self.command,
            wchan=None if stat.state == "R" else self._wchan(),  # who runs waits nowhere
            main_thread_state=main_thread_state,
            main_thread_cpu_ticks=main_thread_cpu_ticks,
            cpu_ticks=stat.cpu_ticks,
            reaped_ticks=stat.reaped_ticks,
            read_bytes=read_bytes,
            write_bytes=write_bytes,
            resident_bytes=stat.resident_pages * _PAGE_BYTES,
            has_terminal=stat.terminal != 0 or self._launcher_has_terminal(stat.parent_pid),
            children=tuple(self._children(min(most_children, MOST_DESCENDANTS), children)),
            open_files=self._files(),
            main_thread_wakes=wakes if training_tid in (None, self.pid) else None,
            main_thread_moved_bytes=self._main_thread_moved_bytes() if training_tid is None else None,
            busiest_threads=self._threads.read() if with_threads else (),
        )

    def _looks_for_us(self, tracer_pid: int) -> bool:
        """Whether it is the py-spy of a capture, which pauses the process for milliseconds: nobody debugs it. Who reads
        this and who captures are children of the same privileged side."""
        if not tracer_pid:
            return False
        try:
            tracer = stat_of(tracer_pid, self._proc)
            return tracer.command == _OUR_TRACER and stat_of(tracer.parent_pid, self._proc).parent_pid == os.getppid()
        except (OSError, ValueError):
            return False

    def _thread(self, tid: int | None) -> tuple[str, int]:
        """State and clock ticks of CPU of the thread that trains."""
        if tid is not None and tid != self.pid:
            try:
                return parse_motion(self.directory.read_again(f"task/{tid}/stat"))
            except ProcessLookupError:
                pass  # that thread has ended
        return parse_motion(self.directory.read_again(f"task/{self.pid}/stat"))

    def may_inspect(self) -> bool:
        """Whether the kernel tells us what only its owner may know (ptrace access). A zombie's files belong to root,
        for whom they still answer; who has the same ids as it has access without them."""
        self._io_is_ours = True
        return self._io() != (None, None) or self._has_our_ids()

    def _has_our_ids(self) -> bool:
        try:
            status = self.directory.status()
        except (OSError, ValueError):
            return False
        return set(status.uids[:3]) == {os.geteuid()} and set(status.gids[:3]) == {os.getegid()}

    def _io(self) -> tuple[int | None, int | None]:
        if not self._io_is_ours:
            return None, None
        try:
            return parse_io(self.directory.read_again("io"))
        except ProcessLookupError:
            raise
        except (OSError, ValueError):
            # Asked again only by may_inspect: a refusal does not change from tick to tick.
            self._io_is_ours = False
            return None, None

    def _main_thread_moved_bytes(self) -> int | None:
        if not self._io_is_ours:
            return None
        try:
            return sum(parse_io(self.directory.read_again(f"task/{self.pid}/io")))
        except (OSError, ValueError):
            return None

    def _wchan(self) -> str | None:
        try:
            return parse_wchan(self.directory.read_again("wchan"))
        except ProcessLookupError:
            raise
        except OSError:
            return None

    def _files(self) -> tuple[int, int] | None:
        if self._samples % _FILES_EVERY == 1:
            try:
                folder = f"{self._proc}/{self.pid}/fd"
                # procfs' own folder has their number as its size (Linux 6.2); a process may have a million.
                count = os.stat(folder).st_size if self._proc == "/proc" else 0
                count = count or len(os.listdir(folder))
                self._open_files = count, parse_file_limit(self.directory.read("limits"))
            except (OSError, ValueError):
                self._open_files = None
        return self._open_files

    def _launcher_has_terminal(self, parent_pid: int) -> bool:
        """torchrun gives each rank a session of its own: what is a person's terminal is seen only at its agent."""
        if self._samples % _LAUNCHER_EVERY == 0:
            try:
                self._launcher_terminal = stat_of(parent_pid, self._proc).terminal != 0
            except (OSError, ValueError):
                self._launcher_terminal = False
        return self._launcher_terminal

    def _children(self, most: int, known: tuple[int, ...] | None) -> Iterator[ChildProcess]:
        """Descendants, nearest first. Those of the main thread are seen at once."""
        if known is not None:
            self._thread_children = known
        elif self._samples % _ALL_THREADS_EVERY == 0:
            self._thread_children = children_of(self.pid, self._proc)
        self._samples += 1
        try:
            own = self.directory.children_of_main_thread()
        except (OSError, ValueError):  # it is gone, or the kernel was built without CONFIG_PROC_CHILDREN
            own = ()
        found = descendants(self.pid, self._proc, self._thread_children, threads=False, own=own)
        for pid, stat in islice(found, most):
            yield ChildProcess(pid, stat.state, stat.command, stat.cpu_ticks, reaped_ticks=stat.reaped_ticks)

    def close(self) -> None:
        """Close the process' directory."""
        self.directory.close()
