"""A privileged side for tests: knows the given ranks, as if its own reader had seen them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from stallwatch.config import Config
from stallwatch.loop.privileged import own_side
from stallwatch.model.snapshot import RankSample
from stallwatch.node.privileged_client import Privileged


@contextmanager
def side_that_knows(*ranks: RankSample, config: Config = Config()) -> Iterator[Privileged]:  # noqa: B008 - it is frozen
    side = own_side(config, ranks)
    try:
        yield side
    finally:
        side.close()


def numbers(ranks: Sequence[RankSample]) -> list[tuple[int, int]]:
    """As a request names them."""
    return [(rank.pid, rank.start_ticks) for rank in ranks]
