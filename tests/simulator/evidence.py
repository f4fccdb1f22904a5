"""From a simulated hang to the evidence that a node would have gathered, with some of it lost, late or cut."""

import json
import pickle
import random
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from stallwatch.formats import flight_recorder
from stallwatch.model.evidence import (
    Attempt,
    CodeFrame,
    Evidence,
    Operation,
    ProcessLook,
    RankEvidence,
    Recorder,
    SourceLine,
    Stacks,
    ThreadStack,
    ThreadState,
)
from tests.simulator.dump import START_NS, TORCH, beside, recorder, stack
from tests.simulator.engine import Engine, Issued, Rank
from tests.simulator.faults import Case, moves_between_looks
from tests.simulator.program import RING, UNEVEN
from tests.simulator.recording import Style


@dataclass(frozen=True)
class Seen:
    """What was gathered of whom: the oracle decides from this whether a case can be decided at all."""

    evidence: Evidence
    dumps: frozenset[int]
    stacks: frozenset[int]
    ring: int
    since: int = 0  # the first step of which every ring still holds all
    outran: bool = False  # what somebody waits in is in no ring any more
    lost: frozenset[int] = frozenset()  # of which nothing at all came
    standing: frozenset[int] = frozenset()  # whose first unfinished call is the same at both looks


def gather(rng: random.Random, case: Case, engine: Engine, style: Style | None = None) -> Seen:
    style = style or Style()
    # One case in sixteen loses what some ranks had to say: rarely more than one or two of them at a time.
    losers = set(rng.sample(sorted(engine.ranks), rng.choice([1, 1, 2]))) if rng.random() < 0.06 else set()
    ring = rng.choice([2000, 2000, 2000, 400])
    in_json = rng.random() < 0.75  # the forms say the same; reading pickles is most of a case's time
    dumps, stacks, ranks = set(), set(), []
    later = _later(case, engine)
    scattered = _scattered(case)
    stale, early = _stale(rng, case, engine)
    cut = {rank for rank in losers if rng.random() < 0.3}
    for rank in engine.ranks.values():
        silent = rank.ended in ("exited", "stopped") or _holds_gil(rank)
        lost_dump = silent or (rank.rank in losers and rng.random() < 0.7)
        lost_stack = rank.ended in ("exited", "stopped") or (rank.rank in losers and rng.random() < 0.7)
        # Dumps of one look are not of one moment: in a job that moves, some are of a few calls later.
        moment = rng.choice([engine, *scattered])
        if rank.rank in stale and early is not None:
            moment = early
        held = style.rings.get(rank.rank, ring)
        recorders = (
            []
            if lost_dump
            else [_parse(moment, moment.ranks[rank.rank], rng, held, 1, in_json, _late(rng, case), style)]
        )
        if rank.rank in cut:
            recorders = [_cut(rng, recorder) for recorder in recorders]
        looks = [] if lost_stack else [_stacks(engine, rank, 1)]
        processes = [_process(engine, rank, 1)]
        if later is not None:
            again = later.ranks[rank.rank]
            if rank.rank in stale:
                pass  # it did not answer the second time
            elif later is engine:
                recorders += [_again(recorder) for recorder in recorders]
            elif not lost_dump:
                recorders.append(_parse(later, again, rng, held, 2, in_json, _late(rng, case), style))
            looks += [] if lost_stack else [_stacks(later, again, 2)]
            processes += [_process(later, again, 2)]
        if not lost_dump and rank.rank not in cut and rank.rank not in stale:
            dumps.add(rank.rank)
        if not lost_stack:
            stacks.add(rank.rank)
        ranks.append(
            RankEvidence(
                rank=rank.rank,
                host=f"node{rank.rank // 8}",
                pid=1000 + rank.rank,
                recorders=tuple(recorders),
                stacks=tuple(looks),
                processes=tuple(processes),
                attempts=(Attempt("flight_recorder", 1, START_NS, not lost_dump),),
                captured_at_ns=START_NS + moment.clock * 1_000_000 + (0 if rank.rank in stale else 8_000_000_000),
                last_step=rank.steps,
                sources=_sources(engine, rank),
            )
        )
    rng.shuffle(ranks)
    standing = frozenset(rank.rank for rank in ranks if _stands(rank.recorders))
    held_of = [(engine.ranks[r.rank], style.rings.get(r.rank, ring)) for r in ranks]
    since, outran = _held([(rank.issued, held) for rank, held in held_of], engine.program.backend)
    ranks = _with_second_thread(case, engine, ranks, style.beside)
    lost = frozenset(rank.rank for rank in ranks if rank.host == f"node{style.lost_node}")
    ranks = [rank for rank in ranks if rank.rank not in lost]
    evidence = Evidence(
        world_size=engine.program.mesh.world,
        backend=engine.program.backend,
        ranks=tuple(sorted(ranks, key=lambda r: r.rank)),
        nodes=(),
        caveats=(),
        looks=2 if later is not None else 1,
    )
    return Seen(evidence, frozenset(dumps) - lost, frozenset(stacks) - lost, ring, since, outran, lost, standing)


