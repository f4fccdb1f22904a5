"""Blocks around a line, by its indentation."""

import pytest

from stallwatch.captures.source_blocks import blocks_around, communicates_each_round, given_before

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


ROUNDS = """
def step(seconds):
    time.sleep(seconds)  # of a step
    # dist.barrier()
    dist.all_reduce(gradient)

def train(steps):
    for _ in range(steps):
        step(0.05)
    dist.barrier()

def serve():
    while True:
        request = poll()
        with timer():
            dist.broadcast(request, 0)
        if request is None:
            time.sleep(0.1)  # idle

def look():
    while True:
        if not ready():
            time.sleep(1)  # not ready
            continue
        dist.broadcast(request, 0)

def fetch():
    for batch in batches:
        for attempt in range(9):
            time.sleep(2)  # tries again
        loss.backward()

def once():
    while go_on:
        time.sleep(0.5)  # looks
        if path.exists():
            dist.barrier()
            break

def back():
    for batch in batches:
        try:
            loss.backward()
        except OSError:
            time.sleep(3)  # failed
            return
        dist.barrier()
""".splitlines()


@pytest.mark.parametrize(
    ("mark", "call"),
    [
        ("# of a step", "dist.all_reduce(gradient)"),
        ("step(0.05)", ""),
        ("# idle", "dist.broadcast(request, 0)"),
        ("# not ready", ""),
        ("# tries again", ""),
        ("# looks", ""),
        ("# failed", "loss.backward()"),
    ],
)
def test_a_call_to_other_ranks_is_told_where_every_round_makes_it(mark: str, call: str) -> None:
    number = next(place for place, line in enumerate(ROUNDS, 1) if line.endswith(mark))
    assert communicates_each_round(ROUNDS, number) == call
    assert communicates_each_round(ROUNDS, 0) == ""
