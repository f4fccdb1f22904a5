"""Scripts that a person named, or that running ranks were started with: advice that harms."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import msgspec

from stallwatch.doctor import data
from stallwatch.doctor.advice.settings import settings
from stallwatch.doctor.check import Inapplicable, Undetermined, finding
from stallwatch.doctor.finding import Area, FindingRecord, Severity
from stallwatch.doctor.surroundings import Surroundings

_LIMIT_BYTES = 2 << 20
_SAID = re.compile(r"\s*(?:echo|printf)\s[^|>]*$")  # a shell's words for people


class Advice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of data/advice.toml."""

    what: str
    severity: Severity
    why: str
    better: str
    pattern: str = ""
    variables: tuple[str, ...] = ()
    values: tuple[str, ...] = ()


def script_paths(surroundings: Surroundings) -> tuple[Path, ...]:
    """Files named by --script, else the scripts of running ranks."""
    if surroundings.question.scripts:
        return surroundings.question.scripts
    found = []
    for rank in surroundings.ranks:
        name = next((one for one in rank.argv if one.endswith((".py", ".sh")) and "stallwatch" not in one), None)
        # What another user's job names is not read with our rights.
        if rank.alive and name and rank.working_directory and rank.uid == surroundings.user_id:
            found.append(Path(rank.working_directory) / name)
    return tuple(dict.fromkeys(found))


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


def code_lines(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, comments left out: a warning against advice is not the advice."""
    comment = re.compile(r"^\s*(#|//|--\s|<!--)") if path.suffix != ".md" else re.compile(r"^\s*<!--")
    for number, line in enumerate(text.splitlines(), 1):
        if not comment.match(line) and not _SAID.match(line):
            yield number, re.sub(r"\s#\s.*$", "", line)


class HarmfulAdvice:
    name: ClassVar[str] = "harmful_advice"
    area: ClassVar[Area] = "advice"
    looks_for: ClassVar[str] = (
        "scripts with advice that harms: blocking wait, P2P or IB off, firewall off, pkill -f, tcp_fin_timeout"
    )

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        advices = data.entries("advice.toml", "advice", Advice)
        known = [(re.compile(one.pattern, re.IGNORECASE), one) for one in advices if one.pattern]
        of_variables = {(name, value): one for one in advices for name in one.variables for value in one.values}
        found = []
        for path, text in texts(surroundings):
            hits: dict[str, tuple[Advice, list[int], str]] = {}
            for number, line in code_lines(path, text):
                for pattern, advice in known:
                    if pattern.search(line):
                        hits.setdefault(advice.what, (advice, [], line.strip()))[1].append(number)
            lines = text.splitlines()
            for setting in settings(code_lines(path, text), is_python=path.suffix == ".py"):
                if told := of_variables.get((setting.name, setting.value.lower())):
                    line = lines[setting.line - 1].strip()
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
