"""What a node says of its ranks, and how much of what others say is believed."""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from stallwatch.diagnosis.node_summary import NodeSummary
from stallwatch.encoding import msgpack_of
from stallwatch.fleet.place import Key
from stallwatch.fleet.seal import SealBroken, unseal
from stallwatch.formats.tolerant import NOT_JSON
from stallwatch.model.summary import SCHEMA_VERSION

_MOST_RANKS = 1024  # of one node
_MOST_CAVEATS = 8
MOST_NAME = 64  # of a node, in a sentence
MOST_WORLD = 1 << 20  # ranks that a job may have; and, all together, that a node may list as members of its groups


class NodeWord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One node's word in an incident: about ranks that run on it, and nothing else."""

    node: str
    ranks: tuple[int, ...]
    summary: NodeSummary
    complete: bool = False  # no further look there could add anything
    captured_at: str = ""  # ISO 8601
    tool_version: str = ""
    put_wall_ns: int = 0  # of its own clock, when it was put (exchange); 0: not said


class Believed(NamedTuple):
    """What is taken of nodes' words, and why others are not."""

    words: tuple[NodeWord, ...]
    caveats: tuple[str, ...]
    unknown: tuple[int, ...]  # ranks that several nodes claim


_WORD = msgspec.msgpack.Decoder(NodeWord)
encode_word = msgpack_of


def believed(sealed: Mapping[str, bytes], secret: bytes, key: Key) -> Believed:
    """Given what stands under each node's name, return what may be merged: of each node what is signed, of a version
    that we read and about its own ranks; of a rank that two nodes claim, nothing."""
    words, caveats = [], []
    for name in sorted(sealed):
        try:
            words.append(_word(name, sealed[name], secret, key))
        except SealBroken as error:
            caveats.append(f"the summary of node {name[:MOST_NAME]} is not used: {error}")
    claims = Counter(rank for word in words for rank in word.ranks)
    twice = {rank for rank, times in claims.items() if times > 1}
    if twice:
        names = [word.node[:MOST_NAME] for word in words if twice & set(word.ranks)]
        caveats.append(f"nodes {', '.join(names[:4])} each say that rank {min(twice)} runs there: nobody is believed")
    if len(caveats) > _MOST_CAVEATS:
        caveats = [*caveats[:_MOST_CAVEATS], f"and {len(caveats) - _MOST_CAVEATS} more of these"]
    return Believed(tuple(_about_own(word, twice) for word in words), tuple(caveats), tuple(sorted(twice)))


def _word(name: str, sealed: bytes, secret: bytes, key: Key) -> NodeWord:
    try:
        word = _WORD.decode(unseal(sealed, secret, "summary", key, name))
    except NOT_JSON as error:
        raise SealBroken(f"it is of another form ({error}); are all nodes of one version?") from error
    if word.summary.schema_version > SCHEMA_VERSION:
        raise SealBroken(
            f"it is of version {word.summary.schema_version}, and this node reads {SCHEMA_VERSION}: update it"
        )
    if len(word.ranks) > _MOST_RANKS:
        raise SealBroken(f"no node has {len(word.ranks)} ranks")
    if wrong := _cannot_be(word.summary):
        raise SealBroken(wrong)
    return word


def _cannot_be(summary: NodeSummary) -> str:
    """What is said there and cannot be, a clause; "" for nothing. What would take memory without end, or refers to what
    is not there: it would cost all nodes their verdict."""
    if summary.world_size is not None and not 0 < summary.world_size <= MOST_WORLD:
        return f"no job has {summary.world_size} ranks"
    runs = [run for members in summary.members for run in members]
    if any(run.step < 1 or run.start < 0 for run in runs):
        return "members of a group are listed that are no ranks"
    if sum(len(range(run.start, run.stop, run.step)) for run in runs) > MOST_WORLD:
        return "more members of groups are listed than a job has"
    for digest in summary.ranks:
        streams = digest.summary.streams
        if any(stream.ranks and stream.ranks[0] < -len(summary.members) for stream in streams):
            return "members of a group are not listed"
        if any(len(stream.calls) % 2 for stream in streams):
            return "half a call is told"
        used = [one.stream for one in (*digest.summary.pending, *digest.summary.issued)]
        used += [one.stream for one in digest.summary.pairs]
        if any(not 0 <= stream < len(streams) for stream in used):
            return f"rank {digest.summary.rank} waits in a group that it does not have"
    return ""


def _about_own(word: NodeWord, twice: set[int]) -> NodeWord:
    own = set(word.ranks) - twice
    summary = word.summary
    said = msgspec.structs.replace(
        summary,
        ranks=tuple(
            digest
            for digest in summary.ranks
            if digest.summary.rank in own and digest.activity.rank == digest.summary.rank
        ),
        nodes=tuple(
            msgspec.structs.replace(node, host=word.node, ranks=tuple(sorted(own))) for node in summary.nodes[:1]
        ),
    )
    return msgspec.structs.replace(word, ranks=tuple(sorted(own)), summary=said)
