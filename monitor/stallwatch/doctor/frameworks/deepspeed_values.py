"""Values in DeepSpeed's configuration that it does not accept."""

from collections.abc import Iterator
from typing import Any, ClassVar, Final, NamedTuple

from stallwatch.doctor import data
from stallwatch.doctor.check import finding
from stallwatch.doctor.check_result import Area, FindingRecord, Severity
from stallwatch.doctor.environment.known_variables import edit_distance
from stallwatch.doctor.frameworks.deepspeed import SOURCE, configurations
from stallwatch.doctor.surroundings import Surroundings

_REFUSED: Final = "DeepSpeed refuses the configuration: the job does not start."
_AS_TEXT: Final = (
    "DeepSpeed may read text as it is meant, and Transformers and accelerate compare it with the number or the truth "
    "value: then another stage, or none, is set up than the one that is written."
)
_AUTO: Final = "auto"
# Devices to which DeepSpeed offloads, by what people call them.
_MEANT: Final = {"gpu": "none", "cuda": "none", "disk": "nvme", "ssd": "nvme", "ram": "cpu", "host": "cpu"}


class DeepSpeedValues:
    """Judges each value of each configuration by its key alone."""

    name: ClassVar[str] = "deepspeed_values"
    area: ClassVar[Area] = "frameworks"
    looks_for: ClassVar[str] = "values that DeepSpeed does not accept: a stage 4, an unknown device, text for a number"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        return tuple(
            record for place, config in configurations(surroundings) for record in self._section(place, "", config)
        )

    def _section(self, place: str, section: str, body: dict[str, Any]) -> Iterator[FindingRecord]:
        known = data.read("deepspeed.toml")
        for key, value in body.items():
            path = f"{section}.{key}" if section else key
            path = path.replace("bfloat16", "bf16", 1) if not section else path
            if isinstance(value, dict):
                yield from self._section(place, path, value)
                continue
            if value is None or value == _AUTO:
                continue
            wrong = _wrong(path, value, known)
            if wrong is not None:
                yield finding(
                    self, wrong.severity, place,
                    seen=f"\"{path}\" is {_shown(value)}{wrong.what}.",
                    why=_REFUSED if wrong.severity == "error" else _AS_TEXT,
                    remedy=f"\"{path.rpartition('.')[2]}\": {wrong.better}",
                    source=SOURCE,
                )  # fmt: skip


class _Wrong(NamedTuple):
    severity: Severity
    what: str
    better: str  # what to write instead


def _wrong(path: str, value: object, known: dict[str, Any]) -> _Wrong | None:
    if path in known["objects"]:
        inner = f'{{"enabled": {_shown(value)}}}' if isinstance(value, bool) else '{"device": "cpu"}'
        return _Wrong("error", ", not an object", inner if isinstance(value, bool) or "offload" in path else "{…}")
    allowed = known["values"].get(path)
    if allowed is not None and (value not in allowed or isinstance(value, bool)):
        options = list({str(one).lower(): one for one in reversed(allowed)}.values())[::-1]
        if isinstance(value, str) and value.isdecimal() and int(value) in options:
            return _Wrong("warning", ", text and no number", value)
        said = f", which is none of {', '.join(map(_shown, options))}"
        return _Wrong("error", said, _shown(_nearest(value, options)))
    if path in known["counts"] and not _is_count(value):
        if isinstance(value, str) and value.isdecimal() and int(value):
            return _Wrong("warning", ", text and no number", value)
        return _Wrong("error", ", and a whole number from 1 on is wanted", "<a whole number>, or leave it out")
    if path in known["switches"] and isinstance(value, str):
        meant = "false" if value.lower() in ("false", "0", "no", "off") else "true"
        return _Wrong("warning", ", text and neither true nor false", f"{meant}, without quotes")
    return None


def _is_count(value: object) -> bool:
    """1e9 and 5e8 are numbers in JSON, and DeepSpeed takes them."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 1 and value == int(value)


def _nearest(value: object, options: list[Any]) -> Any:
    if isinstance(value, (int, float)) and all(isinstance(one, int) for one in options):
        return min(options, key=lambda one: abs(one - value))
    if isinstance(value, str) and _MEANT.get(value.lower()) in options:
        return _MEANT[value.lower()]
    return min(options, key=lambda one: edit_distance(str(value).lower(), str(one).lower()))


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
