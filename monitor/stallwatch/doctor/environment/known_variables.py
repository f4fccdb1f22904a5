"""What is known about environment variables: data/variables.toml and data/names.toml, and the nearest real name."""

import functools
import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from stallwatch.doctor import data
from stallwatch.doctor.check_result import Severity

Status = Literal["real", "renamed", "removed", "invented"]
Kind = Literal["integer", "boolean", "choice", "tokens", "algorithms", "interfaces", "text"]

# The recorder's ring, by its newer and its older name.
BUFFER_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
RECORDER_ON = "export TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_TRACE_BUFFER_SIZE=2000"

# Beyond these prefixes a variable is nobody's that we know. CUDA_ and PYTORCH_ are not among them: programs invent such
# names for themselves, and only those listed as invented are told.
_OWNED_PREFIXES = ("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "TORCH_DIST", "GLOO_", "TP_SOCKET_", "ACCELERATE_", "DS_ACC")

# Names that many set and of which a misspelt one is certain to be meant: one edit away, two for long ones. Names of two
# words only, so that programs' own inventions are not taken for them.
_WELL_KNOWN = (
    "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_ORDER", "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_MODULE_LOADING", "DEEPSPEED_TIMEOUT", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "LOCAL_RANK",
    "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF", "TORCH_CUDA_ARCH_LIST", "TORCH_EXTENSIONS_DIR",
    "TORCH_SHOW_CPP_STACKTRACES", "TRITON_CACHE_DIR",
)  # fmt: skip
_LONG = 14  # letters from which two edits are still the same word
_MISSPELT_NCCL = re.compile(r"(?:NCC|NCL|NCCCL|NCLL|NCCLL|NNCCL|NLCC|CNCL|NCCI|NCC1|NVCCL)_(.+)")


class Variable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of variables.toml; its head says what the fields mean."""

    name: str
    owner: str
    status: Status = "real"
    instead: str = ""
    alias: bool = False  # a renamed variable whose old name is still read
    values: dict[str, str] = {}  # of a renamed variable whose new name takes other values: old value, new value
    since: str = ""
    until: str = ""
    kind: Kind = "text"
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()
    exact: bool = False  # the choices in these letters only
    meant: dict[str, str] = {}  # what people write for one of the choices
    left_on: tuple[str, ...] = ()  # "*": any value
    severity: Severity = "warning"  # of a value that is left on
    wrong_severity: Severity = "warning"  # of a value that the owner does not accept
    wrong_why: str = ""  # what such a value does; "": why says it, where it does not speak of a value left on
    plugins_choose: bool = False  # guides of clouds' network plugins set it: left on, it is only mentioned there
    plain: bool = False  # interface names without NCCL's ^ and =
    needs_infiniband: bool = False  # left_on counts only where there is InfiniBand
    why: str = ""
    remedy: str = ""
    source: str = ""


class Catalogue(msgspec.Struct, frozen=True):
    """All that is known of environment variables: those with rules, all real names, and whose names are not ours to
    judge."""

    variables: dict[str, Variable]
    real: frozenset[str]  # every real name, those with an entry included
    foreign_prefixes: tuple[str, ...]

    def rules_of(self, name: str) -> Variable | None:
        """What a name's value is held to: its own entry, under an old name that of the new one."""
        variable = self.variables.get(name)
        if variable is None or variable.status != "renamed":
            return variable if variable is not None and variable.status == "real" else None
        new = self.variables.get(variable.instead)
        if new is None or new.status != "real" or variable.values:
            return msgspec.structs.replace(variable, status="real")
        return msgspec.structs.replace(new, name=name, since="")

    def old_names(self, name: str) -> tuple[str, ...]:
        """The names that a variable had before."""
        return tuple(one.name for one in self.variables.values() if one.status == "renamed" and one.instead == name)

    def names_set(self, name: str, values: Mapping[str, str]) -> tuple[str, ...]:
        """Every name of a variable that is set, this one first: to take it away is to unset them all."""
        new = self.newest_name(name)
        return (name, *(one for one in (new, *self.old_names(new)) if one != name and one in values))

    def newest_name(self, name: str) -> str:
        """Return what a variable is called now; a name that was not changed, or that nobody knows, as it is."""
        variable = self.variables.get(name)
        return variable.instead if variable is not None and variable.status == "renamed" else name

    def is_ours_to_judge(self, name: str) -> bool:
        """Whether a name has a prefix whose owner we know in full, so that one that is not listed is a mistake."""
        return name.startswith(_OWNED_PREFIXES) and not name.startswith(self.foreign_prefixes)

    def meant(self, name: str) -> str:
        """The well-known name that a name outside our prefixes is a misspelling of; "" when it is nobody's."""
        if name in self.real or name in self.variables or self.is_ours_to_judge(name):
            return ""
        loud = name.upper()
        if name != loud and loud in self.real and loud.startswith((*_OWNED_PREFIXES, "CUDA_VISIBLE_")):
            return loud
        if (match := _MISSPELT_NCCL.fullmatch(name)) and f"NCCL_{match[1]}" in self.real:
            return f"NCCL_{match[1]}"
        for known in _WELL_KNOWN:
            most = 1 + (len(known) >= _LONG)
            if name != known and name[0] == known[0] and edit_distance(name, known, most + 1) <= most:
                return known
        return ""

    def nearest(self, name: str, most: int = 2) -> str:
        """The real name with the fewest edits, at most `most` (3 for long names), else the one with the same words but
        for one, or in another order; "" when there is none."""
        limit = most + (len(name) >= 20)
        best, found = limit + 1, ""
        for candidate in sorted(self.real):
            if abs(len(candidate) - len(name)) < best and (edits := edit_distance(name, candidate, best)) < best:
                best, found = edits, candidate
        return found or self._by_words(name)

    def _by_words(self, name: str) -> str:
        """NCCL_DISABLE_P2P is NCCL_P2P_DISABLE, TORCH_NCCL_TRACE_BUFFER lacks SIZE, NCCL_DEBUG_LEVEL has a word too
        many: where one real name alone fits, of several the one that the name begins."""
        words = name.split("_")
        if len(words) < _FEWEST_WORDS:
            return ""
        close = [real for real in self.real if real.startswith(_OWNED_PREFIXES) and _but_for_one(words, real)]
        fitting = [real for real in close if sorted(real.split("_")) == sorted(words)] or close
        if len(fitting) > 1:
            fitting = [real for real in fitting if real.startswith(f"{name}_")] or fitting
        return fitting[0] if len(fitting) == 1 else ""


_FEWEST_WORDS = 3  # of a name that is looked up by its words


def _but_for_one(words: list[str], real: str) -> bool:
    """Whether a real name has these words in any order, or one more, or lacks the first or the last: one more in the
    middle may make a plug-in's own name (NCCL_DYNAMIC_CHUNK_SIZE)."""
    others = real.split("_")
    if len(words) == len(others) + 1:
        return others in (words[1:], words[:-1])
    if len(others) - len(words) not in (0, 1):
        return False
    return all(words.count(word) <= others.count(word) for word in words)


@functools.cache
def catalogue() -> Catalogue:
    """Return the catalogue of variables.toml and names.toml, which come with the package."""
    entries = data.entries("variables.toml", "variable", Variable)
    names = data.read("names.toml")
    nccl = {f"NCCL_{name}" for listed in names["nccl"].values() for name in listed}
    listed = {
        name
        for owner in ("torch", "accelerate", "deepspeed", "cuda", "gloo", "launcher", "build")
        for name in names[owner]
    }
    told = {entry.name for entry in entries if entry.status in ("real", "renamed")}
    wrong = {entry.name for entry in entries if entry.status in ("invented", "removed")}
    return Catalogue(
        variables={entry.name: entry for entry in entries},
        real=frozenset((listed | told | nccl) - wrong),
        foreign_prefixes=tuple(names["foreign"]),
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
