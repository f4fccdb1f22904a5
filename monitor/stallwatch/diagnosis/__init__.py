"""From evidence to a verdict: pure, so that an incident on disk replays to the same sentence."""

from stallwatch.diagnosis.logs import read_logs
from stallwatch.diagnosis.verdicts import Judgement, judge

__all__ = ["Judgement", "judge", "read_logs"]