def _stands(recorders: Sequence[Recorder]) -> bool:
    """Whether the first call that has not ended is the same in both dumps."""
    firsts = [_first_open(recorder.operations) for recorder in recorders]
    return len(firsts) == 2 and firsts[0] is not None and firsts[0] == firsts[1]


def _first_open(operations: Sequence[Operation]) -> tuple[int, int] | None:
    """Members of a batch never end by themselves: their closing entry, of the same number, says when it did."""
    ended: dict[tuple[int, int], bool] = {}
    for operation in operations:
        call = operation.pg_id, operation.op_id
        ended[call] = ended.get(call, False) or operation.retired or operation.state == "completed"
    return next((call for call, over in ended.items() if not over), None)


def _held(issued: Sequence[tuple[list[Issued], int]], backend: str) -> tuple[int, bool]:
    """The first step of which all rings hold everything, and whether one has lost what its rank waits in."""
    since, outran = 0, False
    for calls, ring in issued:
        recorded = [call for call in calls if call.call.kind == "collective" or backend == "nccl"]
        sizes = [_entries(call, backend) for call in recorded]
        lost = sum(sizes) - ring
        for call, size in zip(recorded, sizes, strict=True):
            if lost > 0:
                since, outran = max(since, call.step + 1), outran or not call.completed
            lost -= size
    return since, outran


def _entries(issued: Issued, backend: str) -> int:
    call = issued.call
    if call.operation == UNEVEN and call.group is not None:
        return len(call.group.ranks) + 1
    batch = len(call.peers) + call.batched if call.peers else 3 * call.coalesced
    return max(batch, 1) if backend == "nccl" else 1


def _with_second_thread(case: Case, engine: Engine, ranks: list[RankEvidence], backend: str) -> list[RankEvidence]:
    """In one job of six a second thread of each rank reports metrics in a group of its own. It goes on while the
    training threads stand, unless one of the processes is gone or stopped: then those of all others wait for it."""
    chance = random.Random(repr((case.truth, case.fault, engine.program.mesh.world, engine.program.steps)))
    if chance.random() > 1 / 6:
        return ranks
    world, ended = engine.program.mesh.world, chance.randrange(3, 30)
    waits = any(rank.ended in ("exited", "stopped") or _holds_gil(rank) for rank in engine.ranks.values())
    looks = [ended, ended + (0 if waits else chance.randrange(1, 5))]
    out = []
    for rank in ranks:
        recorders = list(rank.recorders)
        for look in sorted({one.look for one in rank.recorders}):
            dump = {
                "version": "2.10",
                "pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}},
                "pg_status": {},
                "entries": [
                    {**entry, "record_id": index}
                    for index, entry in enumerate(beside(rank.rank, world, backend, looks[look - 1], waits, chance))
                ],
            }
            own = [one for one in recorders if one.look == look and one.backend == backend]
            parsed = flight_recorder.parse(json.dumps(dump).encode(), source=_source(backend, look), look=look)
            if own:  # one ring for both threads
                first = len(own[0].operations)
                shifted = (msgspec.structs.replace(o, record_id=first + i) for i, o in enumerate(parsed.operations))
                both = msgspec.structs.replace(own[0], operations=(*own[0].operations, *shifted))
                recorders[recorders.index(own[0])] = both
            else:
                recorders.append(parsed)
        stacks = tuple(_and_second_thread(stack, rank.rank, waits) for stack in rank.stacks)
        out.append(msgspec.structs.replace(rank, recorders=tuple(recorders), stacks=stacks))
    return out


def _and_second_thread(stacks: Stacks, rank: int, waits: bool) -> Stacks:
    own = (CodeFrame("report", "/app/metrics.py", 31), CodeFrame("run", "/usr/lib/python3.11/threading.py", 982))
    inside = (CodeFrame("all_reduce", f"{TORCH}/distributed/distributed_c10d.py", 3008), *own)
    frames = inside if waits else own
    thread = ThreadStack(
        name="metrics", os_thread_id=5000 + rank, active=False, owns_gil=False, frames=frames, pid=1000 + rank
    )
    return msgspec.structs.replace(stacks, threads=(*stacks.threads, thread))


