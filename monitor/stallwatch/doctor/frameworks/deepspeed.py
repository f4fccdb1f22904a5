"""DeepSpeed's configuration file: unknown keys, time-outs that are not what people think, settings that stall."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from stallwatch.doctor.advice.named_files import parts
from stallwatch.doctor.advice.scripts import texts
from stallwatch.doctor.check import Inapplicable, finding
from stallwatch.doctor.check_result import Area, FindingRecord
from stallwatch.doctor.surroundings import Surroundings
from stallwatch.errors import UnusableInput
from stallwatch.model.reading import Known

_MAXIMUM_BYTES = 4 << 20
_SMALL_BUCKET = 1_000_000  # elements: below it a step is a storm of tiny collectives
SOURCE = "DeepSpeed 0.19.8 sources"
# One of these at the top of a JSON object makes it a configuration of DeepSpeed.
_OF_DEEPSPEED = frozenset((
    "zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "wall_clock_breakdown",
    "gradient_accumulation_steps", "activation_checkpointing", "zero_allow_untested_optimizer", "flops_profiler",
))  # fmt: skip


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


def configurations(surroundings: Surroundings) -> list[tuple[str, dict[str, Any]]]:
    """What `--deepspeed` names, and what scripts, folders and guides (`--script`) hold of the kind, with its place.
    Raise Inapplicable where there is none."""
    found = [(str(path), read_config(path)) for path in surroundings.question.deepspeed]
    if surroundings.question.scripts:
        named = {path.resolve() for path in surroundings.question.deepspeed}  # the folder beside it may hold it, too
        for path, text in texts(surroundings):
            if path.resolve() in named:
                continue
            for part in parts(path, text):
                if part.language == "json" and (config := _configuration(part.text)) is not None:
                    found.append((f"{path}:{part.lines[0][0]}", config))
    if not found:
        raise Inapplicable("no --deepspeed FILE")
    return found


def _configuration(text: str) -> dict[str, Any] | None:
    """JSON that is DeepSpeed's, by its keys; comments of a guide are taken away."""
    try:
        value = json.loads(re.sub(r"^\s*(?://|#).*$|\s//\s.*$", "", text, flags=re.MULTILINE))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and not _OF_DEEPSPEED.isdisjoint(value) else None


class DeepSpeedSettings:
    """Judges how the settings of each DeepSpeed configuration fit together and this node."""

    name: ClassVar[str] = "deepspeed_settings"
    area: ClassVar[Area] = "frameworks"
    looks_for: ClassVar[str] = (
        "DeepSpeed settings that stall or do not add up: offload to a full disk, batch sizes, tiny buckets"
    )

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        return tuple(
            record
            for place, config in configurations(surroundings)
            for record in self._one(surroundings, place, config)
        )

    def _one(self, surroundings: Surroundings, path: str, config: dict[str, Any]) -> Iterator[FindingRecord]:
        zero = config.get("zero_optimization")
        if isinstance(zero, bool):
            yield finding(
                self, "error", path,
                seen=f"zero_optimization is {str(zero).lower()}, not an object.",
                why="That is the form of DeepSpeed's first releases: newer ones refuse it.",
                remedy="\"zero_optimization\": {\"stage\": 1}",
                source=SOURCE,
            )  # fmt: skip
        zero = zero if isinstance(zero, dict) else {}
        yield from self._batches(surroundings, path, config)
        if _on(config.get("fp16")) and (_on(config.get("bf16")) or _on(config.get("bfloat16"))):
            yield finding(
                self, "error", path,
                seen="fp16 and bf16 are both enabled.",
                why="DeepSpeed refuses the configuration.",
                remedy="enable one of them",
                source=SOURCE,
            )  # fmt: skip
        if config.get("wall_clock_breakdown") is True:
            yield finding(
                self, "info", path,
                seen="wall_clock_breakdown is on.",
                why="It synchronises the device around forward, backward and step: no overlap.",
                remedy="\"wall_clock_breakdown\": false once you have the numbers",
                source=SOURCE,
            )  # fmt: skip
        comms = config.get("comms_logger")
        if isinstance(comms, dict) and comms.get("enabled") is True:
            yield finding(
                self, "info", path,
                seen="comms_logger is on.",
                why="Every collective is followed by a device synchronisation to time it.",
                remedy="\"comms_logger\": {\"enabled\": false} once you have the numbers",
                source=SOURCE,
            )  # fmt: skip
        for key in ("reduce_bucket_size", "allgather_bucket_size", "stage3_prefetch_bucket_size"):
            size = zero.get(key)
            if isinstance(size, (int, float)) and not isinstance(size, bool) and 0 < size < _SMALL_BUCKET:
                yield finding(
                    self, "warning", path,
                    seen=f"zero_optimization.{key} is {size:g} elements.",
                    why="A step becomes thousands of tiny collectives and looks like a stall.",
                    remedy=f"\"{key}\": 5e8, or 5e7 where memory is short",
                    source=SOURCE,
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
        world = world_size(surroundings)
        if micro is None or steps is None:
            yield from self._divides(path, total, micro if micro is not None else steps, world)
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
                    remedy="leave one of the three out: DeepSpeed computes it"
                    + (f"; for {world} ranks train_batch_size is {micro * steps * world}" if world else ""),
                    source=SOURCE,
                )  # fmt: skip

    def _divides(self, path: str, total: object, part: object, world: int) -> Iterator[FindingRecord]:
        """Where one of the three is left out, DeepSpeed computes it, and it must come out whole."""
        if type(total) is not int or type(part) is not int or part < 1 or total < 1:
            return
        if total % (part * (world or 1)) == 0:
            return
        share = f"{part} × {world} ranks" if world else str(part)
        yield finding(
            self, "error", path,
            seen=f"train_batch_size {total} is no multiple of {share}.",
            why="DeepSpeed refuses it with an assertion on every rank.",
            remedy=f"make train_batch_size a multiple of {part * (world or 1)}, or leave it out: DeepSpeed computes it",
            source=SOURCE,
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
                source=SOURCE,
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
    """A number from 300 on is taken for seconds: as minutes it would be five hours. Inapplicable where none is set."""

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


def world_size(surroundings: Surroundings) -> int:
    """Ranks of the whole job: by --ranks and --nodes, else by WORLD_SIZE; 0 where nothing says."""
    if surroundings.question.local_ranks:
        return surroundings.question.local_ranks * (surroundings.question.nodes or 1)
    said = surroundings.variable("WORLD_SIZE")
    return int(said[0]) if said and said[0].isdecimal() else 0


def _on(section: object) -> bool:
    return isinstance(section, dict) and section.get("enabled") is True
