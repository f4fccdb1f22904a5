"""`python -m tests.simulator.run --cases 1000 --seed 0 --jobs 2`: score the diagnosis against the oracle.

The seeds of all cases that are not right are printed; `--cases 1 --seed N` plays one again. What is counted does
not depend on `--jobs`.
"""

import argparse
import functools
import itertools
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from stallwatch.diagnosis import judge
from stallwatch.model.verdict import Verdict
from tests.simulator.engine import Engine
from tests.simulator.evidence import Seen, gather, moved_between_looks
from tests.simulator.faults import Case, inject
from tests.simulator.mesh import random_mesh
from tests.simulator.oracle import hides, is_decidable, is_right, is_whole_cycle
from tests.simulator.program import random_program
from tests.simulator.recording import draw
from tests.simulator.semantics import SEMANTICS, TELLING, rewritten
from tests.simulator.text_case import TextOutcome
from tests.simulator.text_case import play as play_text
from tests.simulator.texts import FAULTS as TEXT_FAULTS

TEXTS = "texts"  # as a fault: any of those that are told by logs
_SHARE_OF_TEXTS = 0.2
QUIET = {"healthy", "waiting", "undecided"}


@dataclass(frozen=True)
class Outcome:
    seed: int
    case: Case
    seen: Seen
    decidable: bool
    verdict: Verdict
    right: bool
    whole_cycle: bool = False  # all of a cycle is named, and it is one

    @property
    def accuses_innocent(self) -> bool:
        """`certain` or `likely` about a rank that has nothing to do with the fault."""
        truth = self.case.truth
        # A whole cycle may be the answer; to call it likely that each of it is at fault accuses the innocent.
        named = set(self.verdict.culprits)
        # Both ends of a message may be the answer, one of them who did nothing is none.
        answers = [set(culprits) for _, culprits in (("", truth.culprits), *truth.accept) if len(culprits) <= 2]
        guilty = {c for culprits in answers if len(culprits) == 1 or culprits == named for c in culprits}
        return self.verdict.confidence != "possible" and self.verdict.cause not in QUIET and bool(named - guilty)

    @property
    def suspects_innocent(self) -> bool:
        """Names one, be it as a possibility."""
        guilty = {c for _, culprits in (("", self.case.truth.culprits), *self.case.truth.accept) for c in culprits}
        named = self.verdict.cause not in QUIET and bool(set(self.verdict.culprits) - guilty)
        return named and not self.whole_cycle

    @property
    def calls_hang_healthy(self) -> bool:
        return self.case.truth.cause != "healthy" and self.verdict.cause == "healthy"

    @property
    def failed(self) -> bool:
        wrong = self.decidable and not self.right
        return wrong or self.accuses_innocent or self.suspects_innocent or self.calls_hang_healthy


class Score(NamedTuple):
    """What is counted of a case, of which nothing else is kept."""

    backend: str
    fault: str
    decidable: bool
    right: bool
    accuses: bool
    names: bool
    calls_healthy: bool

    @classmethod
    def of(cls, o: Outcome | TextOutcome) -> "Score":
        fault = f"text {o.kind}" if isinstance(o, TextOutcome) else o.case.fault
        of_case = (o.case.program.backend, fault, o.decidable, o.right)
        return cls(*of_case, o.accuses_innocent, o.suspects_innocent, o.calls_hang_healthy)


def play(seed: int, largest: int, semantics: str = "", fault: str = "") -> Outcome | None:
    """Given a seed, return the scored case, or None where the drawn fault has no place or stops nobody. `semantics`:
    dumps as a recorder of these would have written them; where none tells of ends, undecided is right. `fault`: that
    one, else a drawn one."""
    rng = random.Random(seed)
    mesh, harder = random_mesh(rng, largest), random.Random(f"harder program {seed}")
    program = random_program(rng, mesh, rng.choice(["nccl", "gloo"]), harder)
    case = inject(rng, program, fault)
    if case is None:
        return None
    engine = Engine(case.program, case.broken, case.most_moves)
    engine.run()
    if hides(case, engine):
        return None
    style = draw(seed, case)
    semantics = semantics or style.semantics
    seen = gather(rng, case, engine, style)
    told = rewritten(seen.evidence, semantics) if semantics else seen.evidence
    verdict = judge(told).verdicts[0]
    culprits = tuple(sorted(verdict.culprits))
    right = is_right(case, engine, verdict.cause, culprits, moved_between_looks(case, engine) - seen.standing)
    right = right or (verdict.cause == "undecided" and semantics in SEMANTICS and semantics not in TELLING)
    whole = is_whole_cycle(case, engine, verdict.cause, culprits)
    return Outcome(seed, case, seen, is_decidable(case, engine, seen, style), verdict, right, whole)


