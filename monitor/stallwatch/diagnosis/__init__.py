"""From evidence to a verdict: pure, so that an incident on disk replays to the same sentence."""

from stallwatch.diagnosis.judge import Judgement, judge

__all__ = ["Judgement", "judge"]
