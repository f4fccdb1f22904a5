"""Data files of the doctor: environment variables, hang bugs by version, harmful advice, DeepSpeed's keys."""

import tomllib
from importlib import resources
from typing import Any


def read(name: str) -> dict[str, Any]:
    """Return one of the package's own TOML files; a mistake in it is our bug and raises."""
    return tomllib.loads(resources.files(__name__).joinpath(name).read_text(encoding="utf-8"))
