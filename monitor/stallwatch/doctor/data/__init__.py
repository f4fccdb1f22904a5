"""Data files of the doctor: environment variables, hang bugs by version, harmful advice, DeepSpeed's keys."""

import threading
import tomllib
from importlib import resources
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

# Checks run in threads, and two that convert to one type for the first time crash the interpreter (seen: msgspec 0.22,
# SIGSEGV while both build what it keeps about the type).
_CONVERTING = threading.Lock()


def read(name: str) -> dict[str, Any]:
    """Return one of the package's own TOML files; a mistake in it is our bug and raises."""
    return tomllib.loads(resources.files(__name__).joinpath(name).read_text(encoding="utf-8"))


def entries(name: str, key: str, kind: type[T]) -> tuple[T, ...]:
    """Return the tables that one of those files lists under this key."""
    with _CONVERTING:
        return tuple(msgspec.convert(read(name)[key], list[kind]))  # type: ignore[valid-type]
