"""What is published about this process, and its one file: made, kept alive, moved, closed.

A record is written whole by `pwrite`, never through a mapping. A store into a mapped file that somebody truncated, or
that a full tmpfs cannot back, kills the process with SIGBUS, and no `try` catches that; the directory belongs to
others, so nothing prevents it (tried: mode 0444 and leases do not bind root, seals exist only on nameless memfds). The
step therefore counts in private memory (beat.py) and the pulse thread publishes: truncation, unlinking and full disks
are then ordinary errors of one thread, and the training thread never touches a file system. The price: what a reader
sees is at most layout.PUBLISH_NS (a quarter of a second) old, which are the steps that a SIGKILL takes with it.

The file is opened anew for each write: a descriptor that is kept could be closed by the job (daemonising libraries
close all they did not open) and its number be given to a file of the job's.
"""

import os
from time import monotonic_ns
from typing import Optional

from stallwatch.hook import layout, native
from stallwatch.hook.beat import Phases, ReadSteps
from stallwatch.hook.ending import uncaught_exception
from stallwatch.hook.guard import Guard
from stallwatch.hook.identity import ProcessIdentity, World
from stallwatch.hook.image import Groups, Image, kept
from stallwatch.hook.rank_directory import CREATE, choose_directory, is_read, strangers
from stallwatch.hook.training_thread import TrainingThread

RETRY_NS = 2_000_000_000  # a missing directory or a full disk is tried again this often
_STEP = layout.WORD["step"]  # the first of the words that change while a process is the same rank
_PLACES = {recorder: 2 * place for place, recorder in enumerate(layout.RECORDERS)}  # of its two counters in a look
LOCK_SECONDS = 2.0  # the end of the process waits no longer for a thread that a dead file system holds


