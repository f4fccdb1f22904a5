"""Scripts that a person named, or that running ranks were started with: advice that harms, and calls that hang."""

import ast
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


class TrainingCalls:
    name: ClassVar[str] = "training_calls"
    area: ClassVar[Area] = "frameworks"
    looks_for: ClassVar[str] = (
        "the training script's init_process_group (time-out, device), DDP and its data: what can hang"
    )

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        found: list[FindingRecord] = []
        for path, text in texts(surroundings):
            if path.suffix != ".py":
                continue
            try:
                tree = ast.parse(text)
            except (SyntaxError, ValueError, RecursionError):
                continue
            found += self._calls(path, tree)
        return tuple(found)

    def _calls(self, path: Path, tree: ast.Module) -> Iterator[FindingRecord]:
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        binds = any(_called(call) in ("set_device", "set_default_device") for call in calls)
        for call in calls:
            keywords = {keyword.arg: keyword.value for keyword in call.keywords}
            if _called(call) != "init_process_group" or None in keywords:
                continue
            backend = _text(keywords.get("backend") or (call.args[0] if call.args else None))
            place = f"{path}:{call.lineno}"
            if "nccl" in backend and "device_id" not in keywords and not binds:
                yield finding(
                    self, "warning", place,
                    seen="init_process_group(\"nccl\") without device_id, and torch.cuda.set_device is nowhere called.",
                    why="Every rank then begins on GPU 0: \"Duplicate GPU detected\", or barrier() guesses a device "
                    "and hangs.",
                    remedy="torch.cuda.set_device(int(os.environ[\"LOCAL_RANK\"])) before it",
                    source="PyTorch documentation, init_process_group",
                )  # fmt: skip
            if "timeout" not in keywords:
                yield finding(
                    self, "info", place,
                    seen="init_process_group has no timeout=: 10 minutes with NCCL (30 before PyTorch 2.2), 30 with "
                    "gloo.",
                    why="A hang is ended after that; groups that libraries make for themselves have the default "
                    "anyway.",
                    remedy="init_process_group(timeout=timedelta(minutes=10)) says it where people look",
                    source="pytorch#135352",
                )  # fmt: skip


def _called(call: ast.Call) -> str:
    target = call.func
    return target.attr if isinstance(target, ast.Attribute) else target.id if isinstance(target, ast.Name) else ""


def _text(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
