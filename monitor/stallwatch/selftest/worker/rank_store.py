"""The store at which ranks meet before they have a process group: who came, who did not, and what all agree on."""

import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, Optional

from stallwatch.selftest.worker.launcher_env import RankPlace

_PREFIX = "stallwatch-selftest"


class RanksMissing(Exception):
    """Some ranks never came to the store, or the store could not be reached."""


class Meeting:
    """The store at which all ranks meet before there is a process group, and what they tell each other there."""

    def __init__(self, torch: Any, place: RankPlace, seconds: float) -> None:
        """Reach the store at MASTER_ADDR:MASTER_PORT; rank 0 opens it, unless torchrun's agent holds it already."""
        self._place = place
        self._seconds = seconds
        self._distributed = torch.distributed
        self._address, self._port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        self.store = self._connect(is_master=place.rank == 0 and not agent)
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        # A restarted attempt must not read the words of the one before.
        self.words = torch.distributed.PrefixStore(f"{_PREFIX}/{restart}", self.store)

    def _connect(self, is_master: bool) -> Any:
        try:
            return self._distributed.TCPStore(
                self._address, self._port, None, is_master, timedelta(seconds=self._seconds), wait_for_workers=False
            )
        except Exception as error:
            what = "opened" if is_master else "reached"
            raise RanksMissing(
                f"the store at {self._address}:{self._port} could not be {what} from {os.uname().nodename}: "
                f"{first_line(error)}"
            ) from error

    def gather_all(self, device: str) -> None:
        """Wait for every rank. Raise RanksMissing with those that come too late. `device`: what this one works on."""
        self.say("arrived", f"pid {os.getpid()} on {os.uname().nodename}, {device}")
        others = [rank for rank in range(self._place.world_size) if rank != self._place.rank]
        if not others:
            return
        try:
            # A wait that stands in stacks as what it is.
            self.words.wait([f"arrived/{rank}" for rank in others], timedelta(seconds=self._seconds))
        except Exception as error:
            absent = [rank for rank in others if not self._ask(partial(self.words.check, [f"arrived/{rank}"]))]
            why = f"{ranks_text(absent)} never came within {self._seconds:.0f} s" if absent else first_line(error)
            raise RanksMissing(f"at the store, {why}") from error

    def who(self) -> "list[str]":
        """Rank, pid, host and device of everybody, once all have come, and where they met."""
        ranks = range(self._place.world_size)
        return [*(f"rank {rank}: {self.await_word('arrived', rank)}" for rank in ranks), f"master: {self.place}"]

    @property
    def place(self) -> str:
        """The store's "address:port"."""
        return f"{self._address}:{self._port}"

    def say(self, key: str, value: str) -> None:
        """Leave this rank's value under a key in the store, for the others to read."""
        self._ask(lambda: self.words.set(f"{key}/{self._place.rank}", value))

    def await_word(self, key: str, rank: int) -> str:
        """What a rank says of this; waits for it, within the store's deadline."""
        return str(self._ask(lambda: bytes(self.words.get(f"{key}/{rank}")).decode()))

    def decide(self, key: str, value: str) -> str:
        """Rank 0 gives the value that all return; the others wait for it, within the store's deadline."""
        if self._place.rank == 0:
            self._ask(lambda: self.words.set(key, value))
            return value
        return str(self._ask(lambda: bytes(self.words.get(key)).decode()))

    def least(self, key: str, value: int) -> int:
        """The smallest of all ranks' values."""
        self.say(key, str(value))
        return min(int(self.await_word(key, rank)) for rank in range(self._place.world_size))

    def _ask(self, question: "Callable[[], Any]") -> Any:
        try:
            return question()
        except Exception as error:
            raise RanksMissing(
                f"the store at {self._address}:{self._port} does not answer: {first_line(error)}"
            ) from error

    def standing(self) -> "dict[int, Optional[str]]":
        """Where every rank says it is: `<index> <step>`, None for one that said nothing. By a connection of its own,
        for the main thread's may be in use by what hangs."""
        client = self._distributed.PrefixStore(
            f"{_PREFIX}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", self._connect(is_master=False)
        )
        return {rank: _get(client, f"at/{rank}") for rank in range(self._place.world_size)}


def _get(store: Any, key: str) -> Optional[str]:
    return bytes(store.get(key)).decode() if store.check([key]) else None


def first_line(error: BaseException) -> str:
    """The sentence of an exception of torch, without the C++ stack below it."""
    text = str(error).strip().split("\nException raised from")[0].splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"[:400]


def ranks_text(ranks: "list[int]") -> str:
    """Ranks as people write them, "rank 3" or "ranks 1, 4"; at most 16 are written out."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:16]))
    return f"ranks {shown}{' and more' if len(ranks) > 16 else ''}"
