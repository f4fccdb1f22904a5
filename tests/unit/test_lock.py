"""deploy/requirements.lock is what pyproject.toml asks of the service, each part with its hashes."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def locked() -> dict[str, tuple[Requirement, int]]:
    """By name, a part and how many hashes it may have."""
    text = (ROOT / "deploy" / "requirements.lock").read_text(encoding="utf-8")
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    parts = [re.split(r"\s+--hash=", line) for line in text.splitlines() if line.strip()]
    return {(made := Requirement(part)).name: (made, len(hashes)) for part, *hashes in parts}


def test_every_part_is_of_one_version_and_has_hashes() -> None:
    for requirement, hashes in locked().values():
        assert str(requirement.specifier).startswith("=="), requirement
        assert hashes > 0, requirement


def test_what_the_service_needs_is_locked_within_its_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    parts = locked()
    for wanted in map(Requirement, project["optional-dependencies"]["daemon"]):
        version = str(parts[wanted.name][0].specifier).removeprefix("==")
        assert wanted.specifier.contains(version), f"{wanted} is not met by {version}: compile the lock file anew"
