"""Turns torch's flight recorder on, before torch reads its environment. It was off by default before torch 2.11."""

import os
import re
import sys
from collections.abc import MutableMapping
from typing import Optional

from stallwatch.hook import recorder

ENTRIES = "2000"  # torch's own default since 2.11; costs some 2 MB
NEW_NAME = "TORCH_FR_BUFFER_SIZE"
OLD_NAME = "TORCH_NCCL_TRACE_BUFFER_SIZE"
_RENAMED = (2, 8)  # from here on torch knows the new name, and warns on every rank where it meets the old one
_PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"  # torch before 2.12 makes a user's pipe only by the old name
_VERSION_BYTES = 4096


def turn_on(environment: "MutableMapping[str, str]", path: "list[str]") -> bool:
    """Given the environment and where modules are looked for, return whether we have turned the recorder on. What the
    user has set stays; and where torch has read its environment already there is nothing to do."""
    if NEW_NAME in environment or OLD_NAME in environment or recorder.distributed() is not None:
        return False
    version = _version(path)
    environment[NEW_NAME] = ENTRIES
    if version is None or version < _RENAMED or environment.get(_PIPE):
        environment[OLD_NAME] = ENTRIES
    return True


def _version(path: "list[str]") -> "Optional[tuple[int, int]]":
    """torch's version, without importing it; None when it cannot be told."""
    loaded = getattr(_loaded(), "__version__", None)
    text = str(loaded) if loaded is not None else _on_path(path)
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def _loaded() -> object:
    return sys.modules.get("torch")


def _on_path(path: "list[str]") -> str:
    for folder in path:
        try:
            with open(os.path.join(folder, "torch", "version.py"), encoding="utf-8", errors="replace") as file:
                found = re.search(r"^__version__ *= *['\"]([^'\"]*)", file.read(_VERSION_BYTES), re.MULTILINE)
        except (OSError, TypeError, ValueError):  # anybody may have put anything on the path
            continue
        return found[1] if found else ""
    return ""