def _line(o: Outcome) -> str:
    kind = "innocent" if o.accuses_innocent else "healthy" if o.calls_hang_healthy else "wrong"
    kind = "named" if kind == "wrong" and o.suspects_innocent else kind
    return (
        f"{kind:9}seed {o.seed} {o.case.program.backend} {o.case.fault} world {o.case.program.mesh.world} "
        f"{o.case.program.mesh.sizes} step {o.case.truth.step}: truth {o.case.truth.cause} "
        f"{list(o.case.truth.culprits)} said {o.verdict.cause} {list(o.verdict.culprits)} {o.verdict.confidence}"
    )


def _scored(seed: int, largest: int, semantics: str, fault: str) -> tuple[Score, str] | None:
    """What is counted of a seed's case, and its line where it failed."""
    kind = fault.partition(" ")[2] if fault.startswith("text ") else ""
    by_text = bool(kind) or fault == TEXTS
    if by_text or (not (fault or semantics) and random.Random(f"by text {seed}").random() < _SHARE_OF_TEXTS):
        told = play_text(seed, kind)
        return None if told is None else (Score.of(told), _text_line(told) if told.failed else "")
    outcome = play(seed, largest, semantics, fault)
    return None if outcome is None else (Score.of(outcome), _line(outcome) if outcome.failed else "")


def _text_line(o: TextOutcome) -> str:
    program, (cause, culprits) = o.case.program, o.said
    kind = "innocent" if o.accuses_innocent else "named" if o.suspects_innocent else "wrong"
    how = f"{o.folder.launcher}, torch {o.folder.version}{', dumps' if o.folder.dumps else ''}"
    return (
        f"{kind:9}seed {o.seed} {program.backend} text {o.kind} ({how}) world {program.mesh.world}: truth "
        f"{o.case.truth.cause} {list(o.case.truth.culprits)} said {cause} {list(culprits)} "
        f"{o.verdict.confidence if o.verdict else ''}"
    )


def _all_scored(first: int, jobs: int, largest: int, semantics: str, fault: str) -> Iterator[tuple[Score, str]]:
    """Of one seed after the other, in their order, for ever."""
    score = functools.partial(_scored, largest=largest, semantics=semantics, fault=fault)
    if jobs == 1:
        yield from filter(None, map(score, itertools.count(first)))
        return
    with multiprocessing.Pool(jobs) as pool:
        for start in itertools.count(first, 16 * jobs):
            yield from filter(None, pool.map(score, range(start, start + 16 * jobs), chunksize=1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--largest", type=int, default=64)
    parser.add_argument("--semantics", choices=tuple(SEMANTICS), default="", help="as another recorder would write")
    parser.add_argument("--show", type=int, default=40, help="failures to list")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    kinds = ", ".join(TEXT_FAULTS)
    parser.add_argument("--fault", default="", help=f"of this kind alone; {TEXTS}: logs; text KIND: one of {kinds}")
    options = parser.parse_args()
    began = time.monotonic()
    scores: list[Score] = []
    shown = 0
    for score, line in _all_scored(options.seed, options.jobs, options.largest, options.semantics, options.fault):
        scores.append(score)
        if line and shown < options.show:
            shown += 1
            print(line, flush=True)
        if len(scores) >= options.cases:
            break
    decidable = [o for o in scores if o.decidable]
    wrong = [o for o in decidable if not o.right]
    innocent = sum(o.accuses for o in scores)
    suspected = sum(o.names for o in scores)
    healthy = sum(o.calls_healthy for o in scores)
    by_fault = Counter((o.backend, o.fault, o.right) for o in decidable)
    for backend, fault in sorted({(b, f) for b, f, _ in by_fault}):
        right, all_ = by_fault[backend, fault, True], by_fault[backend, fault, True] + by_fault[backend, fault, False]
        print(f"{backend:5} {fault:14} {right}/{all_}")
    print(
        f"cases {len(scores)}  decidable {len(decidable)}  right {len(decidable) - len(wrong)} "
        f"({(len(decidable) - len(wrong)) / max(len(decidable), 1):.2%})  innocent accused {innocent} "
        f"(named at all {suspected})  hangs called healthy {healthy}  "
        f"undecidable {1 - len(decidable) / max(len(scores), 1):.1%}  {time.monotonic() - began:.0f} s"
    )
    return 0 if not (innocent or suspected or healthy) and len(wrong) <= 0.005 * len(decidable) else 1


if __name__ == "__main__":
    sys.exit(main())
