"""What logs tell: which failure came first, what follows from what, who waited for whom. Pure.

`formats` turns lines into events; `read_logs` is the one reading of them, which the claims and `doctor --log` ask.
"""

from stallwatch.diagnosis.logs.log_reading import LogReading as LogReading
from stallwatch.diagnosis.logs.log_reading import of_this_life as of_this_life
from stallwatch.diagnosis.logs.log_reading import read_logs as read_logs
