"""Who may see whose jobs: by a proxy that has asked people to log in, and on a control socket that is open to all."""

import http.client
import os
import pwd
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stallwatch.errors import UsageError
from stallwatch.model.snapshot import JobKey
from stallwatch.outputs.peers import Peer
from stallwatch.outputs.viewer import UserGroup
from tests.integration.outputs.serving import Response, Served, served
from tests.unit.outputs.reports import FakeControl, incident, node_report, view

TOKEN = "a-token-of-the-proxy-alone"
STRANGER = "nobody"  # a user of every node, and a member of no group of ours
OURS, THEIRS = JobKey("ours", "1", STRANGER), JobKey("theirs", "1", "root")
INCIDENTS = (incident(incident_id="ours-1", job=OURS), incident(incident_id="theirs-1", job=THEIRS))
REPORT = node_report(*INCIDENTS, ranks=(view(0, job=OURS), view(0, job=THEIRS)))


@pytest.fixture
def behind_a_proxy(tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "proxy").write_text(TOKEN + "\n")
    settings = {("http", "proxy_token_file"): str(tmp_path / "proxy")}
    with served(REPORT, FakeControl(INCIDENTS, INCIDENTS), overrides=settings) as made:
        yield made


def as_user(node: Served, path: str, user: str, method: str = "GET") -> Response:
    """Ask as the proxy does for somebody who has logged in."""
    asked = {"Authorization": f"Bearer {TOKEN}", "X_Forwarded_User": user, "Content_Type": "application/json"}
    return node.get(path, method, **asked)


def test_who_is_no_member_sees_his_own_jobs_and_a_member_all(behind_a_proxy: Served) -> None:
    node, member = behind_a_proxy, pwd.getpwuid(os.geteuid()).pw_name
    for user, jobs in ((STRANGER, {"ours"}), ("somebody@elsewhere", set()), (member, {"ours", "theirs"})):
        ranks = as_user(node, "/api/v1/ranks", user).json["ranks"]
        assert {rank["training_job"] for rank in ranks} == jobs
        for path in ("/api/v1/incidents", "/api/v1/incidents?past=9"):
            assert {one["training_job"] for one in as_user(node, path, user).json["incidents"]} == jobs
        for job in ("ours", "theirs"):
            status = 200 if job in jobs else 404
            assert as_user(node, f"/api/v1/incidents/{job}-1", user).status == status
            assert as_user(node, f"/api/v1/incidents/{job}-1/timeline", user).status == status
            assert as_user(node, f"/api/v1/incidents/{job}-1/acknowledge", user, "POST").status == status
    assert as_user(node, "/", STRANGER).status == 200


def test_raw_evidence_of_the_node_is_for_members(behind_a_proxy: Served) -> None:
    assert as_user(behind_a_proxy, "/api/v1/incidents/ours-1/bundle.tar.gz", STRANGER).status == 403


def test_who_acknowledges_is_known_by_name(behind_a_proxy: Served) -> None:
    assert as_user(behind_a_proxy, "/api/v1/incidents/ours-1/acknowledge", STRANGER, "POST").json["by"] == STRANGER


def test_a_proxy_that_says_no_name_opens_nothing_and_the_pages_token_names_nobody(behind_a_proxy: Served) -> None:
    node = behind_a_proxy
    assert node.get("/api/v1/ranks", Authorization=f"Bearer {TOKEN}").status == 401
    assert as_user(node, "/api/v1/ranks", " ").status == 401
    assert node.get("/api/v1/ranks", X_Forwarded_User="root").status == 401
    by_token = node.ask("/api/v1/ranks", X_Forwarded_User=STRANGER).json["ranks"]
    assert {rank["training_job"] for rank in by_token} == {"ours", "theirs"}


def test_the_pages_token_is_not_taken_for_the_proxys(tmp_path: Path) -> None:
    (tmp_path / "one").write_text(TOKEN)
    both = {("http", key): str(tmp_path / "one") for key in ("token_file", "proxy_token_file")}
    with pytest.raises(UsageError, match="the proxy's token is the page's"), served(REPORT, overrides=both):
        pass


def over_socket(node: Served, uid: int, path: str, body: dict[str, Any] | None = None) -> Response:
    """Ask on the control socket as another user: whose it is is settled when it is connected."""
    connection = http.client.HTTPConnection("stallwatch", timeout=10)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    os.chmod(node.directory, 0o755)
    os.seteuid(uid)
    try:
        connection.sock.connect(os.fspath(node.output.socket_path))
    finally:
        os.seteuid(0)
    encoded = None if body is None else msgspec.json.encode(body)
    connection.request("GET" if body is None else "POST", path, encoded, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    try:
        return Response(answer.status, dict(answer.getheaders()), answer.read())
    finally:
        connection.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_on_a_socket_for_everybody_each_sees_and_mutes_his_own() -> None:
    uid = pwd.getpwnam(STRANGER).pw_uid
    everybody = {("http", "socket_for_everybody"): True}
    with served(REPORT, FakeControl(INCIDENTS), overrides=everybody) as node:
        for who, jobs in ((uid, {"ours"}), (0, {"ours", "theirs"})):
            ranks = over_socket(node, who, "/api/v1/ranks").json["ranks"]
            assert {rank["training_job"] for rank in ranks} == jobs
        assert over_socket(node, uid, "/control/page").status == 403
        assert over_socket(node, uid, "/control/notify-test", {}).status == 403
        muted = over_socket(node, uid, "/control/mute", {"training_job": "ours", "seconds": 60})
        assert (muted.status, muted.json["owner"]) == (200, STRANGER)
        others = {"training_job": "theirs", "seconds": 60, "owner": "root"}
        for what in ("mute", "capture"):
            refused = over_socket(node, uid, f"/control/{what}", others if what == "mute" else {"owner": "root"})
            assert (refused.status, refused.json["error"]) == (400, "this job is not yours")


def test_a_socket_is_its_groups_alone_unless_it_is_for_everybody() -> None:
    for everybody, mode in ((False, 0o660), (True, 0o666)):
        with served(REPORT, overrides={("http", "socket_for_everybody"): everybody}) as node:
            assert stat.S_IMODE(node.output.socket_path.stat().st_mode) == mode


def test_a_user_whom_the_node_does_not_know_is_a_member_of_nothing() -> None:
    assert UserGroup("").viewer("nobody-of-that-name").only_own
    assert UserGroup("no-group-of-that-name").viewer_at(Peer("", 65534)).only_own
    assert not UserGroup("no-group-of-that-name").viewer_at(Peer("", os.geteuid())).only_own


def test_a_verdict_is_judged_on_the_socket_by_whom_the_kernel_knows() -> None:
    control = FakeControl(INCIDENTS)
    with served(REPORT, control) as node:
        assert node.client.judge("ours-1", "wrong") == pwd.getpwuid(os.geteuid()).pw_name
        assert control.asked[-1][:3] == ("judge", "ours-1", "wrong")
        with pytest.raises(UsageError, match="no incident"):
            node.client.judge("nobodys-1", "right")
