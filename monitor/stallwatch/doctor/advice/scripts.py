"""Scripts that a person named, or that running ranks were started with: advice that harms."""

import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from stallwatch.doctor import data
from stallwatch.doctor.advice.named_files import commands, parts
from stallwatch.doctor.advice.settings import settings_of
from stallwatch.doctor.check import Inapplicable, Undetermined, finding
from stallwatch.doctor.check_result import Area, FindingRecord, Severity
from stallwatch.doctor.surroundings import Surroundings

_LIMIT_BYTES = 2 << 20
_MOST_FILES = 500
_SUFFIXES = frozenset((
    ".py", ".sh", ".bash", ".sbatch", ".slurm", ".md", ".rst", ".yaml", ".yml", ".json", ".env", ".conf",
))  # fmt: skip
_LEFT_OUT = frozenset(("node_modules", "__pycache__", "venv", "env", "site-packages", "build", "dist", "wandb"))


class Advice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of data/advice.toml: advice that is followed in scripts and does harm, and how it is recognised."""

    what: str
    severity: Severity
    why: str
    better: str
    pattern: str = ""
    unless: str = ""  # a pattern of the whole part of a file: where it stands, the advice is not harmful
    within: str = ""  # a pattern of the whole part of a file: only there it is
    variables: tuple[str, ...] = ()
    values: tuple[str, ...] = ()

    def is_of(self, text: str) -> bool:
        """Whether the pattern means harm in a file, or part of one, with this text."""
        return not (self.unless and _compiled(self.unless).search(text)) and (
            not self.within or _compiled(self.within).search(text) is not None
        )


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.MULTILINE)


def script_paths(surroundings: Surroundings) -> tuple[Path, ...]:
    """Files that --script names, those of a folder that it names, else the scripts of running ranks."""
    if surroundings.question.scripts:
        return tuple(dict.fromkeys(file for path in surroundings.question.scripts for file in _files(path)))
    found = []
    for rank in surroundings.ranks:
        name = next((one for one in rank.argv if one.endswith((".py", ".sh")) and "stallwatch" not in one), None)
        # What another user's job names is not read with our rights.
        if rank.alive and name and rank.working_directory and rank.uid == surroundings.user_id:
            found.append(Path(rank.working_directory) / name)
    return tuple(dict.fromkeys(found))


def _files(path: Path) -> Iterator[Path]:
    """A file, or what a folder holds that people write for training: no hidden folder, no environment, no link."""
    if not path.is_dir():
        yield path
        return
    count = 0
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(one for one in folders if not one.startswith(".") and one not in _LEFT_OUT)
        for name in sorted(names):
            file = Path(folder) / name
            if (file.suffix in _SUFFIXES or name.startswith("Dockerfile")) and not file.is_symlink():
                count += 1
                if count > _MOST_FILES:
                    return
                yield file


def texts(surroundings: Surroundings) -> list[tuple[Path, str]]:
    """Raise Inapplicable when there is no script, Undetermined when none can be read."""
    paths = script_paths(surroundings)
    if not paths:
        raise Inapplicable("no script is named (--script) and no rank runs here")
    texts = []
    for path in paths:
        try:
            if path.is_file():
                texts.append((path, path.read_bytes()[:_LIMIT_BYTES].decode("utf-8", "replace")))
        except OSError:
            continue
    if not texts:
        raise Undetermined(f"{', '.join(map(str, paths))}: not readable")
    return texts


_FOR_A_TRY: Final = re.compile(
    r"\btemporar(?:y|ily)\b|\b(?:only|just)\s+to\s+(?:see|test|check|find|diagnose|tell|compare|try)\b|\bfor\s+one\s+run\b",
    re.IGNORECASE,
)
_TAKEN_BACK: Final = re.compile(
    r"\b(?:remove|unset|undo|revert)\s+(?:it|this|them|that)\s+(?:again|afterwards?|later)\b", re.IGNORECASE
)


def _is_for_a_try(lines: dict[int, str], number: int) -> bool:
    """Whether a setting's own line, or the next, says that it is not to stay."""
    return _FOR_A_TRY.search(lines[number]) is not None or any(
        _TAKEN_BACK.search(lines.get(one, "")) for one in (number, number + 1)
    )


class HarmfulAdvice:
    """Searches the commands of scripts and guides for the patterns of advice.toml; one finding a file for each piece of
    advice."""

    name: ClassVar[str] = "harmful_advice"
    area: ClassVar[Area] = "advice"
    looks_for: ClassVar[str] = (
        "scripts and guides with advice that harms: blocking wait, P2P or IB off, firewall off, kill by name or port"
    )

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A finding for each file and piece of advice, with all lines that follow it; the first is quoted."""
        advices = data.entries("advice.toml", "advice", Advice)
        known = [one for one in advices if one.pattern]
        of_variables = {(name, value): one for one in advices for name in one.variables for value in one.values}
        found = []
        for path, text in texts(surroundings):
            hits: dict[str, tuple[Advice, list[int], str]] = {}
            for part in parts(path, text):
                here = [(_compiled(one.pattern), one) for one in known if one.is_of(part.text)]
                for number, line in commands(part):
                    for pattern, advice in here:
                        if pattern.search(line):
                            hits.setdefault(advice.what, (advice, [], line.strip()))[1].append(number)
                lines = dict(part.lines)
                for setting in settings_of(part):
                    told = of_variables.get((setting.name, setting.value.lower()))
                    if told and not _is_for_a_try(lines, setting.line):
                        line = lines[setting.line].strip()
                        if setting.name not in line:  # Kubernetes: the name stands in another line
                            line = f"{setting.name}={setting.value}"
                        hits.setdefault(told.what, (told, [], line))[1].append(setting.line)
            for advice, numbers, line in hits.values():
                found.append(
                    finding(
                        self, advice.severity, f"{path}:{numbers[0]}",
                        seen=f"{advice.what}: {line[:160]}"
                        + (f"  (also line {', '.join(map(str, numbers[1:6]))})" if len(numbers) > 1 else ""),
                        why=advice.why,
                        remedy=advice.better,
                    )
                )  # fmt: skip
        return tuple(found)
