"""Tries the meeting place once, for who has nothing else to do: `config check` and doctor."""

import time
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from stallwatch.encoding import msgpack_of
from stallwatch.errors import UsageError
from stallwatch.fleet.child import PlaceRequest
from stallwatch.fleet.exchange import Seen
from stallwatch.fleet.place_settings import Settings
from stallwatch.fleet.roster import MEND, RENAME, DaemonId, Greeting, RosterSeen, doubled, this_daemon
from stallwatch.node.children import module_of_ours, start_own
from stallwatch.node.worker import Worker


class PlaceTrial(NamedTuple):
    """What came of a trial."""

    warnings: list[str]
    well: str  # where, and who is met there


def try_place(settings: Settings, node: str, seconds: float = 15.0) -> PlaceTrial:
    """Raise UsageError, saying what is wrong and what to do, when it cannot be used, the nodes that are there all
    sign with another key than this `node`, or another machine has its name."""
    worker = Worker(start_own(module_of_ours("stallwatch.fleet.child")))
    deadline = time.monotonic() + seconds
    seen: Seen | None = None
    try:
        worker.start()
        worker.ask(msgpack_of(PlaceRequest(settings, "check", greeting=Greeting(about=node))), deadline)
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
    return _trial(settings, node, seen.roster or RosterSeen())


def _trial(settings: Settings, node: str, roster: RosterSeen) -> PlaceTrial:
    twin = roster.namesake
    if twin is not None and (other := twin.knows or (twin.daemon if _is_elsewhere(twin.daemon) else None)):
        raise UsageError(f"daemon.node: {doubled(node, other)}", RENAME)
    others = replace(
        roster,
        alike=tuple(one for one in roster.alike if one != node),
        strangers=tuple(one for one in roster.strangers if one.node != node),
    )
    problem = others.problem()
    if problem and not others.alike:
        raise UsageError(f"fleet.key_file: {problem}", MEND)
    return PlaceTrial([f"fleet.key_file: {problem}. {MEND}"] if problem else [], others.well(settings.url))


def _is_elsewhere(daemon: DaemonId) -> bool:
    """Another boot of the same host is this machine before it was booted."""
    here = this_daemon()
    return daemon.machine != here.machine and (daemon.host, daemon.address) != (here.host, here.address)
