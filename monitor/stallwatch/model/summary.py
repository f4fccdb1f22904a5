"""One rank's flight recorders reduced to what a verdict needs: small enough for 16,384 ranks in one judge.

Groups, sequence numbers and pending operations are kept whole; entries become ids into a table of distinct calls.
No struct here can be part of a cycle, hence gc=False: the collector would visit millions of them for nothing.
"""

import msgspec

SCHEMA_VERSION = 1
ANY = -1  # an end of a transfer that was not told
NO_CALL = 0xFFFF  # a sequence number inside the window that the ring does not hold


class Call(msgspec.Struct, frozen=True, gc=False):
    """A distinct call of a rank. Two ranks that call the same thing have equal `operation`, `elements` and `dtype`."""

    stream: int  # index into RankSummary.streams
    operation: str  # without the back end: "all_reduce", "send 0->1"
    elements: int | None  # by the operation's own rule; None where sizes differ in health (alltoallv, gather)
    dtype: str  # "" where it is not comparable
    site: str  # "file:line function" of the job's own innermost frame; "" when not recorded
    shape: str = ""  # for people: "[32, 256]"
    members: tuple[str, ...] = ()  # of a coalesced collective, in order: "_broadcast_oop of 300 Float"


class Transfer(msgspec.Struct, frozen=True, gc=False):
    """One point-to-point operation: `ordinal` counts from 1 within (group, source, destination) of this dump."""

    source: int  # rank within the group, or ANY
    destination: int
    ordinal: int
    outgoing: bool | None = None  # a send of the rank that recorded it; None: not said
    elements: int | None = None  # None: not recorded


class Pending(msgspec.Struct, frozen=True, gc=False):
    """An operation that was recorded and has not completed. A batch of point-to-point operations is one of these."""

    record: int  # order of recording within the process and recorder
    lane: int  # host thread; 0 is the training thread, autograd's threads included
    stream: int
    call: int
    seq: int  # collective_seq_id; 0 for point-to-point
    transfers: tuple[Transfer, ...] = ()
    created_ns: int | None = None  # wall clock of the rank's host
    timeout_ms: int | None = None
    timed_out: bool = False  # torch has given it up
    launched: bool = True  # False: the host is still inside the group call
    seen_before: bool | None = None  # pending at an earlier look already; None: there was no earlier look
    begun: bool | None = None  # its GPU has come to it; None: its recorder notes no starts
    was_first: bool | None = None  # the first unfinished of its lane at the look before; None: not known


class PairCount(msgspec.Struct, frozen=True, gc=False):
    """Point-to-point operations of one direction between two ranks of a group, as one side recorded them."""

    stream: int
    source: int
    destination: int
    done: int
    pending: int
    whole: bool  # False: the ring has lost older entries, so counts are comparable from the end only
    outgoing: bool | None = None


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """When a rank made a call (Unix epoch, ns)."""

    seq: int
    created_ns: int


class Stream(msgspec.Struct, frozen=True, gc=False):
    """The collectives of one process group as one rank recorded them, by collective_seq_id."""

    description: str
    name: str  # local to the rank
    backend: str
    ranks: tuple[int, ...]  # global ranks; empty: the dump does not say
    first_seq: int
    calls: bytes  # native uint16 per sequence number from first_seq on; NO_CALL is a hole
    completed: int  # highest completed collective_seq_id, 0: none
    lane: int
    size_hint: int | None = None  # group size by the shapes of a gather
    arrivals: tuple[Arrival, ...] = ()  # last calls, for who comes late
    period_ns: int | None = None  # median distance of equal calls: the step as this group sees it
    last_created_ns: int | None = None
    cut_short: bool = False  # the dump broke off: the newest calls may be missing, and `last_seq` is not its frontier

    @property
    def last_seq(self) -> int:
        """The highest sequence number in it."""
        return self.first_seq + len(self.calls) // 2 - 1


class GroupId(msgspec.Struct, frozen=True, order=True):
    """A process group, the same for all its members."""

    description: str
    backend: str
    ranks: tuple[int, ...]  # global; empty: the dump does not say


class Offset(msgspec.Struct, frozen=True):
    """By how many calls a member is ahead of most others at the same step."""

    rank: int
    group: GroupId
    offset: int
    calls_per_step: int  # 0: not the same number in each step


class SampleMemory(msgspec.Struct, frozen=True):
    """What one sample of a job that moves hands to the next."""

    offsets: tuple[Offset, ...] = ()


class RankSummary(msgspec.Struct, frozen=True, gc=False):
    """What the recorders of one rank say at the latest look that answered."""

    rank: int
    look: int  # 0: no dump was read
    backends: tuple[str, ...]
    calls: tuple[Call, ...] = ()
    streams: tuple[Stream, ...] = ()
    pending: tuple[Pending, ...] = ()  # by lane and order of recording, the first few
    pairs: tuple[PairCount, ...] = ()
    program: tuple[bytes, ...] = ()  # per lane: native uint16 call ids in order of recording, newest last
    whole: bool = True  # False: the ring has lost its beginning
    # The training thread recorded something between looks, or something of its own completed; None: one look. Where
    # entries name no threads, anything.
    advanced: bool | None = None
    advanced_lanes: tuple[int, ...] = ()  # host threads that recorded something between the last two looks
    captured_at_ns: int | None = None  # wall clock
    cut_short: bool = False  # a dump of it broke off: what is not in it may have been called
    outran: bool = False  # something has not completed by pg_status, and its entry is not, or no longer, in the dump
    completion: tuple[str, ...] = ()  # how each of `backends` tells that something has ended: recorder/operations
    groupless: tuple[str, ...] = ()  # of `backends`: their recorders know of no group
    # The newest operations of recorders that may tell of no end, ended or not; by lane and order of recording.
    issued: tuple[Pending, ...] = ()
    untested: tuple[str, ...] = ()  # "NCCL 2.31.2": versions by its dumps that are newer than any that was tried
