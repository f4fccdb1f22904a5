"""What one rank does: which thread matters, where it stands, whether it moves. Pure; reads no other rank."""

from stallwatch.diagnosis.activity.rank_activity import RankActivity
from stallwatch.diagnosis.activity.rank_reading import read_activity

__all__ = ["RankActivity", "read_activity"]
