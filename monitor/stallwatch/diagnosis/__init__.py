"""From evidence to a verdict: pure, so that an incident on disk replays to the same sentence."""

from stallwatch.diagnosis.judge import Judgement, judge
from stallwatch.diagnosis.logs import read_logs

__all__ = ["Judgement", "judge", "read_logs"]
