"""In which of the ways that reality has a job's recorders write: wrapped rings, groups made anew, one
description for many groups, receives that do not say from whom, calls that a CUDA graph hides."""

import random
from dataclasses import dataclass, field

from tests.simulator.faults import Case
from tests.simulator.mesh import DIMENSIONS, Group
from tests.simulator.program import Call

_HARDER = 0.45  # of the cases
_SMALL_RINGS = (40, 60, 100, 160, 260)


@dataclass(frozen=True)
class Style:
    """How the recorders of one job write; the plain one is what torch does by itself."""

    described: str = "numbered"  # "kind": all groups of a dimension alike, "none": nobody gave a description
    remade: tuple[str, int, bool] | None = None  # dimension, since which step, under the same name
    anonymous: bool = False  # receives do not say from whom
    captured: bool = False  # what the forward pass calls is in a CUDA graph, and recorded nowhere
    barrier: str = "barrier"
    rings: dict[int, int] = field(default_factory=dict)  # entries that a rank's ring holds, where it is no usual one
    lost_node: int = -1  # of which nothing came
    beside: str = "gloo"  # back end of the group that a second thread uses
    semantics: str = ""  # how ends are told, if not as torch's own NCCL and gloo do

    def describes(self, group: Group) -> str:
        kind = group.description.rstrip("0123456789")
        if group.name == "0" or self.described == "numbered":
            return group.description
        return f"mesh_{kind}" if self.described == "kind" else "undefined"

    def is_former(self, group: Group, step: int) -> bool:
        """Whether a call of this step was made in the group that was destroyed since."""
        return self.remade is not None and _is_of(group, self.remade[0]) and step < self.remade[1]

    def name(self, group: Group, step: int) -> str:
        if self.remade is None or self.remade[2] or not _is_of(group, self.remade[0]):
            return group.name
        return group.name if step < self.remade[1] else str(500 + int(group.name))

    def hides(self, call: Call) -> bool:
        return self.captured and call.kind == "collective" and call.site.function == "forward"


def _is_of(group: Group, dimension: str) -> bool:
    return group.description.rstrip("0123456789") == dimension


def draw(seed: int, case: Case) -> Style:
    """Given a seed and its case, return how its recorders write; the case itself stays what it was."""
    hard = random.Random(f"harder {seed}")
    if hard.random() > _HARDER:
        return Style()
    backend, mesh = case.program.backend, case.program.mesh
    nccl, moves = backend == "nccl", case.most_moves is not None
    kind = hard.choice(
        ["described", "remade", "anonymous", "captured", "barrier", "rings", "rings", "node", "beside", "semantics"]
    )
    if kind == "described":
        return Style(described=hard.choice(["kind", "none"]) if nccl else "kind")
    if kind == "remade" and not moves and case.truth.step > 1:
        used = [dimension for dimension in DIMENSIONS if mesh.sizes[dimension] > 1]
        step = hard.randrange(1, case.truth.step)
        return Style(remade=(hard.choice(used), step, hard.random() < 0.5), described=hard.choice(["numbered", "kind"]))
    if kind == "anonymous" and nccl:
        return Style(anonymous=True)
    if kind == "captured" and nccl and not moves:
        return Style(captured=True)
    if kind == "barrier" and nccl:
        return Style(barrier="all_reduce_barrier")
    if kind == "rings":
        size = hard.choice(_SMALL_RINGS)
        return Style(rings=dict.fromkeys(range(mesh.world), size), described=hard.choice(["numbered", "kind"]))
    if kind == "node" and mesh.world > 8:
        return Style(lost_node=hard.randrange(mesh.world // 8))
    if kind == "beside" and nccl:
        return Style(beside="nccl")
    if kind == "semantics":
        return Style(semantics=hard.choice(["retired", "issued", "never"]))
    return Style()
