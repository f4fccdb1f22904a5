"""One process writes without pause, another reads: no step is torn."""

from pathlib import Path

from stallwatch.model.snapshot import GroupCounter, Heartbeat
from stallwatch.node.heartbeat_file import TornRecord
from tests.builders.records import decoded
from tests.integration.hook.programs import running, script

# Publishes as fast as it can, many thousand times more often than a real pulse.
WRITER = """
import os, select, sys
from time import monotonic_ns
from stallwatch.hook.beat import Phases, step_counter
from stallwatch.hook.guard import Guard
from stallwatch.hook.training_thread import TrainingThread
from stallwatch.hook.identity import this_process, world_of
from stallwatch.hook.publication import Publication

step, read, stepper = step_counter()
process = this_process()
training = TrainingThread(stepper)
publication = Publication(process, world_of(os.environ, process), False, read, Phases(0), Guard(), training)
publication.counts_steps = True
publication.publish()
print("writing")
while not select.select([sys.stdin], [], [], 0)[0]:
    for _ in range(200):
        step()
        publication.beat(monotonic_ns())
        publication.groups = (("gloo", 0, read()[0], read()[0]),)
        publication.publish()
"""


def test_a_record_is_read_whole_or_not_at_all(tmp_path: Path, directory: Path) -> None:
    with running(script(tmp_path, WRITER), directory) as program:
        assert program.line() == "writing"
        path = program.record_path()
        whole: list[Heartbeat] = []
        torn = 0
        while len(whole) < 5000:
            try:
                whole.append(decoded(path.read_bytes()))
            except TornRecord:
                torn += 1
        program.end()
    assert torn < len(whole)
    steps = [record.step or 0 for record in whole]
    assert steps == sorted(steps)
    assert steps[-1] > steps[0]
    for record in whole:
        # Everything in one record is of one moment.
        assert record.pulse_count == record.step
        step = record.step or 0
        assert record.groups in ((), (GroupCounter("gloo", 0, step, step),))
        assert all(0 < duration < 60_000_000_000 for duration in record.step_durations_ns)
        assert record.last_step_ns is None or record.last_step_ns <= record.pulse_ns
