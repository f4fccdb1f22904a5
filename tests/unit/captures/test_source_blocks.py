"""Blocks around a line, by its indentation."""

import pytest

from stallwatch.captures.source_blocks import blocks_around, given_before

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


WAITS = """
reqs = other()

def exchange(ops):
    reqs = dist.batch_isend_irecv(ops)
    for req in reqs:
        req.wait()

def gather(parts):
    work = dist.all_gather(parts, async_op=True)
    # work = dist.irecv(parts)
    work.wait()
    works = [
        dist.isend(parts[0], 1),
        dist.irecv(parts[1], 1),
    ]
    works.append(dist.isend(parts[2], 1))
    for number, one in enumerate(works):
        def never():
            one = dist.broadcast(parts)
        one.wait()
    handles: list[Work] = []
    handles += [dist.irecv(parts[3])]
    [handle.wait() for handle in handles]
    event == work; event.wait(3)
""".splitlines()


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("req.wait()", ("for req in reqs:", "reqs = dist.batch_isend_irecv(ops)")),
        ("work.wait()", ("work = dist.all_gather(parts, async_op=True)",)),
        (
            "[handle.wait() for handle in handles]",
            ("[handle.wait() for handle in handles]", "handles += [dist.irecv(parts[3])]", "handles: list[Work] = []"),
        ),
        ("event == work; event.wait(3)", ()),
        ("def never():", ()),
    ],
)
def test_what_is_waited_for_is_followed_to_the_lines_that_gave_it(text: str, given: tuple[str, ...]) -> None:
    number = next(place for place, line in enumerate(WAITS, 1) if line.strip() == text)
    assert given_before(WAITS, number) == given


def test_a_call_over_several_lines_is_given_whole() -> None:
    number = next(place for place, line in enumerate(WAITS, 1) if line.strip() == "one.wait()")
    assert given_before(WAITS, number) == (
        "one = dist.broadcast(parts)",
        "for number, one in enumerate(works):",
        "works.append(dist.isend(parts[2], 1))",
        "works = [ dist.isend(parts[0], 1), dist.irecv(parts[1], 1), ]",
    )
    assert given_before(WAITS, 0) == given_before(WAITS, 1000) == ()
