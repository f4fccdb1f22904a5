"""What a file is, by its content."""

from stallwatch.bundle.guessing import guess
from stallwatch.formats.entry_templates import TemplateLibrary


def test_a_log_with_holes_before_and_behind_it_is_a_log() -> None:
    text = b"[rank2]: ValueError: bad shard\n"
    kind, tail = guess(bytes(5_000) + text + bytes(9), "train.log", 0, TemplateLibrary())
    assert (kind, [event.rank for event in tail.events]) == ("log", [2])
