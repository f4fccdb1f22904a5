"""The hook's own thread: publishes the record, looks at the recorders' status, beats, answers dump requests.

It stops with the GIL and goes on when only the main thread is stuck: the pair of step and pulse tells the two apart.
"""

import os
import signal
import sys
from time import monotonic_ns
from typing import Optional

from stallwatch.hook import ending, facts, layout, native, recorder
from stallwatch.hook.group_names import GroupNames
from stallwatch.hook.guard import Guard
from stallwatch.hook.identity import world_of
from stallwatch.hook.publication import Publication, RankFile
from stallwatch.hook.rank_directory import remove_stale_files, write_private
from stallwatch.hook.requests import DumpRequest, Requests

LOOKS_PER_PULSE = 4
SPREAD_NS = layout.PUBLISH_NS  # all of it: a step as long as the distance of looks is seen at each of its moments
FORK_SECONDS = 0.2  # how long a fork may wait for our thread; it takes some 0.1 ms unless a disk is dead
# Who has answered is asked again within so much, as a rule, and where it stands its answer is what a verdict waits for:
# then it looks for requests all the time (70 µs each), not at the node's moments alone, which are up to half a second
# apart.
ASKED_AGAIN_NS = 6_000_000_000
REQUEST_SECONDS = 0.025
EXIT_SECONDS = 2.0  # how long the end of the process may wait for our threads: a dump in progress, a dead disk


def next_instant(now_ns: int) -> int:
    """Return the next moment at which the processes of this node look: the same for all of them, by CLOCK_MONOTONIC.

    Counters that were read at one moment can be compared: who has enqueued less is the one that the others wait for.
    Ranks that are disturbed together are also disturbed least: the others wait at the next collective anyway. The
    moments are spread (by the golden ratio, so evenly), never in step with the job: of steps as long as a look is from
    the next a steady one would always see the same part.
    """
    number = now_ns // layout.PUBLISH_NS  # the moment of one before is not later than now
    while True:
        instant_ns = number * layout.PUBLISH_NS + (number * 2_654_435_769 % 2**32) * SPREAD_NS // 2**32
        if instant_ns > now_ns:
            return instant_ns
        number += 1


def number_of(instant_ns: int) -> int:
    """Return the number of such a moment."""
    return instant_ns // layout.PUBLISH_NS


