import os
import time

from stallwatch.sensors.slow_reads import SlowReads
from tests.unit.sensors.records import start_ticks_of


def test_what_was_asked_for_a_process_that_nobody_follows_any_more_is_forgotten() -> None:
    """Ranks come and go before their slow reads do."""
    own = (os.getpid(), start_ticks_of(os.getpid()))
    reads = SlowReads("/proc", 3600.0)
    gone = [(2**22 + number, 1) for number in range(50)]
    for asked in (*gone, own):
        reads.want(*asked)
    while own not in reads._facts:
        time.sleep(0.01)  # the test's own time limit bounds this
    reads.keep({own})
    assert list(reads._facts) == [own]
    assert reads.take(*own) is not None
