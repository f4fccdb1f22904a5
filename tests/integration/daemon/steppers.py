"""Ranks without torch: plain processes with the hook that step until they are told to end."""

import os
import sys
from pathlib import Path

from tests.builders.hooked_ranks import HookedRanks

SOURCE = str(Path(__file__).parents[3] / "monitor")
PROGRAM = """
import sys, time
import stallwatch
beat = stallwatch.attach()
assert beat, "the hook did not attach"
print("ready", flush=True)
while True:
    beat.step()
    time.sleep(0.05)
"""


class Steppers(HookedRanks):
    """A job of such ranks."""

    def __init__(self, directory: Path, ranks: int, job: str) -> None:
        environment = {**os.environ, "PYTHONPATH": SOURCE}
        super().__init__([sys.executable, "-c", PROGRAM], ranks, job, directory, environment)