class Pulse:
    """The threads of one attached process."""

    def __init__(self, publication: Publication, guard: Guard) -> None:
        self.publication = publication
        self.recorder_set_by_us = False
        self._guard = guard
        self._requests = Requests()
        self._group_names = GroupNames()
        self._recorders: tuple[recorder.RecorderStatus, ...] = ()
        self._instant_ns = 0
        self._pulse_number = 0  # of the moment from which the next pulse is due
        self._is_tidy = False
        self._facts_of: tuple[object, ...] = ()
        self._stopping = native.Flag()
        self._handover = native.allocate_lock()
        self._thread: Optional[native.Thread] = None  # None: at rest
        self._dump_thread: Optional[native.Thread] = None
        self._asked_until_ns = 0  # who has answered lately
        self._steps_before = -1  # at the look before this one

    def start(self) -> None:
        """Publish for the first time and start the thread. Raise RuntimeError when no thread can be had."""
        self.publication.beat(monotonic_ns())
        self.publication.publish()
        self._instant_ns = next_instant(monotonic_ns())
        try:
            self._start_thread()
        except RuntimeError:
            self.publication.withdraw()
            raise

    def pause(self) -> None:
        """Before a fork: be no second thread, which could hold a lock that the child would wait for in vain."""
        thread = self._thread
        if thread is not None:
            self._stopping.set()
            thread.join(FORK_SECONDS)

    def resume(self) -> None:
        """After a fork, in the parent."""
        with self._handover:
            self._stopping.clear()
            if self._thread is None and self.publication.is_kept:
                self._start_thread()

    def _start_thread(self) -> None:
        self._thread = native.Thread(self._run)
        try:
            self._thread.start()
        except RuntimeError:
            self._thread = None
            raise

    def end(self) -> None:
        """Mark the end of the process; called while the interpreter shuts down. The threads are waited for because
        one that is killed inside torch can abort the process."""
        self._stopping.set()
        for thread in (self._thread, self._dump_thread):
            if thread is not None:
                thread.join(EXIT_SECONDS)
        self.publication.close(ending.exit_code())
        self._requests.remove_answers()

    def _run(self) -> None:
        # A signal that is sent to the process must interrupt the job's own threads, never this one.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._beat_until_told()
        except BaseException as error:
            # What no guard takes: SystemExit, of a file of the job's that is called json.py; an exception that a
            # debugger or a library throws into every thread. A record that nobody renews looks like a held GIL.
            self._guard.note(f"the pulse has ended: {type(error).__name__}: {error}")
            self._guard.run("withdrawal", self.publication.withdraw)
            self._thread = None

    def _beat_until_told(self) -> None:
        while True:
            # By the clock, so that a job which forks all the time is published none the less.
            if (self._rest() or not self.publication.is_kept) and self._is_told():
                return
            number, self._instant_ns = number_of(self._instant_ns), next_instant(monotonic_ns())
            self._guard.run("pulse", self._tick, number)
            if self._guard.is_off("pulse"):
                # A record that nobody renews would look like a process that holds its GIL.
                self._guard.run("withdrawal", self.publication.withdraw)

    def _is_told(self) -> bool:
        """Whether this thread ends, for good: resume() may have come since it was asked to."""
        with self._handover:
            if self._stopping.is_set() or not self.publication.is_kept:
                self._thread = None
                return True
        return False

    def _rest(self) -> bool:
        """Until the next of the node's moments, or until the thread is asked to end; return whether it is."""
        while True:
            now_ns = monotonic_ns()
            left_seconds = (self._instant_ns - now_ns) / 1e9
            if left_seconds <= REQUEST_SECONDS or now_ns >= self._asked_until_ns or not self._stands:
                return self._stopping.wait(left_seconds)
            if self._stopping.wait(REQUEST_SECONDS):
                return True
            self._guard.run("dump request", self._take_request)

    @property
    def _stands(self) -> bool:
        """Whether no step was counted since the look before this one; also where nobody counts them."""
        return self.publication.steps == self._steps_before

    def _tick(self, number: int) -> None:
        publication = self.publication
        is_pulse = number >= self._pulse_number
        at_ns = monotonic_ns()
        # Once a second: what recorders there are, and if gloo's has a group, which in most jobs with NCCL has none.
        asks_all = is_pulse or not self._recorders
        if asks_all:
            self._recorders = self._guard.run("recorders", recorder.statuses, self._recorders) or ()
        groups = self._guard.run("recorder status", recorder.group_counters, self._recorders, asks_all) or ()
        steps = publication.steps  # after the counters
        publication.look(number, at_ns, steps, groups)
        self._guard.run("training thread", publication.training.look, steps)
        if is_pulse:
            publication.beat(at_ns)  # its time is that of the counters
            self._pulse_number = number - number % LOOKS_PER_PULSE + LOOKS_PER_PULSE
            publication.groups = groups
            self._guard.run("identity", self._refresh_world)
            self._guard.run("group names", self._group_names.learn, groups)
            self._guard.run("facts", self._write_facts)
            if not self._is_tidy:
                self._is_tidy = True
                self._guard.run("stale files", self._remove_stale_files)
        publication.publish()
        # Of who steps it is asked with each pulse: a cold system call is a tenth of what a look takes.
        if is_pulse or steps == self._steps_before or at_ns < self._asked_until_ns:
            self._guard.run("dump request", self._take_request)
        self._steps_before = steps

    def _take_request(self) -> None:
        publication = self.publication
        if publication.file is None or publication.dump_started_ns:
            return
        request = self._requests.poll(publication.file)
        if request is not None:
            publication.dump_started_ns = monotonic_ns()
            self._dump_thread = native.Thread(self._answer, publication.file, request)
            self._dump_thread.start()

    def _answer(self, file: RankFile, request: DumpRequest) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        publication = self.publication
        # Said before it starts: the dump may hold the GIL for seconds, and the pulse stands still meanwhile.
        publication.publish()
        self._stopping.wait(request.delay_seconds())  # ends with the process
        refused_errno = 0
        try:
            self._requests.answer(file, request)
        except Exception as error:
            if isinstance(error, OSError):
                refused_errno = error.errno or 5  # the file, not torch: the answer must not look empty
            self._guard.note(f"dump: {type(error).__name__}: {error}")
        publication.refused_errno = refused_errno
        publication.answered_request = request.request_id
        self._asked_until_ns = monotonic_ns() + ASKED_AGAIN_NS
        publication.dump_started_ns = 0
        publication.publish()

    def _refresh_world(self) -> None:
        """Where no launcher set a rank at attach(), torch.distributed says it once it is initialised."""
        publication = self.publication
        if publication.rank_is_given:
            return
        found = recorder.default_world()
        if found is None:
            return
        rank, world_size, store = found
        late = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world_size)}
        world = world_of(late, publication.process, store)
        if world != publication.world:
            publication.move(world)

    def _write_facts(self) -> None:
        """Once, and again when torch is there, a group has got its name, or the record has another place."""
        file, groups = self.publication.file, dict(self._group_names.names)
        facts_of = (file, hasattr(sys.modules.get("torch.distributed"), "is_initialized"), len(groups))
        if file is None or facts_of == self._facts_of:
            return
        import json

        argv = getattr(sys, "orig_argv", sys.argv)  # Python 3.10
        collected = {**facts.collect(os.environ, argv, self.recorder_set_by_us), "process_groups": groups}
        write_private(file.facts_path, json.dumps(collected).encode("utf-8"))
        self._facts_of = facts_of

    def _remove_stale_files(self) -> None:
        if self.publication.file is not None:
            remove_stale_files(self.publication.file.directory)
