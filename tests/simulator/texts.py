"""What a simulated run leaves as logs: watchdogs of several versions of torch, tracebacks, gloo's errors, launchers.

A case is a folder of logs, sometimes with dumps of some ranks; it is judged as `analyze` judges a folder.
"""

import pickle
import random
from dataclasses import dataclass
from pathlib import Path

from tests.builders.texts import VERSIONS, dump_signal, timed_out
from tests.simulator.dump import recorder, shapes
from tests.simulator.engine import Engine, Issued, Rank
from tests.simulator.faults import Case
from tests.simulator.launchers import LAUNCHERS, LOCAL_SIZE, NAMES_RANKS, End, Said, ends_told, files, node_of, stamp
from tests.simulator.program import RING, Call

FAULTS = {
    "raised": "exited", "memory": "exited", "killed": "exited", "crashed": "exited", "late": "stall",
    "wrong_op": "wrong_op", "wrong_size": "wrong_size", "skip": "skip", "extra": "extra", "comm_stuck": "comm_stuck",
    "exhausted": "exhausted",
}  # fmt: skip
_DIES = ("raised", "memory", "killed", "crashed")
_TIMEOUT_S = 600.0
_NAMES = {
    "all_reduce": "ALLREDUCE", "reduce_scatter_base": "_REDUCE_SCATTER_BASE", "all_gather_base": "_ALLGATHER_BASE",
    "broadcast": "BROADCAST", "alltoall_base": "ALLTOALL_BASE", "all_gather": "ALLGATHER", "barrier": "ALLREDUCE",
    "send": "SEND", "recv": "RECV", RING: "COALESCED",
}  # fmt: skip


@dataclass(frozen=True)
class Folder:
    """A case as it lies on disk, and what its logs can tell."""

    texts: dict[str, str]
    dumps: dict[str, bytes]
    launcher: str
    version: str
    complete: bool  # every rank that waits has said so before it was cleared away
    told: frozenset[int]  # ranks whose own end, traceback or standing is told with their number

    def write(self, path: Path) -> None:
        for name, text in self.texts.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(text)
        for name, raw in self.dumps.items():
            (path / name).write_bytes(raw)


def folder(rng: random.Random, case: Case, engine: Engine, kind: str) -> Folder:
    """Given a hang, return what its processes and their launcher have printed when it is over."""
    version = rng.choice(VERSIONS)
    launcher = rng.choice(LAUNCHERS)
    world = engine.program.mesh.world
    nodes = node_of(world - 1) + 1
    culprit = case.truth.culprits[0] if case.truth.culprits else None
    scene = _Scene(rng, engine, version, launcher, kind, culprit)
    scene.play()
    said = [*scene.said, *ends_told(launcher, version, scene.ends, nodes)]
    dumps: dict[str, bytes] = {}
    if engine.program.backend == "nccl" and rng.random() < 0.2:
        for rank in engine.ranks.values():
            if rank.ended == "" and rng.random() < 0.8:
                dumps[f"nccl_trace_rank_{rank.rank}"] = pickle.dumps(recorder(engine, rank, rng), protocol=2)
    texts = files(rng, launcher, said, nodes)
    return Folder(texts, dumps, launcher, version, scene.complete, frozenset(scene.told))


