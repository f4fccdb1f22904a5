"""NCCL's RAS report of a node in the bundle: a capture finds out whom to ask, which takes its rights, and the daemon's
side, which has a network, asks."""

import time
from collections.abc import Iterable, Sequence

import msgspec

from stallwatch.captures.channel import NODE, Asks, AttemptNote, Sending
from stallwatch.captures.folder import NotCaptured
from stallwatch.captures.nccl_ras import RasAnswer, RasAsk
from stallwatch.captures.ranks_of_root import refusal
from stallwatch.captures.ras_targets import all_answer, answers_for_others, ras_ask
from stallwatch.config_sections import CaptureSection
from stallwatch.encoding import json_of
from stallwatch.formats.tolerant import NOT_JSON
from stallwatch.model.evidence import Attempt
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import RankSample
from stallwatch.node.children import module_of_ours
from stallwatch.node.procfs import namespace_of
from stallwatch.node.run_once import run_once

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


class RasCapture:
    """NCCL's RAS of the ranks that live, asked once for each communicator's port."""

    def __init__(self, targets: Sequence[RankSample], look: int, section: CaptureSection, sending: Sending) -> None:
        living = [rank for rank in targets if rank.end is None]
        self._targets = tuple(rank for rank in living if not refusal(rank, section.ranks_of_root))
        self._all_may_be_asked = len(self._targets) == len(living)
        self._all_answer = all_answer(targets)
        self._look = look
        self._mode = section.nccl_ras
        self._sending = sending

    def take(self) -> None:
        """Have every service asked that the ranks' environments name, and note whose is not."""
        if self._mode == "off" or not may_use_nccl(self._targets):
            return
        asked_ns = time.monotonic_ns()
        services: dict[tuple[str, int, int | None], tuple[RasAsk, list[int]]] = {}
        refusals: dict[str, None] = {}
        for sample in self._targets:
            try:
                ask = ras_ask(sample, self._mode, all_answer=self._all_answer)
            except NotCaptured as reason:
                refusals[f"rank {sample.rank}: {reason}. {reason.help}".strip()] = None
                continue
            network = None if ask.pid is None else namespace_of(ask.pid, "net")
            services.setdefault((ask.host, ask.port, network), (ask, []))[1].append(sample.pid)
        asks = []
        for ask, pids in services.values():
            if not refusals and self._all_may_be_asked and answers_for_others(ask.port, pids):
                refusals[
                    f"RAS on port {ask.port} is offered by a process that is no rank of this job: it may tell of "
                    "another job. Give each job of a node a port of its own, as NCCL_RAS_ADDR=localhost:28029"
                ] = None
            else:
                asks.append(ask)
        if refusals:
            said = "; ".join(list(refusals)[:3])
            self._sending.send(AttemptNote(NODE, Attempt("nccl_ras", self._look, asked_ns, False, said)))
        if asks:
            self._sending.send(Asks(asked_ns, tuple(asks)))


def ask(asks: Sequence[RasAsk]) -> tuple[RasAnswer, ...]:
    """On the daemon's side: have a process ask that can reach nothing else while it listens, and return the answers,
    reports first. Raise NotCaptured, or OSError when it cannot be started."""
    command = module_of_ours("stallwatch.captures.nccl_ras", str(_SECONDS))
    ended = run_once(command, _SECONDS + _EXIT_SECONDS, json_of(asks), leads_group=False)
    if ended is None:
        raise NotCaptured(f"NCCL's RAS service did not answer within {_SECONDS:.0f} s")
    try:
        answers = _ANSWERS.decode(ended.output)
    except NOT_JSON as error:
        raise NotCaptured("the process that asks NCCL's RAS failed") from error
    return tuple(sorted(answers, key=lambda answer: not answer.report))
