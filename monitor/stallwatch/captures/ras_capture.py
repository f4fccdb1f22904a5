"""NCCL's RAS report of a node in the bundle: who is asked, by which process, and where the answer lies."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from stallwatch.bundle.writer import write_atomically
from stallwatch.captures.folder import NotCaptured, name_of_look
from stallwatch.captures.nccl_ras import RasAnswer, RasAsk
from stallwatch.captures.ras_targets import ras_ask
from stallwatch.model.evidence import Attempt
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import RankSample

_ANSWERS = msgspec.json.Decoder(tuple[RasAnswer, ...])

# Its own collection from other nodes ends within this; it is the last thing that a look waits for.
_SECONDS = 4.0
_EXIT_SECONDS = 1.0


def may_use_nccl(targets: Iterable[RankSample]) -> bool:
    """Whether any rank may have communicators of NCCL: a hook knows, without one nobody does."""
    return any(
        not isinstance(rank.heartbeat, Known) or any(group.recorder == "nccl" for group in rank.heartbeat.value.groups)
        for rank in targets
        if rank.end is None
    )


class Reader(NamedTuple):
    process: "subprocess.Popen[bytes]"
    line: socket.socket  # the capture's end


def start_reader(targets: Iterable[RankSample], mode: str) -> Reader | None:
    """Start the process that may use the network, and nothing else: whoever captures has none. None where there is
    nobody to ask. Raise OSError."""
    if mode == "off" or not may_use_nccl(targets):
        return None
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-P", "-m", "stallwatch.captures.nccl_ras", str(_SECONDS)]
        try:
            process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=theirs.fileno(), start_new_session=True)
        except OSError:
            ours.close()
            raise
    return Reader(process, ours)


class RasCapture:
    """Finds out whom to ask, which takes the capture's rights, and has the reader ask, at the other end of `line`."""

    def __init__(
        self, targets: Iterable[RankSample], folder: Path, look: int, mode: str, line: socket.socket | None
    ) -> None:
        self._targets = tuple(rank for rank in targets if rank.end is None)
        self._folder = folder
        self._look = look
        self._mode = mode
        self._line = line

    def take(self) -> list[Attempt]:
        """Ask every service that the ranks' environments name, and keep the reports. Return what was tried."""
        asked_ns = time.monotonic_ns()
        if self._line is None:
            return []
        asks: dict[RasAsk, None] = {}
        refusals: dict[str, None] = {}
        seen: set[tuple[str, int, int | None]] = set()
        for sample in self._targets:
            try:
                ask = ras_ask(sample, self._mode)
            except NotCaptured as reason:
                refusals[f"rank {sample.rank}: {reason}. {reason.help}".strip()] = None
                continue
            network = None if ask.pid is None else os.stat(f"/proc/{ask.pid}/ns/net").st_ino
            if (key := (ask.host, ask.port, network)) not in seen:
                seen.add(key)
                asks[ask] = None
        attempts = [Attempt("nccl_ras", self._look, asked_ns, False, "; ".join(list(refusals)[:3]))] if refusals else []
        try:
            answers = self._ask(tuple(asks))
        except NotCaptured as error:
            return [*attempts, Attempt("nccl_ras", self._look, asked_ns, False, str(error))]
        return attempts + [self._keep(answer, first=n == 0, asked_ns=asked_ns) for n, answer in enumerate(answers)]

    def abandon(self) -> None:
        if self._line is not None:
            self._line.close()

    def _ask(self, asks: tuple[RasAsk, ...]) -> tuple[RasAnswer, ...]:
        assert self._line is not None
        said = bytearray()
        deadline = time.monotonic() + _SECONDS + _EXIT_SECONDS
        try:
            self._line.settimeout(_SECONDS + _EXIT_SECONDS)
            if asks:
                self._line.sendall(msgspec.json.encode(asks))
            self._line.shutdown(socket.SHUT_WR)  # its end of file
            while data := self._line.recv(1 << 16):
                said += data
                self._line.settimeout(max(deadline - time.monotonic(), 0.001))
        except TimeoutError as error:
            raise NotCaptured(f"NCCL's RAS service did not answer within {_SECONDS:.0f} s") from error
        except OSError as error:
            raise NotCaptured(f"the process that asks NCCL's RAS has ended ({error.strerror})") from error
        finally:
            self._line.close()
        if not asks:
            return ()
        try:
            answers = _ANSWERS.decode(bytes(said))
        except msgspec.MsgspecError as error:
            raise NotCaptured("the process that asks NCCL's RAS failed") from error
        return tuple(sorted(answers, key=lambda answer: not answer.report))

    def _keep(self, answer: RasAnswer, *, first: bool, asked_ns: int) -> Attempt:
        if not answer.report:
            return Attempt("nccl_ras", self._look, asked_ns, False, f"port {answer.port}: {answer.problem}")
        kind = "json" if answer.report.lstrip()[:1] in (b"{", b"[") else "txt"
        # One service is the rule; those of more ports (several jobs in one container) lie beside it.
        name = f"nccl_ras.{kind}" if first else f"nccl_ras.{answer.port}.{kind}"
        write_atomically(self._folder / name_of_look(name, self._look), answer.report)
        return Attempt(
            "nccl_ras", self._look, asked_ns, True, f"port {answer.port}: {len(answer.report)} bytes, {kind}"
        )
