"""Versions whose recorders were read under test. What is newer may record in another way, and caps how sure we are.

A file of its own: doctor, the sensor of facts and the diagnosis ask it."""

from collections.abc import Mapping
from typing import Final

# torch: jobs that ran live. Dumps: the format's own number. NCCL: the captures that the tests hold.
NEWEST_TESTED: Final[Mapping[str, tuple[int, int]]] = {
    "torch": (2, 14),
    "flight recorder dump": (2, 10),
    "NCCL": (2, 28),
}


def newer_than_tested(what: str, version: str) -> bool:
    """Given one of NEWEST_TESTED's names and a version such as "2.14.1+cpu", return whether it is newer. What is no
    version is not."""
    parts = version.split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        return False
    return (int(parts[0]), int(parts[1])) > NEWEST_TESTED[what]
