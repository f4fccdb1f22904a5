"""What is said on one node holds on all within ten seconds, and no longer than it was said for."""

import msgspec
import pytest

from stallwatch.clock import SECOND_NS
from stallwatch.errors import StallwatchError
from stallwatch.fleet.orders import Book, News, Order, OrdersWish, Posting, exchange_orders
from stallwatch.fleet.place import MOST_ORDERS, PlaceProblem
from tests.unit.fleet.memory_place import MemoryPlace

SECRET = b"sixteen bytes or more"
HOUR = 3600.0
MUTE = Order("mute", "train", "anna")


class Fleet:
    """Nodes whose wall clocks are minutes apart, and a place; a second at a time."""

    def __init__(self, nodes: int = 3) -> None:
        self.now = 0.0
        self.place = MemoryPlace(lambda: self.now)
        self.books = [Book(f"node{number}") for number in range(nodes)]
        self.cut: set[int] = set()
        self.heard: list[list[News]] = [[] for _ in self.books]

    def says(self, node: int, order: Order, seconds: float = HOUR) -> str:
        wall_ns = int((self.now + 1_000_000 - 300 * node) * SECOND_NS)
        return self.books[node].give(order, seconds, wall_ns, int(self.now * SECOND_NS))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 0.5
            for number, book in enumerate(self.books):
                now_ns = int(self.now * SECOND_NS)
                wish = book.wish(now_ns)
                if wish is None or number in self.cut:
                    continue
                try:
                    seen = exchange_orders(self.place, SECRET, wish)
                except PlaceProblem:
                    continue
                self.heard[number] += book.heard(wish, seen, now_ns)

    def holds(self, kind: str = "mute") -> list[list[str]]:
        return [[order.about for order, _ in book.holds(kind)] for book in self.books]


def test_what_is_said_on_one_node_is_heard_on_all_within_ten_seconds() -> None:
    fleet = Fleet()
    fleet.run(20.3)
    assert fleet.says(1, MUTE) == ""
    fleet.run(9.5)
    assert fleet.holds() == [["train"]] * 3
    assert [len(news) for news in fleet.heard] == [1, 0, 1], "who said it knows"
    order, until_ns = fleet.heard[0][0]
    assert (order.node, order.owner) == ("node1", "anna")
    assert until_ns / SECOND_NS == pytest.approx(20 + HOUR, abs=10)


def test_it_ends_everywhere_when_its_time_is_up_and_a_node_that_comes_later_hears_what_is_left() -> None:
    fleet = Fleet()
    fleet.cut = {2}
    fleet.says(0, MUTE, 60)
    fleet.run(40)
    fleet.cut = set()
    fleet.run(10)
    (_, until_ns), *_ = fleet.heard[2]
    assert until_ns / SECOND_NS == pytest.approx(60, abs=3)
    fleet.run(30)
    assert fleet.holds() == [[], [], []]


def test_an_end_that_somebody_says_on_a_node_whose_clock_is_behind_holds_all_the_same() -> None:
    fleet = Fleet()
    fleet.says(0, MUTE)
    fleet.run(10)
    fleet.says(2, msgspec.structs.replace(MUTE, ended=True), 0.0)
    fleet.run(10)
    assert fleet.holds() == [[], [], []]
    assert [news[-1].order.ended for news in fleet.heard[:2]] == [True, True]


def test_a_place_that_has_lost_everything_is_told_again_and_who_starts_then_hears_it() -> None:
    fleet = Fleet()
    fleet.says(0, Order("mode", mode="shadow"))
    fleet.run(10)
    fleet.place.lose_everything()
    fleet.run(10)
    fleet.books.append(Book("node3"))
    fleet.heard.append([])
    fleet.run(10)
    assert [order.mode for order, _ in fleet.heard[3]] == ["shadow"]
    assert [len(news) for news in fleet.heard[:3]] == [0, 1, 1], "nobody hears twice of the same"


def test_while_the_place_is_away_it_holds_here_and_is_given_when_the_place_is_back() -> None:
    fleet = Fleet()
    fleet.run(5)
    fleet.place.problem = "connection refused"
    fleet.says(0, MUTE)
    fleet.run(30)
    assert fleet.holds() == [["train"], [], []]
    fleet.place.problem = ""
    fleet.run(9.5)
    assert fleet.holds() == [["train"]] * 3


def test_what_is_said_again_is_given_once() -> None:
    fleet = Fleet()
    fleet.says(0, MUTE)
    fleet.run(10)
    posts = fleet.place._posts
    fleet.says(0, MUTE, HOUR - fleet.now)
    fleet.run(10)
    assert fleet.place._posts == posts


def test_what_is_not_signed_or_carried_from_another_name_is_not_believed_and_costs_nothing_else() -> None:
    fleet = Fleet(2)
    fleet.says(0, MUTE)
    fleet.run(10)
    (standing,) = fleet.place.posted("")[1] or []
    other = Order("mute", "other")
    fleet.place.post(other.name, standing.data, HOUR, anew=True)
    fleet.place.post("mode-0", b"rubbish", HOUR, anew=True)
    seen = exchange_orders(fleet.place, SECRET, OrdersWish())
    assert [order.about for order, _ in seen.orders or ()] == ["train"]
    assert "not believed" in seen.caveat
    forged = exchange_orders(fleet.place, b"another secret of the sort", OrdersWish())
    assert forged.orders == ()


def test_an_older_order_that_is_put_back_is_not_taken_for_news() -> None:
    fleet = Fleet(2)
    fleet.says(0, MUTE)
    fleet.run(10)
    (old,) = fleet.place.posted("")[1] or []
    fleet.says(0, msgspec.structs.replace(MUTE, ended=True), 0.0)
    fleet.run(10)
    fleet.place.post(old.name, old.data, HOUR, anew=True)
    fleet.run(10)
    assert fleet.holds() == [[], []]


def test_one_users_many_mutes_fill_no_place_for_all() -> None:
    fleet = Fleet(2)
    problems = [fleet.says(0, Order("mute", f"job-{number}", "ben")) for number in range(100)]
    assert fleet.says(0, MUTE) == ""
    fleet.run(10)
    assert "ben has 32 mutes" in problems[-1]
    assert len(fleet.holds()[1]) == 33


def test_an_order_that_is_too_long_is_refused_with_words() -> None:
    fleet = Fleet(1)
    jobs = tuple((f"user-{number * 7919}", f"job-{number * 104729}") for number in range(900))
    wish = OrdersWish("", (Posting(Order("maintenance", "n1", jobs=jobs), HOUR, anew=True),))
    with pytest.raises(StallwatchError, match=r"takes \d+ bytes"):
        exchange_orders(fleet.place, SECRET, wish)


def test_a_place_that_holds_all_it_may_says_so() -> None:
    fleet = Fleet(1)
    for number in range(MOST_ORDERS):
        fleet.place.post(f"mute-{number}", b"", HOUR, anew=True)
    with pytest.raises(PlaceProblem):
        exchange_orders(fleet.place, SECRET, OrdersWish("", (Posting(MUTE, HOUR, anew=True),)))
