"""Whose jobs somebody may see: everybody's, or his own."""

import grp
import os
import pwd

import msgspec
from starlette.requests import Request

from stallwatch.model.incident import NodeReport, Telling
from stallwatch.outputs.peers import Peer


class Viewer(msgspec.Struct, frozen=True):
    """Who asks. The page's token opens everything and names nobody."""

    name: str = ""  # as the node or the proxy knows him; "": nobody is named
    only_own: bool = False  # sees the jobs whose owner has his name, and nothing of the node's others

    def may_see(self, owner: str) -> bool:
        """Whether jobs of that owner are shown to this viewer."""
        return not self.only_own or (bool(self.name) and owner == self.name)

    def seen(self, report: NodeReport) -> NodeReport:
        """What of a report is for his eyes."""
        if not self.only_own:
            return report
        return msgspec.structs.replace(
            report,
            ranks=tuple(rank for rank in report.ranks if self.may_see(rank.owner)),
            incidents=tuple(incident for incident in report.incidents if self.may_see(incident.job.owner)),
            telling=Telling(report.telling.mode),
        )


EVERYTHING = Viewer()


def viewer_of(request: Request) -> Viewer:
    """Who the guard found to ask; where there is none, the socket's mode has let in only who may see everything."""
    found = getattr(request.state, "viewer", EVERYTHING)
    assert isinstance(found, Viewer)
    return found


class UserGroup:
    """The group whose members see everybody's jobs. Its methods ask the node's directory of users, and may block."""

    def __init__(self, name: str) -> None:
        """`name`: http.socket_group; "" is the daemon's own group."""
        self._name = name

    def viewer(self, name: str) -> Viewer:
        """Given a user's name, as the node or a proxy tells it."""
        return Viewer(name, only_own=not self._has(name))

    def viewer_at(self, peer: Peer) -> Viewer:
        """Given who is connected to the control socket."""
        if peer.uid in (0, os.geteuid()):
            return Viewer(peer.user())
        return self.viewer(peer.user())

    def _has(self, user: str) -> bool:
        try:
            gid = grp.getgrnam(self._name).gr_gid if self._name else os.getegid()
            known = pwd.getpwnam(user)
        except (KeyError, ValueError, OSError):
            return False  # whom the node does not know is a member of nothing
        return gid in os.getgrouplist(known.pw_name, known.pw_gid)
