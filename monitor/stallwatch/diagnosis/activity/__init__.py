"""What one rank does: which thread matters, where it stands, whether it moves. Pure; reads no other rank."""

from stallwatch.diagnosis.activity.reading import read_activity
from stallwatch.diagnosis.activity.result import Activity

__all__ = ["Activity", "read_activity"]
