"""Small jobs written short: what each rank called, what it does, and what a node would have gathered of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from msgspec.structs import replace as struct_replace

from stallwatch.model.evidence import (
    CodeFrame,
    Evidence,
    NodeEvidence,
    Operation,
    ProcessLook,
    RankEvidence,
    RecordedGroup,
    Recorder,
    Stacks,
    ThreadStack,
    ThreadState,
)
from tests.builders.clock import SECOND_NS
from tests.builders.rank_evidence import logged

FIRST_CALL_WALL_NS = 1_700_000_000 * SECOND_NS  # when rank 0 created its first operation
STEP_NS = SECOND_NS // 10
_TORCH = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


@dataclass(frozen=True)
class Group:
    name: str
    description: str
    ranks: tuple[int, ...]
    pg_id: int = 0


def world(size: int) -> Group:
    return Group("0", "default_pg", tuple(range(size)))


@dataclass(frozen=True)
class Call:
    """A collective, or transfers ("send", peer) as ranks of the group; a batch has a closing entry."""

    group: Group
    name: str = "all_reduce"
    elements: int = 100
    dtype: str = "Float"
    line: int = 10
    transfers: tuple[tuple[str, int], ...] = ()
    batched: bool = False
    outputs: int | None = None
    thread: str = "1"
    closed: bool = True


def transfer(group: Group, *ends: tuple[str, int], batched: bool = False, line: int = 50, closed: bool = True) -> Call:
    return Call(group, transfers=ends, batched=batched, line=line, closed=closed)


@dataclass
class _Numbers:
    collective: int = 0
    transfers: int = 0
    operation: int = 0


def operations(
    rank: int, calls: Sequence[Call], done: int, backend: str = "nccl", first_record: int = 0
) -> tuple[Operation, ...]:
    """Entries of one rank's recorder; the first `done` calls have completed."""
    numbers: dict[str, _Numbers] = {}
    entries: list[Operation] = []
    for place, call in enumerate(calls):
        own = numbers.setdefault(call.group.name, _Numbers())
        own.operation += 1
        if call.transfers:
            own.transfers += 1
        else:
            own.collective += 1
        completed = place < done
        names = [
            f"{way} {call.group.ranks.index(rank)}{'->' if way == 'send' else '<-'}{peer}"
            for way, peer in call.transfers
        ] or [call.name]
        if call.transfers and call.batched and call.closed:
            names.append("coalesced")
        for name in names:
            member = call.batched and name != "coalesced" and bool(call.transfers)
            settled = completed and not member
            entries.append(_entry(len(entries) + first_record, call, own, name, settled, backend, place, member))
    return tuple(entries)


def _entry(
    record: int, call: Call, numbers: _Numbers, name: str, settled: bool, backend: str, place: int, member: bool
) -> Operation:
    sizes = () if name in ("coalesced", "barrier") else ((call.elements,),)
    frames = (CodeFrame(name, _TORCH, 3000), CodeFrame("step", "/srv/job/train.py", call.line))
    return Operation(
        record_id=record,
        pg_id=call.group.pg_id,
        group_name=call.group.name,
        group_description=call.group.description,
        collective_seq_id=numbers.collective,
        p2p_seq_id=numbers.transfers,
        op_id=numbers.operation,
        name=name,
        backend=backend,
        state="completed" if settled and backend == "nccl" else "scheduled",
        retired=settled,
        is_p2p=bool(call.transfers) and name != "coalesced",
        input_sizes=sizes,
        output_sizes=((call.outputs,),) if call.outputs is not None else sizes,
        input_dtypes=(call.dtype,) if sizes else (),
        output_dtypes=(call.dtype,) if sizes else (),
        created_ns=FIRST_CALL_WALL_NS + place * STEP_NS,
        started_ns=None,
        completed_ns=None,
        timeout_ms=600_000,
        frames=frames,
        thread_id=call.thread,
        thread_name="python",
    )


def recorder(
    rank: int,
    calls: Sequence[Call],
    done: int | None = None,
    *,
    backend: str = "nccl",
    look: int = 1,
    members_known: bool = True,
    first_record: int = 0,
    configured: tuple[int, ...] | None = None,
) -> Recorder:
    """`configured`: the members that its configuration tells under the name "", and of no other group."""
    groups = {call.group.name: call.group for call in calls if rank in call.group.ranks}
    return Recorder(
        source=f"flight_recorder.{backend}-{look}.pickle",
        look=look,
        backend=backend,
        version="2.10",
        groups=tuple(
            RecordedGroup(group.name, group.description, group.ranks if members_known else ())
            for group in groups.values()
        )
        if configured is None
        else (RecordedGroup("", "", configured),),
        status=(),
        operations=operations(rank, calls, len(calls) if done is None else done, backend, first_record),
    )


