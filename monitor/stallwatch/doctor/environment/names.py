"""Names: renamed, removed, invented, unknown."""

from collections.abc import Iterator
from typing import ClassVar

from stallwatch.doctor.check import finding
from stallwatch.doctor.environment.catalogue import Variable, catalogue
from stallwatch.doctor.finding import Area, FindingRecord
from stallwatch.doctor.surroundings import NamedEnvironment, Surroundings


def _known(surroundings: Surroundings, status: str) -> Iterator[tuple[NamedEnvironment, Variable, str]]:
    for environment in surroundings.environments:
        for name, value in sorted(environment.values.items()):
            variable = catalogue().variables.get(name)
            if variable is not None and variable.status == status:
                yield environment, variable, value


class RenamedVariables:
    name: ClassVar[str] = "renamed_variable"
    area: ClassVar[Area] = "environment"
    looks_for: ClassVar[str] = "variables whose name has changed, with the new one and whether the old is still read"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        return tuple(
            finding(
                self,
                "info" if variable.alias else "warning",
                environment.place,
                seen=f"{variable.name}={value}: {variable.owner} calls it {variable.instead} since {variable.since}.",
                why=variable.why,
                remedy=f"unset {variable.name}"
                + ("" if variable.instead in environment.values else f"; export {variable.instead}={value}"),
                source=variable.source,
            )
            for environment, variable, value in _known(surroundings, "renamed")
            # Both names with one value is what releases between two names need, and what our hook sets.
            if environment.values.get(variable.instead) != value
        )


class RemovedVariables:
    name: ClassVar[str] = "removed_variable"
    area: ClassVar[Area] = "environment"
    looks_for: ClassVar[str] = "variables that their owner no longer reads"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        return tuple(
            finding(
                self,
                "warning",
                environment.place,
                seen=f"{variable.name}={value}: {variable.owner} has not read it since {variable.until}.",
                why=variable.why,
                remedy=f"unset {variable.name}",
                source=variable.source,
            )
            for environment, variable, value in _known(surroundings, "removed")
        )


class InventedVariables:
    name: ClassVar[str] = "invented_variable"
    area: ClassVar[Area] = "environment"
    looks_for: ClassVar[str] = "variables that guides pass on and nobody reads (NCCL_TIMEOUT, CUDA_MEMORY_FRACTION, …)"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        return tuple(
            finding(
                self,
                variable.severity,
                environment.place,
                seen=f"{variable.name}={value}: no such variable; nobody reads it.",
                why=f"{variable.why} What it was set for does not happen.",
                remedy=f"unset {variable.name}; use {variable.instead}",
                source=variable.source,
            )
            for environment, variable, value in _known(surroundings, "invented")
        )


class UnknownVariables:
    name: ClassVar[str] = "unknown_variable"
    area: ClassVar[Area] = "environment"
    looks_for: ClassVar[str] = "misspelt variables, with the nearest real name"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        known = catalogue()
        found = []
        for environment in surroundings.environments:
            for name, value in sorted(environment.values.items()):
                if name in known.real or name in known.variables:
                    continue
                nearest = known.nearest(name) if known.is_ours_to_judge(name) else known.meant(name)
                if not nearest and not known.is_ours_to_judge(name):
                    continue
                found.append(
                    finding(
                        self,
                        "warning" if nearest else "info",
                        environment.place,
                        seen=f"{name}={value}: no version that we know reads it"
                        + (f"; the nearest real name is {nearest}." if nearest else "."),
                        why="A misspelt setting is ignored without a word."
                        if nearest
                        else "A plug-in may read it; NCCL 2.18 to 2.32 and PyTorch 2.0 to 2.13 do not.",
                        remedy=f"unset {name}; export {nearest}={value}"
                        if nearest
                        else f"unset {name}, or ignore this",
                        source="names of NCCL 2.18.3 to 2.32.3, PyTorch to 2.13, accelerate 1.15, DeepSpeed 0.19",
                    )
                )
        return tuple(found)