class RankFile:
    """One process' record, and the place of its other files."""

    def __init__(self, directory: str, rank: int, process: ProcessIdentity) -> None:
        """Create the file with its space reserved. Raise OSError."""
        self.directory = directory
        self.rank = rank
        self._writer = layout.writer_words(*process[:3])
        # A pid is not enough: containers that share a directory have the same small ones, and anybody may hold a name.
        self.key = f"{process.pid}-{layout.new_mark()}"
        self.path = self.path_of(layout.record_name(rank, self.key))
        self.facts_path = self.path_of(layout.facts_name(rank, self.key, layout.new_mark()))
        self.request_path = layout.request_path(directory, rank, self.key)
        # Everybody may read it: the daemon's sensor has no rights over other users' files.
        descriptor = os.open(self.path, CREATE, 0o644)
        try:
            os.fchmod(descriptor, 0o644)
            os.posix_fallocate(descriptor, 0, layout.RECORD_BYTES)
            self._inode = _inode(os.fstat(descriptor))
        except OSError:
            os.unlink(self.path)
            raise
        finally:
            os.close(descriptor)

    def write(self, image: "bytes | bytearray") -> None:
        """Write the whole record. Raise FileNotFoundError when the file is no longer the one we made, or not ours any
        more, OSError when it cannot be written."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except PermissionError:
            raise FileNotFoundError(f"{self.path} was given to another user") from None
        try:
            if not self._is_ours(descriptor):
                raise FileNotFoundError(f"{self.path} was replaced")
            written = os.pwrite(descriptor, image, 0)
        finally:
            os.close(descriptor)
        if written != len(image):
            raise OSError(f"only {written} of {len(image)} bytes fit into {self.path}")

    def _is_ours(self, descriptor: int) -> bool:
        """By its first bytes, where they are a record's: nobody else's file begins so. Else by its inode, which says
        nothing where there is a record: disks reuse the number at once."""
        try:
            writer = layout.writer_of(os.pread(descriptor, layout.HEAD_BYTES, 0))
        except OSError:  # a pipe
            writer = None
        return writer == self._writer if writer is not None else _inode(os.fstat(descriptor)) == self._inode

    def path_of(self, name: str) -> str:
        """Return the path of a file of this name beside the record."""
        return os.path.join(self.directory, name)

    def remove(self) -> None:
        """Remove the record and the facts beside it."""
        for path in (self.path, self.facts_path):
            try:
                os.unlink(path)
            except OSError:
                pass


def _inode(status: os.stat_result) -> "tuple[int, int]":
    return status.st_dev, status.st_ino


class Publication:
    """The words of the record and the file that holds them. Any of our threads may publish."""

    def __init__(
        self,
        process: ProcessIdentity,
        world: World,
        is_child: bool,
        read_steps: ReadSteps,
        phases: Phases,
        guard: Guard,
        training: TrainingThread,
    ) -> None:
        self.process = process
        self.world = world
        self.rank_is_given = world.is_ranked  # by a launcher, which is believed before torch.distributed
        self.is_child = is_child
        self.file: Optional[RankFile] = None
        self.is_kept = True  # False: withdrawn, or a forked child's copy
        self.counts_steps = False  # the job says that it will call step(): 0 is then a number and not "unknown"
        self.groups: Groups = ()
        self.dump_started_ns = 0
        self.answered_request = layout.UNKNOWN
        self.refused_errno = 0
        self.pulse_ns = 0
        self._image = Image()
        self._said: Optional[tuple[World, str, str]] = None  # what is in the image of these
        self._said_groups: Groups = ()
        self._kept = 0
        self._look: Optional[tuple[int, ...]] = None  # the newest, until it is published
        self._pulse_count = 0
        self._attached_ns = monotonic_ns()
        self._notify = os.environ.get("STALLWATCH_NOTIFY", "").strip().lower() not in ("off", "0", "no", "false")
        self._read_steps = read_steps
        self._phases = phases
        self._guard = guard
        self.training = training
        self._retry_ns = 0
        self._lock = native.allocate_lock()

    @property
    def steps(self) -> int:
        """How many were counted so far."""
        return self._read_steps()[0]

    def beat(self, at_ns: int) -> None:
        """Count one step of training; `at_ns` is its CLOCK_MONOTONIC time."""
        self._pulse_count += 1
        self.pulse_ns = at_ns

    def look(self, number: int, at_ns: int, steps: int, groups: Groups) -> None:
        """Keep what the counters say at one of the node's common moments. Not in a phase, which is its own kind of
        time, nor while a dump of ours holds the GIL."""
        if not groups or self.dump_started_ns or self._phases.current()[0]:
            return
        counts = [0, 0] * len(layout.RECORDERS)
        for recorder, _, enqueued, completed in groups:
            place = _PLACES[recorder]
            if enqueued > 0:
                counts[place] += enqueued
            if completed > 0:
                counts[place + 1] += completed
        step = steps if steps or self.counts_steps else layout.UNKNOWN
        self._look = (number, at_ns, step, *counts)

    def publish(self) -> None:
        """Write the record, in a new file where there is none or ours is gone. Never raises OSError: disks and
        directories may fail for ever, which is said once and tried again."""
        with self._lock:
            directory = "" if self.file is None else self.file.directory
            try:
                if self.file is not None:
                    try:
                        self.file.write(self._filled())
                        return
                    except FileNotFoundError:
                        self.file = None
                elif not self.is_kept or monotonic_ns() < self._retry_ns:
                    return
                directory = choose_directory(os.environ)
                made = RankFile(directory, self.world.rank, self.process)
                made.write(self._filled())
                self.file = made
            except OSError as error:
                self.file = None
                self._retry_ns = monotonic_ns() + RETRY_NS
                whose = strangers(directory) if directory else ""
                why = f"{error}; {whose}" if whose else str(error)
                self._guard.note(f"no record of this rank: {why}; tried again every {RETRY_NS // 1_000_000_000} s")

    def move(self, world: World) -> None:
        """This process turned out to be another rank: publish under its name."""
        with self._lock:
            old, self.file = self.file, None
            self.world, self.is_child = world, False
            self._retry_ns = 0
        if old is not None:
            old.remove()
        self.publish()

    def describe(self) -> str:
        """For people: who this is, where its record is, whether a daemon reads there now."""
        file, world = self.file, self.world
        if file is None:
            return self._guard.last or "no record of this rank: it was withdrawn"
        what = f"rank {world.rank} of {world.training_job}, record {file.path}; "
        if whose := strangers(file.directory):
            what += f"{whose}; "
        if is_read(file.directory):
            return f"{what}a daemon reads it"
        return f"{what}no daemon reads {file.directory} now: `stallwatch daemon` does"

    def close(self, exit_code: Optional[int]) -> None:
        """Publish the end, where there is still a place for it. Nothing can be published after it: the lock is never
        released."""
        self.is_kept = False
        if self._lock.acquire(timeout=LOCK_SECONDS) and self.file is not None:
            code = layout.UNKNOWN if exit_code is None else exit_code
            try:
                self.file.write(self._filled(ended=1, exit_code=code, ended_ns=monotonic_ns()))
            except OSError:
                pass  # a directory that was removed before the job's end is nobody's trouble

    def withdraw(self) -> None:
        """Remove the record for good: better none than one that is not kept."""
        with self._lock:
            old = self.file
            self.abandon()
            if old is not None:
                old.remove()

    def abandon(self) -> None:
        """In a forked child: the file is the parent's."""
        self.file = None
        self.is_kept = False

    def _filled(self, ended: int = 0, exit_code: int = layout.UNKNOWN, ended_ns: int = 0) -> bytearray:
        """The record as it is now; the lock is held until it is written."""
        image, groups, look = self._image, self.groups, self._look
        steps, times = self._read_steps(image.steps)
        if times:
            image.fill_ring(steps, times)
        if look is not None:
            image.fill_look(look)
            self._look = None
        phase, phase_since_ns = self._phases.current()
        ident, native_id = self.training.ids()
        said = self.world, phase, uncaught_exception()
        if said != self._said:
            self._fill_names(*said)
            self._said = said
        if groups is not self._said_groups:
            image.fill_groups(groups)
            self._said_groups, self._kept = groups, kept(groups)
        # In the order of layout.WORDS.
        words = (
            steps if steps or self.counts_steps else layout.UNKNOWN,
            phase_since_ns,
            self._pulse_count,
            self.pulse_ns,
            self.dump_started_ns,
            self.answered_request,
            ended,
            exit_code,
            ended_ns,
            self._kept,
            len(groups) - self._kept,
            self._attached_ns,
            self._guard.errors,
            ident or layout.UNKNOWN,
            native_id or layout.UNKNOWN,
            self.training.frame_changes,
            self.refused_errno,
        )
        image.fill_words(_STEP, words)
        return image.sealed()

    def _fill_names(self, world: World, phase: str, exception: str) -> None:
        child, notify = int(self.is_child), int(self._notify)
        words = (layout.MAGIC, layout.VERSION, 0, *self.process[:3], *world[:4], child, notify)
        self._image.fill_words(0, words)
        self._image.fill_texts((phase, self.process.node, world.training_job, world.epoch, exception))
