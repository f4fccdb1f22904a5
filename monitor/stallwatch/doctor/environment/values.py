"""Values: out of range, wrong syntax, debugging settings left on."""

import re
from collections.abc import Iterator
from typing import ClassVar

from stallwatch.doctor.check import finding
from stallwatch.doctor.environment.catalogue import Variable, catalogue
from stallwatch.doctor.finding import Area, FindingRecord
from stallwatch.doctor.infiniband import infiniband_ports
from stallwatch.doctor.surroundings import NamedEnvironment, Surroundings

# c10d's getCvarBool takes these, in any case; NCCL's parameters are integers.
_TORCH_BOOLEANS = frozenset(("0", "1", "y", "n", "yes", "no", "t", "f", "true", "false", "on", "off"))


def _real(surroundings: Surroundings) -> Iterator[tuple[NamedEnvironment, Variable, str]]:
    for environment in surroundings.environments:
        for name, value in sorted(environment.values.items()):
            variable = catalogue().variables.get(name)
            if variable is not None and variable.status in ("real", "renamed") and value != "":
                yield environment, variable, value.strip()


def complaint(variable: Variable, value: str) -> str:
    """Why the owner does not accept a value, as the rest of a sentence; "" when it does."""
    if variable.kind == "integer" or (variable.kind == "boolean" and variable.owner == "NCCL"):
        number = _integer(value)
        least, most = (0, 1) if variable.kind == "boolean" else (variable.minimum, variable.maximum)
        if number is None:
            return "is no whole number"
        if (least is not None and number < least) or (most is not None and number > most):
            return f"is outside {least if least is not None else '…'} to {most if most is not None else '…'}"
    elif variable.kind == "boolean" and variable.owner == "PyTorch" and value.lower() not in _TORCH_BOOLEANS:
        return "is neither 0 nor 1"
    elif variable.kind == "choice" and value.upper() not in variable.choices:
        return f"is none of {', '.join(variable.choices)}"
    elif variable.kind == "tokens":
        unknown = [token for token in value.removeprefix("^").upper().split(",") if token not in variable.choices]
        if unknown:
            return f"has {', '.join(unknown)}, which is none of {', '.join(variable.choices)}"
    return ""


class OutOfRange:
    name: ClassVar[str] = "value_out_of_range"
    area: ClassVar[Area] = "environment"
    looks_for: ClassVar[str] = (
        "values that their owner ignores or takes as something else (NCCL_IB_TIMEOUT=0 is for ever)"
    )

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        return tuple(
            finding(
                self,
                "warning",
                environment.place,
                seen=f"{variable.name}={value} {problem}.",
                why=variable.why or "The setting has no effect.",
                remedy=f"unset {variable.name}, or set a value that {variable.owner} accepts",
                source=variable.source,
            )
            for environment, variable, value in _real(surroundings)
            if (problem := complaint(variable, value))
        )


class DebugLeftOn:
    name: ClassVar[str] = "debug_left_on"
    area: ClassVar[Area] = "environment"
    looks_for: ClassVar[str] = (
        "settings for debugging that cost speed or hang (P2P, SHM or IB off, blocking wait, launch blocking)"
    )

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        has_infiniband = bool(infiniband_ports(surroundings))
        return tuple(
            finding(
                self,
                variable.severity,
                environment.place,
                seen=f"{variable.name}={value} is set.",
                why=variable.why,
                remedy=variable.remedy,
                source=variable.source,
            )
            for environment, variable, value in _real(surroundings)
            if _is_left_on(variable, value) and (has_infiniband or not variable.needs_infiniband)
        )


def _is_left_on(variable: Variable, value: str) -> bool:
    return "*" in variable.left_on or value.lower() in {one.lower() for one in variable.left_on}


