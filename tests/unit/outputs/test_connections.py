import asyncio
from collections.abc import Sequence

from stallwatch.outputs.connections import Places
from stallwatch.outputs.peers import Peer

ANNA, BOB = Peer("127.0.0.1", 1000), Peer("127.0.0.1", 1001)


class FakeConnection:
    def __init__(self, peer: Peer, since: float | None, *, late: bool = False) -> None:
        self.peer = peer
        self.since = since
        self.late = late
        self.dropped = False

    def waits_since(self) -> float | None:
        return self.since

    def overdue(self, now: float) -> bool:
        return self.late

    def drop(self) -> None:
        self.dropped = True


def dropped(places: Places, arriving: Sequence[FakeConnection]) -> list[int]:
    async def arrive() -> None:
        for connection in arriving:
            places.enter(connection)

    asyncio.run(arrive())
    return [number for number, connection in enumerate(arriving) if connection.dropped]


def test_a_newcomer_takes_the_place_of_the_one_of_its_peer_that_keeps_us_waiting_longest() -> None:
    mine = [FakeConnection(ANNA, since) for since in (5.0, 3.0, 4.0, 9.0)]
    assert dropped(Places(100, most_of_a_peer=3), [FakeConnection(BOB, 1.0), *mine]) == [2]


def test_one_that_waits_for_us_keeps_its_place() -> None:
    assert dropped(Places(100, most_of_a_peer=2), [FakeConnection(ANNA, since) for since in (None, 8.0, 9.0)]) == [1]
    assert dropped(Places(100, most_of_a_peer=2), [FakeConnection(ANNA, since) for since in (None, None, 9.0)]) == [2]


def test_where_all_places_are_taken_the_peer_with_most_of_them_gives_one() -> None:
    many = [FakeConnection(ANNA, 7.0), *[FakeConnection(BOB, 8.0 + number) for number in range(3)]]
    assert dropped(Places(4, most_of_a_peer=10), [*many, FakeConnection(Peer("10.0.0.7"), 20.0)]) == [1]


def test_one_that_left_counts_no_more() -> None:
    places = Places(100, most_of_a_peer=2)
    first = FakeConnection(ANNA, 1.0)
    assert dropped(places, [first, FakeConnection(ANNA, 2.0)]) == []
    places.leave(first)
    assert dropped(places, [FakeConnection(ANNA, 3.0)]) == []
    assert len(places) == 2


def test_overdue_ones_are_dropped_when_they_are_next_looked_at() -> None:
    places = Places(100)
    late, fine = FakeConnection(ANNA, 1.0, late=True), FakeConnection(ANNA, 1.0)

    async def look() -> None:
        places.enter(late)
        places.enter(fine)
        places._look()

    asyncio.run(look())
    assert (late.dropped, fine.dropped, len(places)) == (True, False, 1)
