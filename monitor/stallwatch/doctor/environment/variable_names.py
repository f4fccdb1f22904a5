"""Names: renamed, removed, invented, unknown."""

from collections.abc import Iterator
from typing import ClassVar

from stallwatch.doctor.check import finding
from stallwatch.doctor.check_result import Area, FindingRecord
from stallwatch.doctor.environment.after_change import can_be_set, is_found
from stallwatch.doctor.environment.known_variables import Variable, catalogue
from stallwatch.doctor.surroundings import NamedEnvironment, Surroundings
from stallwatch.doctor.version_numbers import in_range
from stallwatch.model.reading import Known


def _known(surroundings: Surroundings, status: str) -> Iterator[tuple[NamedEnvironment, Variable, str]]:
    for environment in surroundings.environments:
        for name, value in sorted(environment.values.items()):
            variable = catalogue().variables.get(name)
            if variable is not None and variable.status == status:
                yield environment, variable, value


class RenamedVariables:
    """By the catalogue's "renamed": info where the old name is still read, else a warning."""

    name: ClassVar[str] = "renamed_variable"
    area: ClassVar[Area] = "environment"
    looks_for: ClassVar[str] = "variables whose name has changed, with the new one and whether the old is still read"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A finding for each old name whose new one is not set too, unless the version here reads the old one."""
        return tuple(
            finding(
                self,
                "info" if variable.alias else "warning",
                environment.place,
                seen=f"{variable.name}={value}: {variable.owner} calls it {variable.instead} since {variable.since}.",
                why=variable.why,
                remedy=_from_when(surroundings, environment, variable)
                + f"unset {variable.name}"
                + self._then(surroundings, environment, variable, value),
                source=variable.source,
            )
            for environment, variable, value in _known(surroundings, "renamed")
            # Both names with one value is what releases between two names need, and what our hook sets; with two
            # values they contradict each other, which contradictory_variables tells.
            if value
            and variable.instead not in environment.values
            # A value that is itself a finding is told as that, with `unset`.
            and not is_found(surroundings, environment, variable.name)
            and not _is_older(surroundings, variable)
        )

    def _then(self, surroundings: Surroundings, environment: NamedEnvironment, variable: Variable, value: str) -> str:
        new = variable.values.get(value, "") if variable.values else value
        return _then(surroundings, environment, variable.name, variable.instead, new) if new else ""


def _is_older(surroundings: Surroundings, variable: Variable) -> bool:
    """Whether the version that trains here is known, and knows the old name only."""
    reading = surroundings.training.ask()
    if not isinstance(reading, Known):
        return False
    versions = {"NCCL": reading.value.nccl, "PyTorch": reading.value.versions.get("torch", "")}
    return in_range(versions.get(variable.owner, ""), "", variable.since)


def _from_when(surroundings: Surroundings, environment: NamedEnvironment, variable: Variable) -> str:
    """A file's job may run with a version that knows the old name only."""
    unknown = environment.is_file and not isinstance(surroundings.training.ask(), Known)
    return f"with {variable.owner} {variable.since} or newer: " if unknown else ""


class RemovedVariables:
    """By the catalogue's "removed": a warning with the last version that read it."""

    name: ClassVar[str] = "removed_variable"
    area: ClassVar[Area] = "environment"
    looks_for: ClassVar[str] = "variables that their owner no longer reads"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A warning for each name that the versions here no longer read."""
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
    """By the catalogue's "invented": how bad that is, and what does what was meant, stand in its entry."""

    name: ClassVar[str] = "invented_variable"
    area: ClassVar[Area] = "environment"
    looks_for: ClassVar[str] = "variables that guides pass on and nobody reads (NCCL_TIMEOUT, CUDA_MEMORY_FRACTION, …)"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A finding for each name that guides repeat and nobody reads, with what was meant."""
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
    """By distance to real names: a warning where one is near, an info where a name under a known owner's prefix is near
    none."""

    name: ClassVar[str] = "unknown_variable"
    area: ClassVar[Area] = "environment"
    looks_for: ClassVar[str] = "misspelt variables, with the nearest real name"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A finding for each name under a known prefix, or near a real name, that no version reads, with the nearest
        real one."""
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
                        else "A plug-in may read it; NCCL 2.18 to 2.32 and PyTorch 2.0 to 2.14 do not.",
                        remedy=f"unset {name}"
                        + (self._then(surroundings, environment, name, nearest) if nearest else ", or ignore this"),
                        source="names of NCCL 2.18.3 to 2.32.3, PyTorch to 2.14.1, accelerate 1.15, DeepSpeed 0.19",
                    )
                )
        return tuple(found)

    def _then(self, surroundings: Surroundings, environment: NamedEnvironment, name: str, nearest: str) -> str:
        variable = catalogue().variables.get(nearest)
        if variable is not None and variable.status == "renamed" and not _is_older(surroundings, variable):
            nearest = variable.instead
        return _then(surroundings, environment, name, nearest, environment.values[name])


def _then(surroundings: Surroundings, environment: NamedEnvironment, name: str, new: str, value: str) -> str:
    """What follows `unset name`: the right name, where nothing speaks against it with this value."""
    if new in environment.values or not can_be_set(surroundings, environment, name, new, value):
        return ""
    return f"; export {new}={value}"
