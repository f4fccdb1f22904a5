"""What detection would have said: the same step over a timeline.jsonl of the past."""

from collections.abc import Iterable, Iterator

import msgspec

from stallwatch.config import Config
from stallwatch.detectors.detection import Detected, Detection, DetectionState
from stallwatch.model.snapshot import NodeSnapshot


def snapshots_of(lines: Iterable[bytes | str]) -> Iterator[NodeSnapshot]:
    """Decode a timeline, oldest first. Raise msgspec.ValidationError where a line is no snapshot."""
    decoder = msgspec.json.Decoder(NodeSnapshot)
    for line in lines:
        if line.strip():
            yield decoder.decode(line)


def replay(config: Config, snapshots: Iterable[NodeSnapshot]) -> Iterator[tuple[NodeSnapshot, Detected]]:
    """Feed snapshots through the detectors from nothing and yield what each tick found."""
    detection, state = Detection(config), DetectionState()
    for snapshot in snapshots:
        state, detected = detection.step(state, snapshot)
        yield snapshot, detected