_MODULE = CodeFrame("<module>", "/srv/job/train.py", 99)
SLEEPS = (CodeFrame("prepare", "/srv/job/data.py", 7), CodeFrame("main", "/srv/job/train.py", 90), _MODULE)
IN_RECV = (CodeFrame("recv", _TORCH, 2799), CodeFrame("exchange", "/srv/job/pipe.py", 33), _MODULE)


@dataclass(frozen=True)
class Rank:
    """One rank: `calls` recorded, the first `done` of them completed; two looks that are the same."""

    rank: int
    calls: tuple[Call, ...] = ()
    done: int | None = None
    frames: tuple[CodeFrame, ...] = ()
    state: str = "S"
    wchan: str | None = "hrtimer_nanosleep"
    exit_code: int | None = None
    exit_signal: int | None = None
    ended_ns: int | None = None
    log: tuple[str, ...] = ()
    backend: str = "nccl"
    dumped: bool = True
    looks: int = 2
    members_known: bool = True
    configured: tuple[int, ...] | None = None
    host: str = "node0"
    extra: tuple[Recorder, ...] = field(default=())

    def evidence(self) -> RankEvidence:
        pid = 1000 + self.rank
        recorders = tuple(
            recorder(
                self.rank,
                self.calls,
                self.done,
                backend=self.backend,
                look=look,
                members_known=self.members_known,
                configured=self.configured,
            )
            for look in range(1, self.looks + 1)
            if self.dumped
        )
        thread = ThreadStack("MainThread", pid, False, False, self.frames, pid)
        stacks = tuple(
            Stacks(f"stacks-{look}.json", look, pid, (thread,)) for look in range(1, self.looks + 1) if self.frames
        )
        main = ThreadState(pid, "python", self.state, 100, self.wchan)
        processes = tuple(
            ProcessLook(
                source=f"process-{look}.json",
                look=look,
                pid=pid,
                state=self.state,
                exit_code=self.exit_code,
                exit_signal=self.exit_signal,
                wchan=self.wchan,
                cpu_ticks=100,
                threads=(main,),
                ended_ns=self.ended_ns,
            )
            for look in range(1, self.looks + 1)
        )
        created = (op.created_ns for recorder in recorders for op in recorder.operations if op.created_ns)
        last = max(created, default=FIRST_CALL_WALL_NS)
        return RankEvidence(
            rank=self.rank,
            host=self.host,
            pid=pid,
            recorders=(*recorders, *self.extra),
            stacks=stacks,
            processes=processes,
            log=self.log,
            log_events=logged(*self.log),
            captured_at_ns=last + 60 * SECOND_NS,
        )

    def lost(self) -> "Rank":
        return replace(self, dumped=False, frames=())


def evidence(
    *ranks: Rank, world_size: int | None = None, nodes: tuple[NodeEvidence, ...] = (), looks: int = 2
) -> Evidence:
    return Evidence(
        world_size=len(ranks) if world_size is None else world_size,
        backend=ranks[0].backend if ranks else None,
        ranks=tuple(rank.evidence() for rank in ranks),
        nodes=nodes,
        caveats=(),
        looks=looks,
    )


def loop(group: Group, steps: int) -> tuple[Call, ...]:
    """A training loop of two collectives a step, at lines 10 and 11."""
    return tuple(Call(group, elements=size, line=line) for _ in range(steps) for size, line in ((500, 10), (7, 11)))


def from_any(told: Evidence) -> Evidence:
    """Receives that take from whoever sends."""
    ranks = []
    for rank in told.ranks:
        looks = tuple(
            struct_replace(
                look,
                operations=tuple(
                    struct_replace(entry, name=f"{entry.name.partition('<-')[0]}<-?") if "<-" in entry.name else entry
                    for entry in look.operations
                ),
            )
            for look in rank.recorders
        )
        ranks.append(struct_replace(rank, recorders=looks))
    return struct_replace(told, ranks=tuple(ranks))