class WrongSyntax:
    name: ClassVar[str] = "wrong_syntax"
    area: ClassVar[Area] = "environment"
    looks_for: ClassVar[str] = "values in another program's syntax (GLOO_SOCKET_IFNAME=^lo), files that ranks overwrite"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        return tuple(
            record
            for environment in surroundings.environments
            for name, value in sorted(environment.values.items())
            for record in self._one(environment.place, name, value.strip())
        )

    def _one(self, place: str, name: str, value: str) -> Iterator[FindingRecord]:
        variable = catalogue().variables.get(name)
        if variable is not None and variable.plain and value[:1] in ("^", "="):
            yield finding(
                self, "error", place,
                seen=f"{name}={value}: the {value[0]!r} is NCCL's syntax, not {variable.owner}'s.",
                why=variable.why,
                remedy=f"export {name}=eth0  (one existing interface by its plain name: `ip -br addr`), or unset it",
                source=variable.source,
            )  # fmt: skip
        elif name == "NCCL_IB_HCA" and (prefix := _matches_more(value)):
            yield finding(
                self, "info", place,
                seen=f"{name}={value}: without \"=\" each name is a prefix, so {prefix} also means {prefix}0 to "
                f"{prefix}9.",
                why="Adapters that were not meant, storage ones for example, carry the job's traffic.",
                remedy="export NCCL_IB_HCA==" + value.lstrip("="),
                source="NCCL user guide, NCCL_IB_HCA",
            )  # fmt: skip
        elif name == "NCCL_DEBUG_FILE" and value not in ("stdout", "stderr") and "%p" not in value:
            yield finding(
                self, "warning", place,
                seen=f"{name}={value} has no %p.",
                why="Every rank of a node writes the same file over the others' lines.",
                remedy=f"export NCCL_DEBUG_FILE={value}.%h.%p",
                source="NCCL user guide, NCCL_DEBUG_FILE",
            )  # fmt: skip
        elif name == "NCCL_DEBUG_FILE" and value.startswith("~"):
            yield finding(
                self, "warning", place,
                seen=f"{name}={value}: NCCL does not know ~.",
                why="The file is not written.",
                remedy="export NCCL_DEBUG_FILE=$HOME" + value[1:],
                source="NCCL user guide, NCCL_DEBUG_FILE",
            )  # fmt: skip
        elif name == "CUDA_VISIBLE_DEVICES" and re.search(r"\s", value):
            yield finding(
                self, "error", place,
                seen=f"{name}={value!r} holds blanks.",
                why="CUDA stops reading at the first entry that it does not understand: later GPUs are invisible.",
                remedy="export CUDA_VISIBLE_DEVICES=" + ",".join(re.split(r"[,\s]+", value)),
                source="CUDA programming guide",
            )  # fmt: skip
        elif name == "MASTER_PORT" and (_integer(value) is None or not 0 <= (_integer(value) or 0) <= 65535):
            yield finding(
                self, "error", place,
                seen=f"MASTER_PORT={value} is no port.",
                why="The rendezvous cannot begin.",
                remedy="export MASTER_PORT=29500",
            )  # fmt: skip
        elif name == "MASTER_ADDR" and ("://" in value or re.fullmatch(r"[\w.-]+:\d+", value)):
            yield finding(
                self, "error", place,
                seen=f"MASTER_ADDR={value} is not a bare host name or address.",
                why="It is looked up as one name and found nowhere; the job waits for its rendezvous until it times "
                "out.",
                remedy="put the host into MASTER_ADDR and the port into MASTER_PORT",
            )  # fmt: skip


def _matches_more(value: str) -> str:
    """The first name of a prefix list that ends in a digit ("mlx5_1" is also mlx5_10)."""
    if value.startswith(("=", "^=")):
        return ""
    names = (entry.split(":")[0] for entry in value.removeprefix("^").split(","))
    return next((name for name in names if re.fullmatch(r"\w+_[1-9]", name)), "")


def _integer(value: str) -> int | None:
    try:
        return int(value, 0)
    except ValueError:
        return int(value) if value.isdecimal() else None
