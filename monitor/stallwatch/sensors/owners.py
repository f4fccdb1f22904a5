"""Whose a process is, by name: the node's own name for its uid, never what a record or an environment says."""

import pwd
from collections.abc import Callable, Iterable

from stallwatch.node.aside import OneCallAtATime

_ANSWER_SECONDS = 1.0


class OwnerNames:
    """Names of users by uid. One is asked for once and stays for as long as the uid is used, for a job is known by it.

    The service that knows the names may hang with the network (LDAP): it is asked in a thread that may be lost, and
    waited for once. Who has no name, or had none in time, is "uid 65001".
    """

    def __init__(
        self, look_up: Callable[[int], str] = lambda uid: pwd.getpwuid(uid).pw_name, seconds: float = _ANSWER_SECONDS
    ) -> None:
        self._look_up = look_up
        self._seconds = seconds
        self._names: dict[int, str] = {}
        self._aside = OneCallAtATime[str]()

    def name_of(self, uid: int) -> str:
        """A user's name; "uid N" for one that has none."""
        known = self._names.get(uid)
        if known is None:
            known = self._names[uid] = self._ask(uid) or f"uid {uid}"
        return known

    def keep(self, uids: Iterable[int]) -> None:
        """Forget all others: a uid may be another user's one day."""
        used = set(uids)
        self._names = {uid: name for uid, name in self._names.items() if uid in used}

    def _ask(self, uid: int) -> str:
        return self._aside.call(lambda: self._looked_up(uid), self._seconds, "")

    def _looked_up(self, uid: int) -> str:
        try:
            return self._look_up(uid)
        except (KeyError, OSError):
            return ""
