"""Between what people say here and what stands for all nodes."""

import msgspec

from stallwatch.clock import SECOND_NS
from stallwatch.fleet.orders import Book, Order, exchange_orders
from stallwatch.incidents.messages import Acknowledged, Event, MaintenanceWanted, ModeWanted, MuteWanted
from stallwatch.loop.fleet_orders import events_of, give, give_acknowledged, give_jobs_here
from stallwatch.model.incident import Together
from stallwatch.model.snapshot import JobKey
from tests.unit.fleet.memory_place import MemoryPlace
from tests.unit.outputs.reports import incident

SECRET = b"sixteen bytes or more"
NOW, WALL = 1_000 * SECOND_NS, 10**18
LATER = NOW + 600 * SECOND_NS


class Two:
    """What is said to the first is what the second hears."""

    def __init__(self) -> None:
        self.place = MemoryPlace(lambda: 1000.0)
        self.here, self.there = Book("node0"), Book("node1")
        self.now_ns = NOW

    def hear(self) -> list[Event]:
        self.now_ns += 10 * SECOND_NS
        news = []
        for book in (self.here, self.there):
            wish = book.wish(self.now_ns)
            assert wish is not None
            news = book.heard(wish, exchange_orders(self.place, SECRET, wish), NOW)
        return list(events_of(news))


def test_a_mute_a_mode_and_a_maintenance_arrive_as_they_were_said() -> None:
    two = Two()
    mode, maintenance = ModeWanted("shadow", LATER, "anna"), MaintenanceWanted("node7", LATER, "ben", "disks")
    give(two.here, [MuteWanted("train", LATER, "anna", "carla"), mode, maintenance], NOW, WALL)
    assert two.hear() == [
        MuteWanted("train", LATER, "anna", "carla on node0"),
        ModeWanted("shadow", LATER, "anna on node0"),
        maintenance,
    ]


def test_an_end_arrives_as_one() -> None:
    two = Two()
    give(two.here, [ModeWanted("off", LATER)], NOW, WALL)
    two.hear()
    give(two.here, [ModeWanted("tell", NOW)], NOW, WALL)
    (event,) = two.hear()
    assert isinstance(event, ModeWanted)
    assert event.until_ns <= NOW


def test_who_acknowledges_on_one_node_is_on_it_on_all_that_see_it() -> None:
    two = Two()
    shared = Together(incident_id="llama-7b-9")
    here = incident(together=shared, acknowledged_by="anna", incident_id="a-1")
    there = incident(together=shared, incident_id="b-2")
    assert give_acknowledged(two.here, [here, incident(incident_id="c")], {}, NOW, WALL) == []
    two.hear()
    assert give_acknowledged(two.there, [there], {}, NOW, WALL) == [Acknowledged("b-2", "anna")]
    taken = msgspec.structs.replace(there, acknowledged_by="anna")
    assert give_acknowledged(two.there, [taken, incident(incident_id="b-3")], {}, NOW, WALL) == []


def test_a_node_in_maintenance_says_which_jobs_run_there() -> None:
    two = Two()
    give(two.there, [MaintenanceWanted("node0", LATER, "ben")], NOW, WALL)
    two.hear()
    two.hear()
    give_jobs_here(two.here, "node0", [JobKey("train", "e", "anna")], NOW)
    give_jobs_here(two.there, "node1", [JobKey("other", "e", "anna")], NOW)
    (event,) = two.hear()
    assert event == MaintenanceWanted("node0", LATER, "ben", "", (("anna", "train"),))
    assert [order.jobs for order, _ in two.here.holds("maintenance")] == [(("anna", "train"),)]


def test_what_is_not_for_all_is_not_given() -> None:
    book = Book("node0")
    give(book, [Acknowledged("a-1", "anna")], NOW, WALL)
    wish = book.wish(NOW)
    assert wish is not None
    assert wish.give == ()
    assert Order("mute", "a", "b").name != Order("mute", "a\0b").name != Order("mode").name