def moved_between_looks(case: Case, engine: Engine) -> set[int]:
    later = _later(case, engine)
    assert later is not None
    return {rank for rank in engine.ranks if later.ranks[rank].position != engine.ranks[rank].position}


def _late(rng: random.Random, case: Case) -> int:
    """How many ends of operations NCCL's watchdog has not seen yet: some in a job that moves, none seconds into a
    hang."""
    return rng.randrange(4) if case.most_moves is not None else 0


def _scattered(case: Case) -> list[Engine]:
    if case.most_moves is None:
        return []
    engines = [Engine(case.program, case.broken, case.most_moves + extra) for extra in (5, case.program.mesh.world)]
    for engine in engines:
        engine.run()
    return engines


def _stale(rng: random.Random, case: Case, engine: Engine) -> tuple[set[int], Engine | None]:
    """One case in thirty: a rank's only dump is of a moment before the hang was complete."""
    if case.most_moves is not None or rng.random() > 0.03:
        return set(), None
    moves = sum(rank.position for rank in engine.ranks.values())
    early = Engine(case.program, case.broken, max(moves - rng.randrange(1, 4 * len(engine.ranks)), 1))
    early.run()
    return {rng.randrange(len(engine.ranks))}, early


def _cut(rng: random.Random, recorder: Recorder) -> Recorder:
    """The file broke off: the newest entries are missing."""
    kept = len(recorder.operations) - rng.randrange(1, 6)
    operations = recorder.operations[: max(kept, 0)]
    return msgspec.structs.replace(recorder, operations=operations, cut_short=True)


def _later(case: Case, engine: Engine) -> Engine | None:
    """The second look: the same standing picture for a hang, a later one for a job that moves."""
    if case.most_moves is None:
        return engine
    later = Engine(case.program, case.broken, case.most_moves + moves_between_looks(case.program.mesh.world))
    later.run()
    return later


def _holds_gil(rank: Rank) -> bool:
    return rank.ended == "stuck" and rank.blocked_at is not None and rank.blocked_at.where == "gil"


def _parse(
    engine: Engine, rank: Rank, rng: random.Random, ring: int, look: int, in_json: bool, late: int, style: Style
) -> Recorder:
    dump = recorder(engine, rank, rng, ring, late, style)
    raw = json.dumps(dump).encode() if in_json else pickle.dumps(dump, protocol=2)
    return flight_recorder.parse(raw, source=_source(engine.program.backend, look), look=look)


def _again(first: Recorder) -> Recorder:
    """A second dump of a job that stands still: the same entries with the same times."""
    return msgspec.structs.replace(first, look=2, source=_source(first.backend, 2))


def _sources(engine: Engine, rank: Rank) -> tuple[SourceLine, ...]:
    """The text of the line in which gloo's `Work.wait`, which is C++, has no frame of its own: all that tells it from
    any other lock."""
    call = rank.blocked_at
    if engine.program.backend != "gloo" or call is None or (call.kind != "wait" and call.operation != RING):
        return ()
    return (SourceLine(call.site.file, call.site.line, "req.wait()"),)


def _source(backend: str, look: int) -> str:
    return f"flight_recorder.{backend}{'' if look == 1 else f'-{look}'}.pickle"


def _stacks(engine: Engine, rank: Rank, look: int) -> Stacks:
    frames, _, _, _, gil = stack(engine, rank)
    thread = ThreadStack(
        name="MainThread",
        os_thread_id=1000 + rank.rank,
        active=stack(engine, rank)[1] == "R",
        owns_gil=gil,
        frames=tuple(CodeFrame(f["name"], f["filename"], f["line"]) for f in frames),
        pid=1000 + rank.rank,
    )
    return Stacks("stacks.json", look, 1000 + rank.rank, (thread,))


def _process(engine: Engine, rank: Rank, look: int) -> ProcessLook:
    pid = 1000 + rank.rank
    if rank.ended == "exited":
        return ProcessLook(source="process.json", look=look, pid=pid, state="Z", exit_signal=9, ended_ns=10)
    _, state, wchan, grows, _ = stack(engine, rank)
    if rank.ended == "stopped":
        state, wchan = "T", "do_signal_stop"
    ticks = 5000 + (400 * look if grows else 0)
    thread = ThreadState(pid, "python", state, ticks, wchan)
    return ProcessLook(
        source="process.json", look=look, pid=pid, state=state, wchan=wchan, cpu_ticks=ticks, threads=(thread,)
    )
