"""Whose a process is, by name: the node's own name for its uid, never what a record or an environment says."""

import pwd
from collections.abc import Callable, Iterable
from pathlib import Path

from stallwatch.node.aside import OneCallAtATime

_ANSWER_SECONDS = 1.0
_PASSWD = Path("/etc/passwd")


def in_file(uid: int, path: Path = _PASSWD) -> str:
    """The name of a user of this node by passwd(5), "" of one that is not in it. Whose name a busy node was late with
    had another's job after a restart, and was told of it again."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return ""
    for line in lines:
        fields = line.split(b":", 3)
        if len(fields) == 4 and fields[2] == str(uid).encode():
            return fields[0].decode("utf-8", "replace")
    return ""


class OwnerNames:
    """Names of users by uid. One is asked for once and stays for as long as the uid is used, for a job is known by it.

    Users of the node itself are in its own file. The service that knows the others may hang with the network (LDAP): it
    is asked in a thread that may be lost, and waited for once. Who has no name, or had none in time, is "uid 65001".
    """

    def __init__(
        self,
        look_up: Callable[[int], str] = lambda uid: pwd.getpwuid(uid).pw_name,
        seconds: float = _ANSWER_SECONDS,
        local: Callable[[int], str] = in_file,
    ) -> None:
        self._look_up, self._local = look_up, local
        self._seconds = seconds
        self._names: dict[int, str] = {}
        self._aside = OneCallAtATime[str]()

    def name_of(self, uid: int) -> str:
        """A user's name; "uid N" for one that has none."""
        known = self._names.get(uid)
        if known is None:
            known = self._names[uid] = self._local(uid) or self._ask(uid) or f"uid {uid}"
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
