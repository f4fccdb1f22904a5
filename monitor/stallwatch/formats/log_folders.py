"""What the path of a log tells: torchrun's folders, and the launcher's log of one node beside another's.

A file of its own: the bundle orders logs by it, the diagnosis their lines."""

import re
from typing import Final

_OF_ATTEMPT: Final = re.compile(r"(?P<run>.*?)attempt_(?P<attempt>\d+)/(?P<local>\d+)/std(?:out|err)\.log")
_ENDINGS: Final = re.compile(r"(?:[._-]?(?:std)?(?:out|err)|\.log|\.txt|\.\d+|\.gz|\.bz2|\.xz)+$")


def of_path(source: str) -> tuple[int, int] | None:
    """Attempt and local rank by torchrun's folders (`--log-dir`); None: the path does not tell."""
    match = _OF_ATTEMPT.match(source)
    return (int(match["attempt"]), int(match["local"])) if match else None


def run_of(source: str) -> str:
    """What logs of one launcher have in common: the folder above its attempts, or the name without "out", "err" and
    what rotates it."""
    match = _OF_ATTEMPT.match(source)
    return match["run"] if match else _ENDINGS.sub("", source)
