"""Talks to the daemon of this node over its control socket, for the command line and the demo."""

import grp
import http.client
import os
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from stallwatch.encoding import json_of
from stallwatch.errors import StallwatchError, UsageError
from stallwatch.formats.tolerant import NOT_JSON
from stallwatch.model.incident import Judgement, Mode
from stallwatch.outputs.documents import IncidentDocument, IncidentList, RankList

_SECONDS = 10.0
_NOTIFY_SECONDS = 70.0  # above what the daemon gives its outputs
EXIT_UNAVAILABLE = 69  # sysexits.h EX_UNAVAILABLE


class DaemonUnreachable(StallwatchError):
    """No daemon answers on the control socket."""

    exit_code = EXIT_UNAVAILABLE


class Client:
    """One call, one connection, one deadline. Raise DaemonUnreachable when nobody answers, UsageError with the
    daemon's own advice when it refuses."""

    def __init__(self, socket_path: str | Path, seconds: float = _SECONDS) -> None:
        self._path = os.fspath(socket_path)
        self._seconds = seconds

    def ranks(self) -> RankList:
        """The ranks of the daemon's node."""
        return msgspec.json.decode(self._get("/api/v1/ranks"), type=RankList)

    def incidents(self, past: int = 0) -> IncidentList:
        """Open and recent incidents, and the last `past` of the store."""
        return msgspec.json.decode(self._get(f"/api/v1/incidents?past={past}"), type=IncidentList)

    def incident(self, incident_id: str) -> IncidentDocument:
        """One incident with its verdicts. Raise UsageError for what cannot be an id, DaemonUnreachable without a
        daemon."""
        if not incident_id or "/" in incident_id:  # it would be another path
            raise UsageError(f"no incident {incident_id!r} on this node", "`stallwatch incidents` lists them.")
        return msgspec.json.decode(self._get(f"/api/v1/incidents/{quote(incident_id, safe='')}"), type=IncidentDocument)

    def capture(self, training_job: str | None = None, owner: str | None = None) -> str:
        """Start a capture; return the incident's id."""
        answer = self._post("/control/capture", {"training_job": training_job, "owner": owner})
        return str(answer["incident_id"])

    def mute(self, training_job: str, seconds: float, owner: str | None = None, by: str = "") -> str:
        """Return whose job it is (Control.mute)."""
        asked = {"training_job": training_job, "seconds": seconds, "owner": owner, "by": by}
        return str(self._post("/control/mute", asked)["owner"])

    def mode(self, mode: Mode, seconds: float, by: str = "") -> str:
        """Return on which nodes it holds (Control.mode)."""
        return str(self._post("/control/mode", {"mode": mode, "seconds": seconds, "by": by})["where"])

    def maintenance(self, node: str, seconds: float, why: str = "", by: str = "") -> str:
        """Announce that a node is worked on for so many seconds; return where that counts."""
        asked = {"node": node, "seconds": seconds, "why": why, "by": by}
        return str(self._post("/control/maintenance", asked)["where"])

    def acknowledge(self, incident_id: str, by: str = "") -> str:
        """Say that you are on it; return who that is. `by`: for whom, which root may say."""
        answer = self._post(f"/api/v1/incidents/{quote(incident_id, safe='')}/acknowledge", {"by": by})
        return str(answer["by"])

    def judge(self, incident_id: str, judgement: Judgement, by: str = "") -> str:
        """Say whether a verdict was right; return who says so."""
        asked = {"incident_id": incident_id, "judgement": judgement, "by": by}
        return str(self._post("/control/judge", asked)["by"])

    def notify_test(self) -> tuple[str, ...]:
        """A line per output with what happened."""
        return tuple(self._post("/control/notify-test", {}, _NOTIFY_SECONDS)["lines"])

    def page_url(self) -> str | None:
        """The status page's address with its token; None when the daemon has no TCP address."""
        return msgspec.json.decode(self._get("/control/page"), type=dict[str, str | None])["url"]

    def healthy(self) -> bool:
        """Whether the daemon's loop lives."""
        status, _ = self._exchange("GET", "/healthz", None, self._seconds)
        return status == 200

    def metrics(self) -> str:
        """The metrics in their text format."""
        return self._get("/metrics").decode()

    def _get(self, path: str) -> bytes:
        return self._checked(*self._exchange("GET", path, None, self._seconds))

    def _post(self, path: str, body: dict[str, Any], seconds: float | None = None) -> dict[str, Any]:
        answer = self._exchange("POST", path, json_of(body), seconds or self._seconds)
        return msgspec.json.decode(self._checked(*answer), type=dict[str, Any])

    def _checked(self, status: int, body: bytes) -> bytes:
        if status == 200:
            return body
        try:
            refusal = msgspec.json.decode(body, type=dict[str, Any])
        except NOT_JSON:
            refusal = {"error": f"the daemon answered {status}"}
        message, advice = str(refusal.get("error", "")), str(refusal.get("help", ""))
        if status >= 500:
            raise DaemonUnreachable(message, advice)
        raise UsageError(message, advice)

    def _exchange(self, method: str, path: str, body: bytes | None, seconds: float) -> tuple[int, bytes]:
        connection = _UnixConnection(self._path, seconds)
        headers = {"Content-Type": "application/json"} if body is not None else {}
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except PermissionError as error:
            raise DaemonUnreachable(
                f"{self._path}: permission denied", f"It is for {_members_of(self._path)}, and for root."
            ) from error
        except TimeoutError as error:
            raise DaemonUnreachable(
                f"the daemon did not answer within {seconds:.0f} s",
                "`systemctl status stallwatch` and its log say more.",
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise DaemonUnreachable(
                f"no daemon answers at {self._path}: {getattr(error, 'strerror', None) or error}",
                "Start it with `stallwatch daemon` or `systemctl start stallwatch`; "
                "if its run directory is another one, set STALLWATCH_DAEMON_RUN_DIRECTORY or --config.",
            ) from error
        finally:
            connection.close()


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, seconds: float) -> None:
        super().__init__("stallwatch", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _members_of(path: str) -> str:
    """Whom a socket is open to, and how one becomes such a one."""
    try:
        name = grp.getgrgid(os.stat(path).st_gid).gr_name
    except (OSError, KeyError):  # its directory is closed, too; a group without a name
        return "the group of the socket (http.socket_group)"
    return f"the group {name}: as root `usermod -aG {name} NAME`, then log in again"
