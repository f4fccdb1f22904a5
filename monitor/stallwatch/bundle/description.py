"""bundle.json: who is who in an incident. Everything in it is optional, and what is ill-typed is as good as absent."""

from typing import Any

import msgspec

from stallwatch.bundle.bounds import is_rank
from stallwatch.formats.tolerant import decode_json, integer, items, mapping, text
from stallwatch.formats.unreadable import Unreadable


class Description(msgspec.Struct, frozen=True):
    """bundle.json: the job, its ranks by host, and when they were looked at. Missing fields are None or empty."""

    world_size: int | None = None
    backend: str | None = None
    incident_id: str | None = None
    training_job: str | None = None
    epoch: str | None = None
    owner: str | None = None
    nodes: dict[str, tuple[int, ...]] = {}
    pids: dict[int, int] = {}
    captured_at_ns: dict[int, int] = {}
    last_step: dict[int, int] = {}

    def host_of(self, rank: int) -> str | None:
        """The host on which a rank ran; None where the bundle does not say."""
        return next((host for host, ranks in self.nodes.items() if rank in ranks), None)


def parse(data: bytes) -> Description:
    """Raise Unreadable when it is not a JSON object."""
    said = decode_json(data)
    if type(said) is not dict:
        raise Unreadable("it is not a description of a bundle")
    nodes = {
        host: tuple(sorted({rank for rank in map(integer, items(ranks)) if rank is not None and is_rank(rank)}))
        for host, ranks in mapping(said.get("nodes")).items()
    }
    world_size = integer(said.get("world_size"))
    return Description(
        world_size=world_size if world_size and world_size > 0 else None,
        backend=text(said.get("backend")) or None,
        incident_id=text(said.get("incident_id")),
        training_job=text(said.get("training_job")),
        epoch=text(said.get("epoch")),
        owner=text(said.get("owner")),
        nodes=nodes,
        pids=_by_rank(said.get("pids")),
        captured_at_ns=_by_rank(said.get("captured_at_ns")),
        last_step=_by_rank(said.get("last_step")),
    )


def _by_rank(value: Any) -> dict[int, int]:
    pairs = ((integer(rank), integer(number)) for rank, number in mapping(value).items())
    return {rank: number for rank, number in pairs if rank is not None and is_rank(rank) and number is not None}
