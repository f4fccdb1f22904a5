"""Values in another program's syntax, or marred on their way here: quotes, line ends, blanks."""

import re
from collections.abc import Iterator
from typing import ClassVar

from stallwatch.doctor.check import finding
from stallwatch.doctor.environment.catalogue import catalogue
from stallwatch.doctor.environment.values import integer
from stallwatch.doctor.finding import Area, FindingRecord
from stallwatch.doctor.surroundings import Surroundings

_NUMBERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK")
_QUOTED = re.compile(r"""(["'])(.*)\1""", re.DOTALL)


class WrongSyntax:
    name: ClassVar[str] = "wrong_syntax"
    area: ClassVar[Area] = "environment"
    looks_for: ClassVar[str] = "values in another program's syntax (GLOO_SOCKET_IFNAME=^lo), files that ranks overwrite"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        return tuple(
            record
            for environment in surroundings.environments
            for name, value in sorted(environment.values.items())
            for record in self._marred(environment.place, name, value)
            or self._one(environment.place, name, value.strip())
        )

    def _marred(self, place: str, name: str, value: str) -> tuple[FindingRecord, ...]:
        """Quotes and carriage returns that have become a part of the value."""
        if name not in catalogue().real and name not in _NUMBERS and not name.startswith("MASTER_"):
            return ()
        quoted = _QUOTED.fullmatch(value.strip())
        if "\r" not in value and not quoted:
            return ()
        clean = (quoted[2] if quoted else value).strip()
        what = "quotes" if quoted else "a carriage return at its end"
        return (
            finding(
                self, "error", place,
                seen=f"{name}={value!r}: {what} {'are' if quoted else 'is'} part of the value.",
                why="docker --env-file, nccl.conf and Kubernetes' values keep quotes, files from Windows their line "
                "ends; the value then names nothing that its reader knows.",
                remedy=f"{name}={clean}  (without quotes)"
                if quoted
                else f"sed -i 's/\\r$//' on the file that sets it; {name}={clean}",
            ),
        )  # fmt: skip

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
        elif name == "MASTER_PORT" and (integer(value) is None or not 0 <= (integer(value) or 0) <= 65535):
            yield finding(
                self, "error", place,
                seen=f"MASTER_PORT={value} is no port.",
                why="The rendezvous cannot begin.",
                remedy="export MASTER_PORT=29500",
            )  # fmt: skip
        elif name in _NUMBERS and value and not value.isdecimal():
            yield finding(
                self, "error", place,
                seen=f"{name}={value} is no number.",
                why="init_process_group takes it as one and fails on the rank that has it; the others wait.",
                remedy="start by torchrun, which sets it, or export the number itself",
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
