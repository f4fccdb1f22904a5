"""How much of what is public says what it is: counted by the syntax tree, package by package."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parents[2] / "monitor" / "stallwatch"
LEAST_SHARE = 0.9
# Words that say nothing beyond a name.
_EMPTY = frozenset({
    "a", "an", "and", "are", "as", "at", "be", "by", "for", "from", "get", "gets", "given", "has", "have", "in", "into",
    "is", "it", "its", "of", "on", "one", "or", "return", "returns", "set", "sets", "that", "the", "their", "them",
    "there", "they", "this", "to", "what", "when", "where", "whether", "which", "whose", "with",
})  # fmt: skip
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Public(NamedTuple):
    """A public function, class or method: "outputs/poster.py:41 PostAnswer"."""

    where: str
    told: bool


def _words(text: str) -> set[str]:
    """The words of a name or sentence, without endings: "JobDrift" and "drifts of a job" have the same."""
    parts = re.findall(r"[a-z]+|[0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).lower())
    return {re.sub(r"(ies|es|s|ing|ed|d)$", "", part) for part in parts if part not in _EMPTY}


def _is_told(node: _Definition, names: str) -> bool:
    """A docstring counts if it holds a word that the names have not."""
    said = ast.get_docstring(node)
    return said is not None and bool(_words(said) - _words(names))


def _definitions(body: list[ast.stmt], path: str, names: str = "") -> Iterator[Public]:
    for node in body:
        if isinstance(node, ast.If | ast.Try):
            yield from _definitions(node.body, path, names)
        if not isinstance(node, _Definition) or node.name.startswith("_"):
            continue
        whole = f"{names} {node.name}"
        yield Public(f"{path}:{node.lineno}{whole.replace(' ', '.')}", _is_told(node, whole))
        if isinstance(node, ast.ClassDef):
            yield from _definitions(node.body, path, whole)


def _public(package: str) -> list[Public]:
    folder = PACKAGE / package
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]
    return [
        found
        for file in files
        for found in _definitions(ast.parse(file.read_text()).body, str(file.relative_to(PACKAGE)))
    ]


def _packages() -> list[str]:
    """Packages, and the modules beside them."""
    return sorted(path.name for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists())


@pytest.mark.parametrize("package", _packages())
def test_nearly_all_that_is_public_says_what_it_is(package: str) -> None:
    found = _public(package)
    silent = [one.where for one in found if not one.told]
    assert len(silent) <= (1 - LEAST_SHARE) * len(found), "\n".join(silent)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("def start(): pass", False),
        ("def start_job():\n '''Start the job.'''", False),
        ("class JobDrift:\n '''Drifts of a job.'''", False),
        ("def start_job():\n '''Start the job; raise OSError where it cannot be.'''", True),
        ("def _own(): pass", None),
    ],
)
def test_a_docstring_that_repeats_the_name_is_none(source: str, told: bool | None) -> None:
    found = list(_definitions(ast.parse(source).body, "file.py"))
    assert [one.told for one in found] == ([] if told is None else [told])
