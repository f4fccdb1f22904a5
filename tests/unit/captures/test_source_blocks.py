"""Blocks around a line, by its indentation."""

import pytest

from stallwatch.captures.source_blocks import blocks_around

SOURCE = """
def train(loader):
    for epoch in range(3):
        for batch in loader(
            epoch,
        ):
            try:
                step(batch)
            except ValueError:
                # given up
                barrier()
            finally:
                flush()

            if rank == 0:
                log()
        barrier()
    barrier()


for group in groups: reduce(group)
while True:
	tabbed()
""".splitlines()


def _kinds(text: str, occurrence: int = 0) -> list[str]:
    number = [place for place, line in enumerate(SOURCE, 1) if line.strip() == text][occurrence]
    return [block.kind for block in blocks_around(SOURCE, number)]


@pytest.mark.parametrize(
    ("text", "occurrence", "kinds"),
    [
        ("step(batch)", 0, ["for", "for"]),
        ("barrier()", 0, ["for", "for", "except"]),
        ("flush()", 0, ["for", "for", "finally"]),
        ("log()", 0, ["for", "for", "if"]),
        ("barrier()", 1, ["for"]),
        ("barrier()", 2, []),
        ("for group in groups: reduce(group)", 0, ["for"]),
        ("tabbed()", 0, ["while"]),
    ],
)
def test_the_blocks_around_a_line_are_told_outermost_first(text: str, occurrence: int, kinds: list[str]) -> None:
    assert _kinds(text, occurrence) == kinds


def test_a_block_is_known_by_the_line_of_its_header() -> None:
    outer, inner = blocks_around(SOURCE, 8)
    assert (outer.line, outer.text, inner.line) == (3, "for epoch in range(3):", 4)


@pytest.mark.parametrize("number", [0, -3, 10_000])
def test_a_line_that_is_not_there_stands_in_nothing(number: int) -> None:
    assert blocks_around(SOURCE, number) == ()
