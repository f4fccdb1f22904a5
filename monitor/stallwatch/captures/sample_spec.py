"""What a sample's child process is told, as JSON on its standard input, and what it prints when it is done."""

import msgspec

from stallwatch.diagnosis.drifted import Memory
from stallwatch.model.verdict import Verdict


class SampleSpec(msgspec.Struct, frozen=True):
    ranks: tuple[int, ...]  # of one job
    world_size: int
    before: Memory


class SampleResult(msgspec.Struct, frozen=True):
    ranks: int  # whose recorders answered
    verdicts: tuple[Verdict, ...]
    memory: Memory
    problem: str = ""
