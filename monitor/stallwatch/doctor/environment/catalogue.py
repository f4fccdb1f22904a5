"""What is known about environment variables: data/variables.toml and data/names.toml, and the nearest real name."""

import functools
from typing import Literal

import msgspec

from stallwatch.doctor import data
from stallwatch.doctor.finding import Severity

Status = Literal["real", "renamed", "removed", "invented"]
Kind = Literal["integer", "boolean", "choice", "tokens", "interfaces", "text"]

# Beyond these prefixes a variable is nobody's that we know. CUDA_ and PYTORCH_ are not among them: programs invent such
# names for themselves, and only those listed as invented are told.
_OWNED_PREFIXES = ("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "TORCH_DIST", "GLOO_", "TP_SOCKET_", "ACCELERATE_", "DS_ACC")


class Variable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of variables.toml; its head says what the fields mean."""

    name: str
    owner: str
    status: Status = "real"
    instead: str = ""
    alias: bool = False  # a renamed variable whose old name is still read
    since: str = ""
    until: str = ""
    kind: Kind = "text"
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()
    left_on: tuple[str, ...] = ()  # "*": any value
    severity: Severity = "warning"
    plain: bool = False  # interface names without NCCL's ^ and =
    needs_infiniband: bool = False  # left_on counts only where there is InfiniBand
    why: str = ""
    remedy: str = ""
    source: str = ""


class Catalogue(msgspec.Struct, frozen=True):
    variables: dict[str, Variable]
    real: frozenset[str]  # every real name, those with an entry included
    foreign_prefixes: tuple[str, ...]
    nccl_first_seen: dict[str, str]  # NCCL name: the first examined version that has it

    def is_ours_to_judge(self, name: str) -> bool:
        return name.startswith(_OWNED_PREFIXES) and not name.startswith(self.foreign_prefixes)

    def nearest(self, name: str, most: int = 2) -> str:
        """The real name with the fewest edits, at most `most` (3 for long names); "" when there is none."""
        limit = most + (len(name) >= 20)
        best, found = limit + 1, ""
        for candidate in sorted(self.real):
            if abs(len(candidate) - len(name)) < best and (edits := edit_distance(name, candidate, best)) < best:
                best, found = edits, candidate
        return found


@functools.cache
def catalogue() -> Catalogue:
    entries = data.entries("variables.toml", "variable", Variable)
    names = data.read("names.toml")
    nccl = {f"NCCL_{name}": version for version, listed in names["nccl"].items() for name in listed}
    listed = {name for owner in ("torch", "accelerate", "deepspeed", "cuda", "gloo", "build") for name in names[owner]}
    told = {entry.name for entry in entries if entry.status in ("real", "renamed")}
    wrong = {entry.name for entry in entries if entry.status in ("invented", "removed")}
    return Catalogue(
        variables={entry.name: entry for entry in entries},
        real=frozenset((listed | told | nccl.keys()) - wrong),
        foreign_prefixes=tuple(names["foreign"]),
        nccl_first_seen=nccl,
    )


def edit_distance(left: str, right: str, limit: int = 1 << 30) -> int:
    """Insertions, deletions, replacements and swaps of neighbours that make one text the other; at least `limit` when
    it is not less than that."""
    before: list[int] = []
    previous = list(range(len(right) + 1))
    for row, a in enumerate(left, 1):
        current = [row]
        for column, b in enumerate(right, 1):
            cost = min(previous[column] + 1, current[-1] + 1, previous[column - 1] + (a != b))
            if row > 1 and column > 1 and a == right[column - 2] and left[row - 2] == b:
                cost = min(cost, before[column - 2] + 1)
            current.append(cost)
        if min(current) >= limit:
            return limit
        before, previous = previous, current
    return previous[-1]
