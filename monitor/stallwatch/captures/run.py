"""One look at the given ranks, taken by a child process that the daemon is willing to lose."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stallwatch.captures.ras_capture import start_reader
from stallwatch.captures.spec import CaptureState, Spec
from stallwatch.config import Config
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import GpuSample, RankSample
from stallwatch.node.children import Child, Start, start_here
from stallwatch.node.memory_file import memory_file

_STATE = msgspec.json.Decoder(CaptureState)

__all__ = ["CaptureRun", "CaptureState"]

# A child that is told to end kills its py-spys and lets the ranks go on; then it is ended by force.
_END_SECONDS = 2.0


class CaptureRun:
    """Starts at construction; the bundle folder is valid at every moment, each file appears whole."""

    def __init__(
        self,
        bundle: Path,
        targets: Sequence[RankSample],
        look: int,
        config: Config,
        *,
        node: str,
        gpus: Sequence[tuple[GpuSample, ...]] = (),
        command: Sequence[str] | None = None,
        start: Start = start_here,
    ) -> None:
        """Begin look number `look` (1, 2, …) at `targets`, writing below `bundle`.

        `gpus` are the samples of the last snapshots, oldest first; `command` replaces the child in tests; `start`
        starts it, with the rights that it needs. Raise OSError when no process can be started.
        """
        self._targets = tuple(targets)
        self._deadline = time.monotonic() + config.capture.seconds
        self._seconds = config.capture.seconds
        self._state = CaptureState(done=False, evidence_complete=False)
        self._buffer = b""
        self._ended = False
        self._told_to_end = False
        self._start = start
        self._releasing: Child | None = None
        spec = Spec(str(bundle), look, node, self._targets, tuple(gpus), config.capture)
        read, write = os.pipe()
        self._stdout = open(read, "rb", buffering=0)  # noqa: SIM115  closed at the child's end
        # It talks to the network and reads nobody's process; the child that does has none, and a line to it.
        self._ras = start_reader(self._targets, config.capture.nccl_ras)
        try:
            with memory_file(msgspec.json.encode(spec)) as file:
                self._process = start(
                    command or [sys.executable, "-P", "-m", "stallwatch.captures.child"],
                    file.fileno(),
                    write,
                    () if self._ras is None else (self._ras.line.fileno(),),
                )
        except OSError:
            self._stdout.close()
            self._end_reader()
            raise
        finally:
            os.close(write)
            if self._ras is not None:
                self._ras.line.close()
        os.set_blocking(self._stdout.fileno(), False)

    def poll(self) -> CaptureState:
        """Return at once with what is known so far; end the child when it is past `capture.seconds`."""
        if self._ended:
            return self._settled()
        self._read()
        code = self._process.poll()
        now = time.monotonic()
        if code is not None:
            self._read()  # what it said between our last look and its end
            self._end("" if self._state.done and code == 0 else f"the capture ended early (exit code {code})")
        elif now > self._deadline + _END_SECONDS:
            self._kill()
            self._end(self._late())
        elif now > self._deadline and not self._told_to_end:
            self._told_to_end = True
            self._process.terminate()
        return self._settled()

    def cancel(self) -> None:
        """Stop now and leave no rank stopped; what was written stays. Waits for that, some seconds at most."""
        if not self._ended:
            self._process.terminate()
            try:
                self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._kill()
            self._end("cancelled")
        if self._releasing is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._releasing.wait(_END_SECONDS)

    def _settled(self) -> CaptureState:
        """The state, done only when the child is gone and no rank can be left stopped by it."""
        released = self._releasing is None or self._releasing.poll() is not None
        return msgspec.structs.replace(self._state, done=self._ended and released)

    def _late(self) -> str:
        return f"the capture did not end within {self._seconds:.0f} s"

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _end(self, problem: str) -> None:
        self._ended = True
        self._stdout.close()
        self._end_reader()
        if problem:
            self._state = msgspec.structs.replace(self._state, problem=self._late() if self._told_to_end else problem)
            self._release()

    def _release(self) -> None:
        """Whatever became of the child: no rank that ran before stays stopped. By a process, for it may wait."""
        held = [
            f"{rank.pid}:{rank.start_ticks}"
            for rank in self._targets
            if isinstance(rank.process, Known) and rank.process.value.state not in "Tt"
        ]
        if held:
            command = [sys.executable, "-P", "-m", "stallwatch.captures.release", *held]
            with open(os.devnull, "rb") as nothing:
                self._releasing = self._start(command, nothing.fileno(), None)

    def _end_reader(self) -> None:
        if self._ras is not None:
            self._ras.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._ras.process.wait(_END_SECONDS)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._stdout.fileno(), 1 << 16):
                self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            with contextlib.suppress(msgspec.MsgspecError):
                self._state = _STATE.decode(line)
