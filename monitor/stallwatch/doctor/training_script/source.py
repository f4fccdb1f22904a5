"""A training script as checks read it: its tree, what its names mean, what is assigned to them."""

import ast
import functools
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final

from stallwatch.doctor.advice.scripts import texts
from stallwatch.doctor.check_result import Area, FindingRecord
from stallwatch.doctor.surroundings import Surroundings
from stallwatch.doctor.training_script.script_values import Function, Values

_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
# What fragments without imports call these modules.
_USUAL: Final = {"dist": "torch.distributed"}


class Script:
    """One parsed file. Names are resolved through its imports: `dist.barrier` is `torch.distributed.barrier`."""

    def __init__(self, path: Path, text: str, tree: ast.Module) -> None:
        self.path, self.text, self.tree = path, text, tree
        self._imports = dict(_imports(tree))
        self.assigned = _assignments(tree)
        self.values = Values(tree)
        self.calls = tuple(node for node in ast.walk(tree) if isinstance(node, ast.Call))
        self._called = frozenset(self.last_name_of(call.func) for call in self.calls)
        self._last_names = {name.rpartition(".")[2] for name in self._imports.values()} | {
            self.last_name_of(base) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for base in node.bases
        }

    def name_of(self, node: ast.expr) -> str:
        """The dotted name of an expression, imports resolved ("torch.distributed.barrier", "self.model.state_dict");
        what is called or subscribed on the way is "()". Return "" for what has no name."""
        if isinstance(node, ast.Name):
            return self._imports.get(node.id) or _USUAL.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            return f"{self.name_of(node.value)}.{node.attr}"
        if isinstance(node, (ast.Call, ast.Subscript)):
            inner = node.func if isinstance(node, ast.Call) else node.value
            return f"{self.name_of(inner)}()"
        return ""

    def last_name_of(self, node: ast.expr) -> str:
        """The part of a dotted name behind its last dot: the function or class of a call's `func`."""
        return self.name_of(node).rpartition(".")[2]

    def calls_any(self, *names: str) -> bool:
        """Whether one of these functions or classes, by its last name, is called anywhere."""
        return not self._called.isdisjoint(names)

    def mentions(self, *names: str) -> bool:
        """Whether one of these names is imported, called or derived from anywhere."""
        return self.calls_any(*names) or not self._last_names.isdisjoint(names)

    def functions(self) -> Iterator[tuple[str, Function]]:
        """Every function and method with its class' name ("" outside a class)."""
        yield from _functions(self.tree.body, "")

    def scopes(self) -> Iterator[tuple[str, list[ast.stmt]]]:
        """The statements of the file, and of every function with its class' name: what runs one after the other."""
        yield "", self.tree.body
        yield from ((owner, function.body) for owner, function in self.functions())

    def place(self, node: ast.expr | ast.stmt) -> str:
        """Return where a node of the tree stands, "path:line"."""
        return f"{self.path}:{node.lineno}"

    @property
    def is_data_parallel(self) -> bool:
        """Whether this file wraps a model whose replicas or shards work on different data."""
        return self.calls_any("DistributedDataParallel", "FullyShardedDataParallel", "fully_shard", "FSDP", "DDP") or (
            "deepspeed" in self._imports.values() and self.calls_any("initialize")
        )

    @property
    def has_trainer(self) -> bool:
        """Whether a library prepares loaders by itself (Lightning, Accelerate, Fabric, Hugging Face's Trainer, Ray)."""
        return self.mentions("Accelerator", "Trainer", "Fabric", "LightningModule", "Seq2SeqTrainer", "TorchTrainer")


class ScriptCheck(ABC):
    """A check of training scripts: it looks at one after the other."""

    name: ClassVar[str]
    area: ClassVar[Area]
    looks_for: ClassVar[str]

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """Return what is wrong in all training scripts; raise as training_scripts does where there is none to read."""
        return tuple(record for script in training_scripts(surroundings) for record in self.of_script(script))

    @abstractmethod
    def of_script(self, script: Script) -> Iterator[FindingRecord]:
        """What is wrong in one script."""


def training_scripts(surroundings: Surroundings) -> Iterator[Script]:
    """Python files among those that `--script` names, or that own ranks run. Raise Inapplicable where there is no
    script, Undetermined where none can be read. A file that is not Python is left out."""
    for path, text in texts(surroundings):
        if path.suffix == ".py" and (script := _parse(path, text)) is not None:
            yield script


@functools.lru_cache(maxsize=256)
def _parse(path: Path, text: str) -> Script | None:
    try:
        return Script(path, text, ast.parse(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def calls_in(nodes: ast.AST | list[ast.stmt]) -> Iterator[ast.Call]:
    """Calls in source order, those of nested functions left out: they run when somebody calls them."""
    for node in nodes if isinstance(nodes, list) else [nodes]:
        if isinstance(node, _SCOPES):
            continue
        for child in ast.iter_child_nodes(node):
            yield from calls_in(child)
        if isinstance(node, ast.Call):
            yield node


def nodes_in(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """All statements of a scope in source order, those of nested functions and classes left out."""
    for stmt in body:
        if isinstance(stmt, _SCOPES):
            continue
        yield stmt
        for child in ast.iter_child_nodes(stmt):
            if isinstance(child, ast.stmt):
                yield from nodes_in([child])
            elif isinstance(child, (ast.ExceptHandler, ast.match_case)):
                yield from nodes_in(child.body)


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """Return the value that a call gives to the argument of this name, None where it does not name it."""
    return next((one.value for one in call.keywords if one.arg == name), None)


def has_open_keywords(call: ast.Call) -> bool:
    """Whether a call passes on a mapping, whose keys nobody sees here."""
    return any(one.arg is None for one in call.keywords)


def is_true(node: ast.expr | None) -> bool:
    """Whether an expression is the literal True; what only the run knows is not."""
    return isinstance(node, ast.Constant) and node.value is True


def is_false(node: ast.expr | None) -> bool:
    """Whether an expression is the literal False; what only the run knows is not."""
    return isinstance(node, ast.Constant) and node.value is False


def target_name(node: ast.expr) -> str:
    """The name that an assignment or a use goes to, as written: "rank", "self.rank"."""
    return ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (first, first)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _assignments(tree: ast.Module) -> dict[str, list[ast.expr | None]]:
    """By name, everything that is assigned to it; None for what a loop, a with or an unpacking gives."""
    found: dict[str, list[ast.expr | None]] = defaultdict(list)

    def bind(target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
            for index, element in enumerate(target.elts):
                bind(element, parts[index] if len(parts) == len(target.elts) else None)
        elif name := target_name(target):
            found[name].append(value)

    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                bind(target, node.value)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            bind(node.target, node.value)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension, ast.AugAssign)):
            bind(node.target, None)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            bind(node.optional_vars, None)
    return dict(found)


def _functions(body: list[ast.stmt], owner: str) -> Iterator[tuple[str, Function]]:
    for node in body:
        if isinstance(node, Function):
            yield owner, node
            yield from _functions(node.body, owner)
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, node.name)
        else:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.stmt):
                    yield from _functions([child], owner)
                elif isinstance(child, ast.ExceptHandler):
                    yield from _functions(child.body, owner)
