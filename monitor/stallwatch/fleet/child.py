"""Talks with the meeting place for the daemon: `python -m stallwatch.fleet.child` (fleet.link asks). Ends with its
standard input. A server, a name service or a file system that does not answer holds up this process and no other."""

import contextlib
from pathlib import Path
from typing import Literal

import msgspec

from stallwatch.encoding import msgpack_of
from stallwatch.errors import StallwatchError
from stallwatch.fleet.company_seat import CompanyWish, exchange_company
from stallwatch.fleet.directory_home import SharedRoot
from stallwatch.fleet.exchange import Seen, Wish, exchange
from stallwatch.fleet.orders import OrdersWish, exchange_orders
from stallwatch.fleet.pace_seat import PaceWish, exchange_pace
from stallwatch.fleet.place import MeetingPlace
from stallwatch.fleet.place_settings import Settings, open_place, password_of, secret_of
from stallwatch.fleet.roster import Greeting, exchange_roster
from stallwatch.node.capabilities import drop_unless_root
from stallwatch.node.framing import answer_requests, as_child


class PlaceRequest(msgspec.Struct, frozen=True):
    """What the child that talks to the meeting place is asked."""

    settings: Settings
    what: Literal["check", "exchange", "orders", "pace", "company", "greet"]
    wish: Wish | None = None
    orders: OrdersWish | None = None
    pace: PaceWish | None = None
    company: CompanyWish | None = None
    greeting: Greeting | None = None


_REQUEST = msgspec.msgpack.Decoder(PlaceRequest)


class Talker:
    """Holds the connection between requests; after a problem the next one makes another, and reads its files again."""

    def __init__(self) -> None:
        self._place: MeetingPlace | None = None
        self._secret = b""
        self._password = ""
        self._homes: dict[Path, SharedRoot] = {}
        self._settings: Settings | None = None
        self._tried: Settings | None = None  # with these it could be used; once more is for who has the time

    def answer(self, request: PlaceRequest) -> Seen:
        """Ask the meeting place; its errors are answers."""
        try:
            if request.what == "greet" and secret_of(request.settings) != self._secret:
                self._hang_up()  # another key was put into the file
            elif request.what in ("greet", "check") and password_of(request.settings) != self._password:
                self._hang_up()
            if self._place is None or request.settings != self._settings:
                self._secret, self._password = secret_of(request.settings), password_of(request.settings)
                self._place = open_place(request.settings, self._secret, self._homes)
                self._settings, self._tried = request.settings, None
            if request.what == "check" or request.settings != self._tried:
                self._place.check()
                self._tried = request.settings
            seen = self._done(self._place, request)
        except StallwatchError as error:
            seen = Seen(problem=str(error), advice=error.help)
        except Exception as error:  # noqa: BLE001 - this child's guard: what a call raises is its answer
            seen = Seen(problem=f"{type(error).__name__}: {error}")
        if seen.problem:
            self._hang_up()
        return seen

    def _hang_up(self) -> None:
        if self._place is not None:
            with contextlib.suppress(Exception):
                self._place.hang_up()
            self._place = None

    def _done(self, place: MeetingPlace, request: PlaceRequest) -> Seen:
        if request.orders is not None:
            return Seen(orders=exchange_orders(place, self._secret, request.orders))
        if request.pace is not None:
            return Seen(pace=exchange_pace(place, self._secret, request.pace))
        if request.company is not None:
            return Seen(company=exchange_company(place, self._secret, request.company))
        if request.wish is not None:
            return exchange(place, self._secret, request.wish)
        return Seen(roster=exchange_roster(place, self._secret, request.greeting or Greeting()))


def main() -> None:
    """Answer requests until standard input ends."""
    drop_unless_root()
    talker = Talker()
    answer_requests(lambda request: msgpack_of(talker.answer(_REQUEST.decode(request))))


if __name__ == "__main__":
    as_child(main)
