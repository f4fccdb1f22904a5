"""DeepSpeed's configuration file: unknown keys, time-outs that are not what people think, settings that stall."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from stallwatch.doctor import data
from stallwatch.doctor.check import Inapplicable, finding
from stallwatch.doctor.environment.catalogue import edit_distance
from stallwatch.doctor.finding import Area, FindingRecord
from stallwatch.doctor.surroundings import Surroundings
from stallwatch.doctor.versions import in_range
from stallwatch.errors import UnusableInput
from stallwatch.model.reading import Known

_MAXIMUM_BYTES = 4 << 20
_SMALL_BUCKET = 1_000_000  # elements: below it a step is a storm of tiny collectives
_SOURCE = "DeepSpeed 0.19.8 sources"


def read_config(path: Path) -> dict[str, Any]:
    """Raise UnusableInput: `--deepspeed` names a file that is none."""
    try:
        value = json.loads(path.read_bytes()[:_MAXIMUM_BYTES])
    except OSError as error:
        raise UnusableInput(f"{path}: {error.strerror}", "Name DeepSpeed's JSON file.") from error
    except ValueError as error:
        raise UnusableInput(
            f"{path}: not JSON: {error}", "DeepSpeed reads JSON; a YAML of accelerate names it inside."
        ) from error
    if not isinstance(value, dict):
        raise UnusableInput(f"{path}: not an object of keys", "Name DeepSpeed's JSON file.")
    return value


class DeepSpeedKeys:
    name: ClassVar[str] = "deepspeed_keys"
    area: ClassVar[Area] = "frameworks"
    looks_for: ClassVar[str] = (
        "keys that DeepSpeed does not know, misspelt, removed or invented, with the nearest real one"
    )

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        if not surroundings.question.deepspeed:
            raise Inapplicable("no --deepspeed FILE")
        version = deepspeed_version(surroundings)
        return tuple(
            record
            for path in surroundings.question.deepspeed
            for record in self._section(path, "", read_config(path), version)
        )

    def _section(self, path: Path, section: str, body: dict[str, Any], version: str) -> Iterator[FindingRecord]:
        known = data.read("deepspeed.toml")
        names = known["sections"].get(section)
        for key, value in body.items():
            place = f"{section}.{key}" if section else key
            if names is not None and key not in names:
                yield from self._unknown(path, section, key, known, version)
            elif isinstance(value, dict):
                yield from self._section(path, "bf16" if place == "bfloat16" else place, value, version)

    def _unknown(
        self, path: Path, section: str, key: str, known: dict[str, Any], version: str
    ) -> Iterator[FindingRecord]:
        place = f"{section}.{key}" if section else key
        if not section and key in known["removed"]:
            instead = known["removed"][key]
            gone = not version or in_range(version, "0.19", "")
            yield finding(
                self, "error" if version and gone else "info", str(path),
                seen=f"\"{place}\" was removed in DeepSpeed 0.19" + (f"; here is {version}." if version else "."),
                why="Newer releases refuse the configuration: the job does not start.",
                remedy=f"remove it{'; ' + instead if instead else ''}",
                source=_SOURCE,
            )  # fmt: skip
            return
        if key in known["older"]:
            return
        invented = known["invented"].get(key, "") if not section else ""
        nearest = _nearest(key, known["sections"][section])
        refused = section not in known["silent"]
        rename = f'rename it to "{nearest}"' if nearest else "remove it"
        yield finding(
            self, "error" if refused else "warning", str(path),
            seen=f"\"{place}\" is no key of DeepSpeed"
            + (f"; the nearest is \"{nearest}\"." if nearest and not invented else "."),
            why="DeepSpeed refuses the configuration: the job does not start."
            if refused
            else "It is ignored without a word: what it was set for does not happen.",
            remedy=f"remove it; use {invented}" if invented else rename,
            source=_SOURCE,
        )  # fmt: skip


def _nearest(key: str, names: list[str]) -> str:
    """The key with the fewest edits, or one that holds this one whole ("gather_16bit…" in "stage3_gather_16bit…")."""
    limit = max(2, len(key) // 5)
    best = min(sorted(names), key=lambda name: edit_distance(key, name, limit + 1), default="")
    if best and edit_distance(key, best, limit + 1) <= limit:
        return best
    return next((name for name in sorted(names, key=len) if len(key) > 6 and (key in name or name in key)), "")


def deepspeed_version(surroundings: Surroundings) -> str:
    reading = surroundings.training.ask()
    return reading.value.versions.get("deepspeed", "") if isinstance(reading, Known) else ""


class DeepSpeedSettings:
    name: ClassVar[str] = "deepspeed_settings"
    area: ClassVar[Area] = "frameworks"
    looks_for: ClassVar[str] = (
        "DeepSpeed settings that stall or do not add up: offload to a full disk, batch sizes, tiny buckets"
    )

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        if not surroundings.question.deepspeed:
            raise Inapplicable("no --deepspeed FILE")
        return tuple(
            record
            for path in surroundings.question.deepspeed
            for record in self._one(surroundings, str(path), read_config(path))
        )

    def _one(self, surroundings: Surroundings, path: str, config: dict[str, Any]) -> Iterator[FindingRecord]:
        zero = config.get("zero_optimization")
        zero = zero if isinstance(zero, dict) else {}
        yield from self._batches(surroundings, path, config)
        if _on(config.get("fp16")) and (_on(config.get("bf16")) or _on(config.get("bfloat16"))):
            yield finding(
                self, "error", path,
                seen="fp16 and bf16 are both enabled.",
                why="DeepSpeed refuses the configuration.",
                remedy="enable one of them",
                source=_SOURCE,
            )  # fmt: skip
        if config.get("wall_clock_breakdown") is True:
            yield finding(
                self, "info", path,
                seen="wall_clock_breakdown is on.",
                why="It synchronises the device around forward, backward and step: no overlap.",
                remedy="\"wall_clock_breakdown\": false once you have the numbers",
                source=_SOURCE,
            )  # fmt: skip
        comms = config.get("comms_logger")
        if isinstance(comms, dict) and comms.get("enabled") is True:
            yield finding(
                self, "info", path,
                seen="comms_logger is on.",
                why="Every collective is followed by a device synchronisation to time it.",
                remedy="\"comms_logger\": {\"enabled\": false} once you have the numbers",
                source=_SOURCE,
            )  # fmt: skip
        for key in ("reduce_bucket_size", "allgather_bucket_size", "stage3_prefetch_bucket_size"):
            size = zero.get(key)
            if isinstance(size, (int, float)) and not isinstance(size, bool) and 0 < size < _SMALL_BUCKET:
                yield finding(
                    self, "warning", path,
                    seen=f"zero_optimization.{key} is {size:g} elements.",
                    why="A step becomes thousands of tiny collectives and looks like a stall.",
                    remedy=f"\"{key}\": 5e8, or 5e7 where memory is short",
                    source=_SOURCE,
                )  # fmt: skip
        for part in ("offload_optimizer", "offload_param"):
            yield from self._offload(surroundings, path, part, zero.get(part))
        if zero.get("stage") in (0, 1, 2) and zero.get("offload_param"):
            yield finding(
                self, "warning", path,
                seen=f"offload_param with ZeRO stage {zero['stage']}.",
                why="Parameters are offloaded by stage 3 only.",
                remedy="\"stage\": 3, or remove offload_param",
                source="DeepSpeed documentation, ZeRO",
            )  # fmt: skip

    def _batches(self, surroundings: Surroundings, path: str, config: dict[str, Any]) -> Iterator[FindingRecord]:
        names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
        total, micro, steps = (config.get(name) for name in names)
        said = surroundings.variable("WORLD_SIZE")
        world = int(said[0]) if said and said[0].isdigit() else 0
        if all(isinstance(one, int) and not isinstance(one, bool) for one in (total, micro, steps)):
            assert isinstance(total, int)
            assert isinstance(micro, int)
            assert isinstance(steps, int)
            ranks, rest = divmod(total, micro * steps) if micro * steps else (0, 1)
            if rest or (world and ranks != world):
                yield finding(
                    self, "error", path,
                    seen=f"train_batch_size {total} is not {micro} × {steps} × {world or 'the number of ranks'}.",
                    why="DeepSpeed refuses it with an assertion on every rank.",
                    remedy="leave one of the three out: DeepSpeed computes it",
                    source=_SOURCE,
                )  # fmt: skip

    def _offload(self, surroundings: Surroundings, path: str, part: str, body: object) -> Iterator[FindingRecord]:
        if not isinstance(body, dict) or body.get("device") != "nvme":
            return
        folder = body.get("nvme_path")
        if not isinstance(folder, str):
            yield finding(
                self, "error", path,
                seen=f"{part} goes to nvme and nvme_path is not set.",
                why="DeepSpeed fails at its first swap.",
                remedy="\"nvme_path\": \"/local_nvme\"",
                source=_SOURCE,
            )  # fmt: skip
            return
        reading = surroundings.disks.space(folder)
        if not isinstance(reading, Known) or (not reading.value.writable and surroundings.user_id != 0):
            problem = "is not writable" if isinstance(reading, Known) else f"cannot be used ({reading.reason})"
            yield finding(
                self, "error", path,
                seen=f"{part}.nvme_path {folder} {problem}.",
                why="The rank of this node fails or waits at its first swap, and the others wait for it.",
                remedy=f"mkdir -p {folder} on a local disk of every node",
            )  # fmt: skip


class DeepSpeedTimeout:
    name: ClassVar[str] = "deepspeed_timeout"
    area: ClassVar[Area] = "frameworks"
    looks_for: ClassVar[str] = "DEEPSPEED_TIMEOUT in seconds where minutes are read"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        said = surroundings.variable("DEEPSPEED_TIMEOUT")
        if said is None:
            raise Inapplicable("DEEPSPEED_TIMEOUT is not set")
        value, environment = said
        if not value.isdigit() or int(value) < 300:
            return ()
        return (
            finding(
                self, "warning", environment.place,
                seen=f"DEEPSPEED_TIMEOUT={value} is {int(value) / 60:.0f} hours: the unit is minutes.",
                why="A hang is ended after that time only.",
                remedy=f"export DEEPSPEED_TIMEOUT={min(60, max(1, int(value) // 60))}",
                source="DeepSpeed 0.19.8 constants.py",
            ),
        )  # fmt: skip


def _on(section: object) -> bool:
    return isinstance(section, dict) and section.get("enabled") is True
