"""Tries the meeting place once, for who has nothing else to do: `config check` and doctor."""

import time

import msgspec
from msgspec.structs import replace

from stallwatch.encoding import msgpack_of
from stallwatch.errors import UsageError
from stallwatch.fleet.child import PlaceRequest
from stallwatch.fleet.exchange import Seen
from stallwatch.fleet.place_settings import Settings
from stallwatch.fleet.roster import MEND, RosterSeen
from stallwatch.node.children import module_of_ours, start_own
from stallwatch.node.worker import Worker


def try_place(settings: Settings, node: str, seconds: float = 15.0) -> list[str]:
    """Raise UsageError, saying what is wrong and what to do, when it cannot be used, or the nodes that are there all
    sign with another key than this `node`; return warnings."""
    worker = Worker(start_own(module_of_ours("stallwatch.fleet.child")))
    deadline = time.monotonic() + seconds
    seen: Seen | None = None
    try:
        worker.start()
        worker.ask(msgpack_of(PlaceRequest(settings, "check")), deadline)
        while seen is None and not worker.has_ended and worker.wait(deadline):
            for message in worker.messages():
                seen = msgspec.msgpack.decode(message, type=Seen)
    except OSError as error:
        raise UsageError(f"the meeting place cannot be tried: {error.strerror}") from error
    finally:
        worker.end(patience_seconds=0.0)
    if seen is None:
        raise UsageError(
            f"fleet.url {settings.url}: no answer within {seconds:.0f} s",
            "Is it up, and may this node reach it? A name that does not resolve looks the same.",
        )
    if seen.problem:
        raise UsageError(f"fleet: {seen.problem}", seen.advice)
    return _warnings(settings, node, seen.roster or RosterSeen())


def _warnings(settings: Settings, node: str, roster: RosterSeen) -> list[str]:
    others = replace(
        roster,
        alike=tuple(one for one in roster.alike if one != node),
        strangers=tuple(one for one in roster.strangers if one.node != node),
    )
    problem = others.problem()
    if problem and not others.alike:
        raise UsageError(f"fleet.key_file: {problem}", MEND)
    return [f"fleet.key_file: {problem}. {MEND}"] if problem else []
