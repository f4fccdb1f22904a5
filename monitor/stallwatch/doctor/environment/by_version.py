"""What the installed versions make of variables: a recorder that is off, names that they do not read yet."""

from typing import ClassVar

from stallwatch.doctor.check import Inapplicable, Undetermined, finding
from stallwatch.doctor.check_result import Area, FindingRecord
from stallwatch.doctor.environment.known_variables import BUFFER_SIZES, RECORDER_ON, catalogue
from stallwatch.doctor.environment.values import complaint, is_left_on, is_marred
from stallwatch.doctor.surroundings import Surroundings
from stallwatch.doctor.version_numbers import in_range, parse_version
from stallwatch.model.reading import Known


class RecorderOff:
    """Judges by torch's version, of which the recorder's default depends; where that is not known, by what is set
    alone."""

    name: ClassVar[str] = "recorder_off"
    area: ClassVar[Area] = "environment"
    looks_for: ClassVar[str] = "PyTorch's flight recorder turned off, or off by default in this version"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A warning for each environment that sets the ring's size to 0; an info where nobody sets it and this torch
        has it off."""
        training = surroundings.training.ask()
        torch = training.value.versions.get("torch", "") if isinstance(training, Known) else ""
        # On by default since 2.11 (measured on 2.10 and 2.11); no recorder before 2.2.
        off_by_default = in_range(torch, "2.2", "2.11")
        # The newer name counts where both are set and it is known.
        names = BUFFER_SIZES[1:] if in_range(torch, "", "2.8") else BUFFER_SIZES
        found = [
            finding(
                self, "warning", environment.place,
                seen=f"{name}=0 turns the flight recorder off.",
                why="After a hang nothing tells which rank had entered which collective.",
                remedy=RECORDER_ON
                if off_by_default
                else "unset " + " ".join(catalogue().names_set(name, environment.values))
                + "  (stallwatch.attach() then chooses; it costs about 1 µs per collective)",
                source="torch/csrc/distributed/c10d/FlightRecorder",
            )
            for environment in surroundings.environments
            if (name := next((one for one in names if one in environment.values), ""))
            and environment.values[name].strip() == "0"
        ]  # fmt: skip
        if found or not off_by_default or self._is_set(surroundings):
            return tuple(found)
        return (
            finding(
                self, "info", f"torch {torch}",
                seen="The flight recorder is off unless TORCH_FR_BUFFER_SIZE is set; torch 2.11 is the first with it "
                "on.",
                why="Without stallwatch's hook nothing tells which rank had entered which collective.",
                remedy=f"call stallwatch.attach() in the training script (it turns the recorder on), or {RECORDER_ON}",
            ),
        )  # fmt: skip

    def _is_set(self, surroundings: Surroundings) -> bool:
        return any(one.values.get(name) for one in surroundings.environments for name in BUFFER_SIZES)


class NotReadByThisVersion:
    """Compares the catalogue's first versions with those of the training interpreter; Inapplicable where this does not
    answer, Undetermined where nothing was found and a version was not known."""

    name: ClassVar[str] = "variable_too_new"
    area: ClassVar[Area] = "environment"
    looks_for: ClassVar[str] = "variables that this NCCL or PyTorch is too old to read"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A finding for each variable that is read only by a later version than the one here."""
        training = surroundings.training.ask()
        if not isinstance(training, Known):
            raise Inapplicable(f"the versions are not known: {training.reason}")
        versions = {"NCCL": training.value.nccl, "PyTorch": training.value.versions.get("torch", "")}
        found = []
        unknown: dict[str, str] = {}
        for environment in surroundings.environments:
            for name, value in sorted(environment.values.items()):
                variable = catalogue().variables.get(name)
                if variable is None or variable.status != "real" or not variable.since:
                    continue
                have = versions.get(variable.owner, "")
                names = catalogue().names_set(name, environment.values)
                if len(names) > 1 and len({environment.values[one] for one in names}) == 1:
                    continue  # the old name says the same: right for versions on both sides of the change
                if is_marred(value) or is_left_on(variable, value) or complaint(variable, value):
                    continue  # told as that, with `unset`
                if not parse_version(have):
                    unknown[variable.owner] = name
                elif in_range(have, "", variable.since):
                    found.append(
                        finding(
                            self,
                            "warning",
                            environment.place,
                            seen=f"{name}={value}: read since {variable.owner} {variable.since}; here is {have}.",
                            why="It is ignored without a word.",
                            remedy=f"unset {name}, or upgrade {variable.owner} to {variable.since} or newer",
                            source=variable.source,
                        )
                    )
        if unknown and not found:
            what = "; ".join(f"{owner}'s version ({name})" for owner, name in unknown.items())
            raise Undetermined(f"not compared, for it is not known: {what}")
        return tuple(found)