class _Scene:
    """Prints, in time, what each process would."""

    def __init__(
        self, rng: random.Random, engine: Engine, version: str, launcher: str, kind: str, culprit: int | None
    ) -> None:
        self.rng, self.engine, self.version, self.kind = rng, engine, version, kind
        self.culprit = culprit
        self.launcher = launcher
        one_node = len(engine.ranks) <= LOCAL_SIZE
        by_local = launcher in ("torchrun --tee", "torchrun --log-dir")  # numbers that each node has
        self.numbered = one_node if by_local else launcher in NAMES_RANKS
        self.prefixed = version in ("2.3", "2.4", "2.5", "2.6", "2.8")  # [rankN]: before tracebacks and errors
        self.said: list[Said] = []
        self.ends: list[End] = []
        self.complete = True
        self.told: set[int] = set()

    def print(self, at: float, rank: int, text: str) -> None:
        self.said.append(Said(at, rank, node_of(rank), tuple(text.rstrip("\n").split("\n"))))

    def play(self) -> None:
        self._steps()
        gloo = self.engine.program.backend == "gloo"
        if self.kind in _DIES:
            self._dies()
        (self._gloo_ends if gloo else self._nccl_ends)()

    def _steps(self) -> None:
        if self.launcher == "deepspeed":
            nodes = node_of(len(self.engine.ranks) - 1) + 1
            for node in range(nodes):
                sizes = f"nnodes={nodes}, num_local_procs={min(8, len(self.engine.ranks))}, node_rank={node}"
                line = f"[launch.py:164:main] {sizes}"
                self.said.append(Said(0.0, None, node, (f"[2026-11-28 10:00:00,100] [INFO] {line}",)))
        rank = self.engine.ranks[0]
        for step in range(rank.steps + 1):
            self.print(step * 2.0, 0, f"step {step} | loss {3.1 - step / 100:.4f} | lr 3.0e-04")
        if self.rng.random() < 0.5:
            warning = "UserWarning: barrier(): using the device under current context. You can specify `device_id`"
            for number in self.engine.ranks:
                self.print(0.5, number, f"/env/lib/python3.11/site-packages/torch/distributed/c10d.py:1: {warning}")

    def _traceback(self, rank: int, function: str, line: int, file: str, error: str) -> str:
        text = (
            "Traceback (most recent call last):\n"
            '  File "/app/train.py", line 60, in <module>\n'
            "    main()\n"
            '  File "/app/train.py", line 40, in main\n'
            "    train_step(batch)\n"
            f'  File "{file}", line {line}, in {function}\n'
            "    work(batch)\n"
            f"{error}\n"
        )
        if not self.prefixed:
            return text
        return "".join(f"[rank{rank}]: {part}\n" for part in text.splitlines())

    def _dies(self) -> None:
        rank, at = self._need_culprit(), 30.0
        if self.kind in ("raised", "memory"):
            error = {
                "raised": self.rng.choice(
                    ("ValueError: shard 17 is empty", "KeyError: 'labels'", "RuntimeError: CUDA error: device-side "
                     "assert triggered", "FileNotFoundError: [Errno 2] No such file or directory: '/data/9.bin'")
                ),
                "memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
                "capacity of 79.11 GiB",
            }[self.kind]  # fmt: skip
            self.print(at, rank, self._traceback(rank, "prepare_batch", 77, "/app/data/pipeline.py", error))
            if self.prefixed or self.numbered:
                self.told.add(rank)
        code = {"raised": 1, "memory": 1, "killed": -9, "crashed": -11}[self.kind]
        if self.kind == "crashed" and self.rng.random() < 0.5:
            self.print(at, rank, "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f1 (most recent call "
                       'first):\n  File "/app/data/pipeline.py", line 77 in prepare_batch')  # fmt: skip
        self.ends.append(End(rank, at, code, own=True))

    def _need_culprit(self) -> int:
        assert self.culprit is not None
        return self.culprit

    # NCCL: who waits is told by its watchdog; the first that aborts makes its launcher clear the rest away.

    def _nccl_ends(self) -> None:
        dead = {end.rank for end in self.ends}
        waiting = {r.rank: own for r in self.engine.ranks.values() if r.rank not in dead and (own := _standing(r))}
        # A launcher that sees the death itself ends its own node at once, and mostly all others.
        if dead and self.rng.random() < 0.7:
            for rank in sorted(set(self.engine.ranks) - dead):
                self.ends.append(End(rank, 31.0 + rank / 100, -15, own=False))
            return
        printed = sorted(waiting)
        if dead:
            printed = [rank for rank in printed if node_of(rank) != node_of(min(dead))]
        # From 2.3 on a rank that has timed out waits for others' dumps before it aborts: all have told by then.
        if self.version in ("1.13", "2.0", "2.1") and self.rng.random() < 0.5 and len(printed) > 1:
            printed = sorted(self.rng.sample(printed, self.rng.randrange(1, len(printed))))
            self.complete = False
        if not printed:
            self.complete = False
        silent_culprit = self.rng.random() < 0.5
        for order, rank in enumerate(printed):
            self._watchdog(rank, waiting[rank], _TIMEOUT_S + order * 0.02, abort=order == 0 or self.rng.random() < 0.6)
        for rank in self.engine.ranks:
            if rank in dead or rank in printed:
                continue
            if printed and rank not in waiting and not silent_culprit and self.version not in ("1.13", "2.0", "2.1"):
                self._dump_signal(rank, min(printed))
            if printed:
                self.ends.append(End(rank, _TIMEOUT_S + 32.0, self.rng.choice((-15, -15, -9)), own=False))

    def _watchdog(self, rank: int, own: list[Issued], at: float, *, abort: bool) -> None:
        groups: dict[str, Issued] = {}
        for issued in own:
            assert issued.call.group is not None
            groups.setdefault(issued.call.group.name, issued)
        for place, issued in enumerate(sorted(groups.values(), key=lambda i: i.index)):
            if place == 0 or self.rng.random() < 0.4:
                self.print(at + place * 0.01, rank, self._time_out(rank, issued, at))
        first = min(groups.values(), key=lambda i: i.index)
        line = f"{_head(self.version, rank, at)}[Rank {_place(first, rank)}] "
        self.print(
            at + 0.3, rank,
            f"{line}Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, "
            "subsequent GPU operations might run on corrupted/incomplete data.\n"
            f"{line}To avoid data inconsistency, we are taking the entire process down.",
        )  # fmt: skip
        if abort:
            again = self._time_out(rank, first, at).split("\n")[0].partition("] [")[2]
            died = "NCCL" if self.version in ("2.0", "2.1", "2.3") else "Process group"
            self.print(
                at + 1.0, rank,
                f"{line}{died} watchdog thread terminated with exception: [{again}\n"
                "terminate called after throwing an instance of 'c10::DistBackendError'\n"
                f"  what():  [{again}",
            )  # fmt: skip
            self.ends.append(End(rank, at + 1.0, -6, own=True))
        else:
            if self.rng.random() < 0.3 and self.version in ("2.3", "2.4", "2.5", "2.6", "2.8"):
                self.print(
                    at + 480, rank,
                    f"{line}ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in "
                    "monitoring enqueued collectives.",
                )  # fmt: skip
            self.ends.append(End(rank, at + 32.0, -15, own=False))

    def _time_out(self, rank: int, issued: Issued, at: float) -> str:
        call, group = issued.call, issued.call.group
        assert group is not None
        inputs, outputs = shapes(call, len(self.engine.ranks))
        numel = [sum(size[0] for size in sizes) or 1 for sizes in (inputs, outputs)]
        of_group = [i for i in self.engine.ranks[rank].issued if i.call.group == group]
        number = self.engine.program.mesh.groups.index(group)
        return timed_out(
            self.version, rank, issued.sequence, _operation(call), numel[0], enqueued=of_group[-1].sequence,
            place=_place(issued, rank), name=group.description, number=number, out=numel[1], time=stamp(at),
        ).rstrip("\n")  # fmt: skip

    def _dump_signal(self, rank: int, source: int) -> None:
        world = self.engine.program.mesh.groups[0].name
        enqueued = self.engine.ranks[rank].count_of_group[world]
        self.print(_TIMEOUT_S + 1.0, rank, dump_signal(self.version, rank, enqueued or -1, source))
        if enqueued:
            self.told.add(rank)

    # gloo: whoever waits raises, first the one whose time is over, then all that had a connection to it.

    def _gloo_ends(self) -> None:
        dead = {end.rank for end in self.ends}
        waiting = [r.rank for r in self.engine.ranks.values() if r.rank not in dead and r.ended == ""]
        at = 30.1 if dead else _TIMEOUT_S * 3
        self.rng.shuffle(waiting)
        said = waiting[: self.rng.randrange(1, len(waiting) + 1)] if waiting and self.rng.random() < 0.3 else waiting
        self.complete = len(said) == len(waiting)
        for order, rank in enumerate(said):
            moment = at + order * 0.02
            call = self.engine.ranks[rank].blocked_at
            name = call.operation if call is not None and call.operation else "wait"
            late = not dead and (order == 0 or self.rng.random() < 0.3)
            error = (
                "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting "
                "1800000ms for recv operation to complete"
                if late
                else self.rng.choice((
                    f"RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by "
                    f"peer [10.0.0.{node_of(rank) + 1}]:{18_000 + rank}",
                    f"RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:525] Read error "
                    f"[10.0.0.{node_of(rank) + 1}]:{18_000 + rank}: Connection reset by peer",
                ))
            )  # fmt: skip
            site = call.site if call is not None else None
            text = self._traceback(
                rank, site.function if site else "step", site.line if site else 10,
                site.file if site else "/app/train.py", error,
            )  # fmt: skip
            self.print(moment, rank, text.replace("work(batch)", f"dist.{name}(x)"))
            self.ends.append(End(rank, moment + 0.01, 1, own=True))
        for rank in self.engine.ranks:
            if rank not in dead and rank not in said:
                self.ends.append(End(rank, at + 5.0, -15, own=False))


def _head(version: str, rank: int, at: float) -> str:
    if version in ("1.13", "2.0", "2.1"):
        return "[E ProcessGroupNCCL.cpp:455] "
    return f"[rank{rank}]:[E ProcessGroupNCCL.cpp:537] " if version == "2.3" else (
        f"[rank{rank}]:[E{stamp(at)} ProcessGroupNCCL.cpp:681] "
    )  # fmt: skip


def _operation(call: Call) -> str:
    return "COALESCED" if call.coalesced or call.batched else _NAMES[call.operation]


def _place(issued: Issued, rank: int) -> int:
    assert issued.call.group is not None
    return issued.call.group.ranks.index(rank)


def _standing(rank: Rank) -> list[Issued]:
    """What a rank's host has issued and what has not completed, oldest first."""
    return [issued for issued in rank.issued if not issued.completed]
