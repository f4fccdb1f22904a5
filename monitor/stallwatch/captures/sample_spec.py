"""What a sample's child process is told, as JSON on its standard input, and what it prints when it is done."""

import msgspec

from stallwatch.diagnosis.drifted import Memory
from stallwatch.model.snapshot import RankSample
from stallwatch.model.verdict import Verdict


class SampleSpec(msgspec.Struct, frozen=True):
    targets: tuple[RankSample, ...]  # of one job
    at_ns: int  # CLOCK_MONOTONIC: all ranks dump at this moment
    seconds: float  # how long a rank may take to answer
    before: Memory


class SampleResult(msgspec.Struct, frozen=True):
    ranks: int  # whose recorders answered
    verdicts: tuple[Verdict, ...]
    memory: Memory
    problem: str = ""
