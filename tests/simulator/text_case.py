"""A simulated run that is over: drawn, printed into a folder, read and judged as `analyze` does, scored."""

import random
import tempfile
from dataclasses import dataclass
from pathlib import Path

from stallwatch.bundle.reader import load
from stallwatch.diagnosis import judge
from stallwatch.errors import StallwatchError
from stallwatch.model.verdict import Verdict
from tests.simulator.engine import Engine
from tests.simulator.faults import Case, inject
from tests.simulator.launchers import node_of
from tests.simulator.mesh import random_mesh
from tests.simulator.oracle import hides
from tests.simulator.program import random_program
from tests.simulator.texts import FAULTS, Folder, folder

_LARGEST = 16
_DIES = ("raised", "memory", "killed", "crashed")
_NAMES_NOBODY = ("undecided", "comm_stuck", "job_ended", "collective_mismatch", "rank_exited", "rank_raised")
_BY_ITSELF = ("torchrun", "torchrun --tee", "torchrun --log-dir", "containerd", "kubectl", "accelerate")


@dataclass(frozen=True)
class TextOutcome:
    seed: int
    case: Case
    kind: str
    folder: Folder
    decidable: bool
    verdict: Verdict | None  # None: refused, there is nothing in it to judge
    right: bool

    @property
    def accuses_innocent(self) -> bool:
        return self.suspects_innocent and self.verdict is not None and self.verdict.confidence != "possible"

    @property
    def suspects_innocent(self) -> bool:
        quiet = self.verdict is None or self.verdict.cause in ("healthy", "waiting", "undecided")
        return not quiet and bool(set(self.said[1]) - set(self.case.truth.culprits))

    @property
    def calls_hang_healthy(self) -> bool:
        return self.verdict is not None and self.verdict.cause == "healthy"

    @property
    def failed(self) -> bool:
        wrong = self.decidable and not self.right
        return wrong or self.suspects_innocent or self.calls_hang_healthy

    @property
    def said(self) -> tuple[str, tuple[int, ...]]:
        if self.verdict is None:
            return "refused", ()
        return self.verdict.cause, tuple(sorted(self.verdict.culprits))


def draw(seed: int, fault: str = "") -> tuple[Case, Engine, str, Folder] | None:
    """The case of a seed, or None where the drawn fault has no place or stops nobody."""
    rng = random.Random(f"texts {seed}")
    program = random_program(rng, random_mesh(rng, _LARGEST), rng.choice(["nccl", "nccl", "gloo"]))
    kind = fault or rng.choice(tuple(FAULTS))
    case = inject(rng, program, FAULTS[kind])
    if case is None:
        return None
    engine = Engine(case.program, case.broken, case.most_moves)
    engine.run()
    if hides(case, engine):
        return None
    return case, engine, kind, folder(rng, case, engine, kind)


def play(seed: int, fault: str = "") -> TextOutcome | None:
    drawn = draw(seed, fault)
    if drawn is None:
        return None
    case, engine, kind, made = drawn
    with tempfile.TemporaryDirectory() as scratch:
        made.write(Path(scratch))
        try:
            verdict = judge(load([Path(scratch)])).verdicts[0]
        except StallwatchError:
            verdict = None
    decidable = _is_decidable(case, engine, kind, made)
    said = ("refused", ()) if verdict is None else (verdict.cause, tuple(sorted(verdict.culprits)))
    return TextOutcome(seed, case, kind, made, decidable, verdict, said in _accepted(case, kind, decidable))


def _accepted(case: Case, kind: str, decidable: bool) -> set[tuple[str, tuple[int, ...]]]:
    culprits = case.truth.culprits
    found = {(case.truth.cause, culprits), *case.truth.accept}
    if kind in _DIES:
        found |= {(cause, culprits) for cause in ("rank_raised", "rank_exited", "gpu_fault")}
    if kind == "comm_stuck":
        found.add(("undecided", ()))
    if not decidable:
        found |= {(cause, ()) for cause in _NAMES_NOBODY} | {("refused", ()), ("not_entered", culprits)}
    return found


def _is_decidable(case: Case, engine: Engine, kind: str, made: Folder) -> bool:
    if kind == "comm_stuck":
        return made.version not in ("1.13", "2.0", "2.1")  # which name no groups
    culprit = case.truth.culprits[0]
    if kind in _DIES:
        one_node = node_of(engine.program.mesh.world - 1) == 0
        if culprit not in made.told and (
            engine.program.backend == "gloo" or (made.launcher == "torchrun --log-dir" and not one_node)
        ):
            return False  # its peers end with it, and nothing marks whose traceback is whose
        named = made.launcher in (*_BY_ITSELF, "srun -l", "mpirun")
        return named or culprit in made.told
    if kind != "late" or engine.program.backend == "gloo" or made.dumps:
        return False
    # All that wait have said so, in the group of all; the culprit has said how far it had come.
    world = engine.program.mesh.groups[0].name
    behind = engine.ranks[culprit].count_of_group[world]
    in_world = [
        issued.sequence
        for rank in engine.ranks.values()
        for issued in rank.issued[:1] + [i for i in rank.issued if not i.completed][:1]
        if not issued.completed and issued.call.group is not None and issued.call.group.name == world
    ]
    return made.complete and culprit in made.told and bool(in_world) and min(in_world) > behind
