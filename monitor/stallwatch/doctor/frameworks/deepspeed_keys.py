"""Keys of DeepSpeed's configuration: misspelt, removed, old, of another stage or another library."""

from collections.abc import Iterator
from typing import Any, ClassVar

from stallwatch.doctor import data
from stallwatch.doctor.check import finding
from stallwatch.doctor.check_result import Area, FindingRecord
from stallwatch.doctor.environment.known_variables import edit_distance
from stallwatch.doctor.frameworks.deepspeed import SOURCE, configurations
from stallwatch.doctor.surroundings import Surroundings
from stallwatch.doctor.version_numbers import in_range
from stallwatch.model.reading import Known


class DeepSpeedKeys:
    """Judges the keys of each configuration by the version of DeepSpeed in the training interpreter."""

    name: ClassVar[str] = "deepspeed_keys"
    area: ClassVar[Area] = "frameworks"
    looks_for: ClassVar[str] = (
        "keys that DeepSpeed does not know or no longer wants, of another stage or library, with the right one"
    )

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        version = deepspeed_version(surroundings)
        return tuple(
            record
            for place, config in configurations(surroundings)
            for record in (*self._section(place, "", config, version), *self._stage(place, config))
        )

    def _section(self, place: str, section: str, body: dict[str, Any], version: str) -> Iterator[FindingRecord]:
        known = data.read("deepspeed.toml")
        names = known["sections"].get(section)
        for key, value in body.items():
            path = f"{section}.{key}" if section else key
            if path in known["deprecated"]:
                yield self._deprecated(place, path, known["deprecated"][path])
            if names is not None and key not in names:
                yield from self._unknown(place, section, key, known, version)
            elif isinstance(value, dict):
                yield from self._section(place, "bf16" if path == "bfloat16" else path, value, version)

    def _deprecated(self, place: str, path: str, instead: str) -> FindingRecord:
        return finding(
            self, "warning", place,
            seen=f"\"{path}\" is an old key: DeepSpeed calls it {instead}.",
            why="Some releases still read it, with a warning that is lost among others; newer ones refuse it.",
            remedy=f"write {instead} instead",
            source=SOURCE,
        )  # fmt: skip

    def _unknown(
        self, place: str, section: str, key: str, known: dict[str, Any], version: str
    ) -> Iterator[FindingRecord]:
        path = f"{section}.{key}" if section else key
        if not section and key in known["removed"]:
            instead = known["removed"][key]
            gone = not version or in_range(version, "0.19", "")
            yield finding(
                self, "error" if version and gone else "info", place,
                seen=f"\"{path}\" was removed in DeepSpeed 0.19" + (f"; here is {version}." if version else "."),
                why="Newer releases refuse the configuration: the job does not start.",
                remedy=f"remove it{'; ' + instead if instead else ''}",
                source=SOURCE,
            )  # fmt: skip
            return
        if key in known["older"] or path in known["deprecated"]:
            return
        refused = section not in known["silent"]
        whose = known["foreign"].get(key, "")
        whose = whose or next((of for begins, of in known["whose"].items() if key.startswith(begins)), "")
        home = _home(key, section, known)
        invented = known["invented"].get(key, "") if not section else ""
        nearest = "" if whose or home else _nearest(key, known["sections"][section])
        if whose:
            seen, remedy = f"; it is a key of {whose.partition(': ')[0]}.", f"remove it; {whose.partition(': ')[2]}"
        elif home:
            seen, remedy = f' there; it belongs into "{home}".', f'move it: {{"{home}": {{"{key}": …}}}}'
        elif invented:
            seen, remedy = ".", f"remove it; use {invented}"
        else:
            seen = f'; the nearest is "{nearest}".' if nearest else "."
            remedy = f'rename it to "{nearest}"' if nearest else "remove it"
        yield finding(
            self, "error" if refused else "warning", place,
            seen=f"\"{path}\" is no key of DeepSpeed{seen}",
            why="DeepSpeed refuses the configuration: the job does not start."
            if refused
            else "It is ignored without a word: what it was set for does not happen.",
            remedy=remedy,
            source=SOURCE,
        )  # fmt: skip

    def _stage(self, place: str, config: dict[str, Any]) -> Iterator[FindingRecord]:
        """Keys that another stage reads."""
        zero = config.get("zero_optimization")
        stage = zero.get("stage", 0) if isinstance(zero, dict) else 0
        if not isinstance(zero, dict) or type(stage) is not int:
            return
        for stages, keys in data.read("deepspeed.toml")["stages"].items():
            numbers = {int(number) for number in stages.split(",")}
            idle = [key for key in keys if zero.get(key) not in (None, False) and stage not in numbers]
            if idle:
                named = " and ".join(sorted(map(str, numbers)))
                yield finding(
                    self, "warning", place,
                    seen=f"{', '.join(idle)}: of ZeRO stage {named}, and the configuration has stage {stage}.",
                    why=f"Stage {stage} does not read them: what they were set for does not happen.",
                    remedy=f"\"stage\": {max(numbers)}, or remove them",
                    source="DeepSpeed documentation, ZeRO",
                )  # fmt: skip


def _home(key: str, section: str, known: dict[str, Any]) -> str:
    """The one other section that has this key; "" where several have it, or none."""
    common = {"enabled", "type", "params", "output_path", "job_name", "device", "dtype", "verbose", "debug", "timeout"}
    homes = [name for name, keys in known["sections"].items() if name != section and key in keys]
    return homes[0] if len(homes) == 1 and homes[0] and key not in common else ""


def _nearest(key: str, names: list[str]) -> str:
    """The key with the fewest edits, or one that holds this one whole ("gather_16bit…" in "stage3_gather_16bit…")."""
    limit = max(2, len(key) // 5)
    best = min(sorted(names), key=lambda name: edit_distance(key, name, limit + 1), default="")
    if best and edit_distance(key, best, limit + 1) <= limit:
        return best
    return next((name for name in sorted(names, key=len) if len(key) > 6 and (key in name or name in key)), "")


def deepspeed_version(surroundings: Surroundings) -> str:
    """Return DeepSpeed's version in the interpreter of training; "" where it has none or does not answer."""
    reading = surroundings.training.ask()
    return reading.value.versions.get("deepspeed", "") if isinstance(reading, Known) else ""
