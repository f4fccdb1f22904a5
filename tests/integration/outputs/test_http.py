import contextlib
import http.client
import io
import os
import pwd
import re
import socket
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stallwatch.errors import UsageError
from tests.builders.clock import FakeClock
from tests.integration.outputs.serving import Served, served, stalled
from tests.unit.outputs.reports import FakeControl, incident, node_report

PRIVATE = [
    "/",
    "/api/v1/ranks",
    "/api/v1/incidents",
    "/api/v1/incidents/llama-7b-1",
    "/api/v1/incidents/llama-7b-1/bundle.tar.gz",
]
SECRETS = (b"take_lock", b"llama-7b")
ME = pwd.getpwuid(os.getuid()).pw_name


def test_metrics_health_and_readiness_are_open(node: Served) -> None:
    metrics = node.get("/metrics")
    assert metrics.status == 200
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert re.search(rb'stallwatch_culprit{[^}]*rank="2",training_job="llama-7b"', metrics.body)
    assert node.get("/healthz").json == {"healthy": True, "reason": ""}
    ready = node.get("/readyz")
    assert ready.status == 200
    assert ready.json["problems"][0]["reason"] == "no GPU on this node"


@pytest.mark.parametrize("path", PRIVATE)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer"},
        {"Authorization": "Basic d3Jvbmc6d3Jvbmc="},
        {"Cookie": "stallwatch-1=wrong"},
    ],
)
def test_everything_else_shows_nothing_without_the_token(node: Served, path: str, headers: dict[str, str]) -> None:
    answer = node.get(path, **headers)
    assert answer.status == 401
    assert not any(secret in answer.body for secret in SECRETS)


def test_a_wrong_token_in_the_url_shows_nothing_even_beside_a_right_cookie(node: Served) -> None:
    answer = node.get("/?token=wrong", Cookie=session(node))
    assert answer.status == 401
    assert "set-cookie" not in answer.headers


def test_the_token_in_the_pages_url_becomes_a_cookie_and_leaves_the_url(node: Served) -> None:
    answer = node.get(f"/?token={node.token}")
    assert answer.status == 303
    assert answer.headers["location"] == "./"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    page = node.get("/", Cookie=cookie.partition(";")[0])
    assert page.status == 200
    assert b"<title>stallwatch</title>" in page.body
    assert node.get("/api/v1/ranks", Cookie=cookie.partition(";")[0]).status == 200


def test_the_api_takes_no_token_from_a_url(node: Served) -> None:
    assert node.get(f"/api/v1/ranks?token={node.token}").status == 401


def session(node: Served) -> str:
    """The cookie of somebody who opened the page with its token."""
    return node.get(f"/?token={node.token}").headers["set-cookie"].partition(";")[0]


def test_the_cookie_is_not_the_token_and_the_token_is_no_cookie(node: Served) -> None:
    assert node.token not in session(node)
    assert session(node) != session(node)
    assert node.get("/api/v1/ranks", Cookie=f"stallwatch-{node.port}={node.token}").status == 401


def test_a_cookie_of_another_daemon_with_the_same_token_opens_nothing(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789abcdef0123456789abcdef")
    same = {("http", "token_file"): str(tmp_path / "token")}
    with served(stalled(), overrides=same) as first, served(stalled(), overrides=same) as second:
        mine = first.get("/?token=0123456789abcdef0123456789abcdef").headers["set-cookie"].partition(";")[0]
        value = mine.partition("=")[2]
        assert first.get("/api/v1/ranks", Cookie=mine).status == 200
        assert second.get("/api/v1/ranks", Cookie=f"stallwatch-{second.port}={value}").status == 401


def test_a_cookie_ends(node: Served) -> None:
    clock = FakeClock()
    with served(stalled(), clock=clock) as made:
        cookie = session(made)
        clock.advance(11 * 3600)
        assert made.get("/api/v1/ranks", Cookie=cookie).status == 200
        clock.advance(2 * 3600)
        assert made.get("/api/v1/ranks", Cookie=cookie).status == 401
        assert made.get("/", Cookie=cookie).status == 401


def test_who_leaves_takes_his_cookie_with_him_and_nobody_elses(node: Served) -> None:
    mine, hers = session(node), session(node)
    assert node.get("/logout", "POST", Cookie=mine, Sec_Fetch_Site="cross-site").status == 401
    left = node.get("/logout", "POST", Cookie=mine, Sec_Fetch_Site="same-origin")
    assert left.status == 204
    assert "max-age=0" in left.headers["set-cookie"].lower()
    assert node.get("/api/v1/ranks", Cookie=mine).status == 401
    assert node.get("/api/v1/ranks", Cookie=hers).status == 200
    assert node.get("/logout", "POST").status == 401


def test_behind_https_the_cookie_travels_by_nothing_else() -> None:
    with served(stalled(), overrides={("http", "external_url"): "https://watch.example/node/"}) as made:
        asked = f"/?token={made.token}"
        assert "Secure" in made.get(asked, Host="watch.example").headers["set-cookie"]
        assert "Secure" not in made.get(asked, Host="localhost").headers["set-cookie"]


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_sites_page_cannot_read_with_its_visitors_cookie(node: Served, site: str) -> None:
    cookie = session(node)
    assert node.get("/api/v1/ranks", Cookie=cookie, Sec_Fetch_Site=site).status == 401
    assert node.get("/api/v1/ranks", Cookie=cookie, Sec_Fetch_Site="same-origin").status == 200


@pytest.mark.parametrize("path", ["/metrics", "/", "/readyz"])
def test_a_name_rebound_to_loopback_reads_nothing(node: Served, path: str) -> None:
    answer = node.get(path, Host="evil.example:9477")
    assert answer.status == 421
    assert not any(secret in answer.body for secret in SECRETS)


@pytest.mark.parametrize("host", ["localhost:9477", "127.0.0.1", "[::1]:9477", "watch.example"])
def test_loopback_names_and_the_external_url_are_ours(host: str) -> None:
    with served(stalled(), overrides={("http", "external_url"): "https://watch.example/node/"}) as made:
        assert made.get("/metrics", Host=host).status == 200


def test_the_page_may_run_and_load_nothing_but_itself(node: Served) -> None:
    page = node.ask("/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert not re.findall(rb"(?:src|href)=[\"'](?!data:)", page.body)
    assert not re.search(rb"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|https?://", page.body)
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["cache-control"] == "no-store"


def test_an_incident_is_a_report_and_its_state(node: Served) -> None:
    document = node.ask("/api/v1/incidents/llama-7b-1").json
    assert document["verdicts"][0]["culprits"] == [2]
    assert document["stacks"]["ranks"] == "0-3"
    assert (document["state"], document["severity"]) == ("open", "critical")
    assert [one["incident_id"] for one in node.ask("/api/v1/incidents").json["incidents"]] == ["llama-7b-1"]


@pytest.mark.parametrize(
    "path",
    [
        "..",
        "%2e%2e",
        "..%2f..%2fetc%2fpasswd",
        ".hidden",
        "a%00b",
        "%ff",
        "a" * 300,
        "a/b",
        "-rf",
        "a%0ab",
        "llama-7b-1%0a",
    ],
)
def test_an_id_is_never_a_path(node: Served, path: str) -> None:
    node.control.asked.clear()
    for suffix in ("", "/bundle.tar.gz"):
        assert node.ask(f"/api/v1/incidents/{path}{suffix}").status == 404
    assert node.control.asked == []  # the daemon was not even asked


@pytest.mark.parametrize("path", ["/control/capture", "/control/mute", "/control/notify-test", "/control/page"])
def test_what_changes_anything_does_not_exist_on_tcp(node: Served, path: str) -> None:
    for method in ("GET", "POST"):
        answer = node.get(path, method, Authorization=f"Bearer {node.token}")
        assert answer.status == 404
    assert node.get("/api/v1/ranks", "POST", Authorization=f"Bearer {node.token}").status == 405


ACKNOWLEDGE = "/api/v1/incidents/llama-7b-1/acknowledge"


def send(node: Served, body: str, **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=10)
    given = {"Content-Type": "application/json"} | {name.replace("_", "-"): text for name, text in headers.items()}
    with contextlib.closing(connection):
        connection.request("POST", ACKNOWLEDGE, body, given)
        return connection.getresponse().status


def test_who_holds_the_token_acknowledges_and_no_other_site_does_so_for_him(node: Served) -> None:
    cookie = session(node)
    asked = "{}"
    assert send(node, asked) == 401
    assert send(node, asked, Authorization="Bearer wrong") == 401
    assert send(node, asked, Cookie=cookie, Sec_Fetch_Site="cross-site") == 401
    assert send(node, asked, Cookie=cookie, Content_Type="text/plain") == 415  # what a foreign form can send
    assert [one for one in node.control.asked if one[0] == "acknowledge"] == []
    assert send(node, asked, Cookie=cookie, Sec_Fetch_Site="same-origin") == 200
    assert node.control.asked[-1] == ("acknowledge", "llama-7b-1", f"somebody with the page's token ({ME})")


@pytest.mark.parametrize("name", ["anna", "slack:U07ANNA", "@channel"])
def test_over_tcp_nobody_says_who_he_is(node: Served, name: str) -> None:
    assert send(node, f'{{"by":"{name}"}}', Authorization=f"Bearer {node.token}") == 200
    assert name not in node.control.asked[-1][2]


def test_on_the_socket_it_is_the_user_and_root_may_say_for_whom() -> None:
    with served(stalled()) as made:
        assert made.client.acknowledge("llama-7b-1") == ME
        assert made.control.asked[-1] == ("acknowledge", "llama-7b-1", ME)
        if os.getuid() == 0:
            assert made.client.acknowledge("llama-7b-1", "anna") == "anna"
            for nobody in ("slack:U07ANNA", "x" * 61, "a\u0007"):
                with pytest.raises(UsageError, match="name"):
                    made.client.acknowledge("llama-7b-1", nobody)
        else:
            with pytest.raises(UsageError, match=ME):
                made.client.acknowledge("llama-7b-1", "anna")


BAD_BODIES = {
    "deep": b"[" * 100_000,
    "deep within": b'{"training_job":' + b'{"a":' * 100_000,
    "deep and unknown": b'{"x":' + b"[" * 60_000,
    "a lone surrogate": b'{"training_job":"\\ud800","seconds":60,"by":"\\ud800"}',
    "no UTF-8": b'{"training_job":"\xff","seconds":60,"by":"\xff"}',
    "another type": b'{"training_job":[1],"seconds":"x","by":3}',
    "no object": b"3",
    "no JSON": b"not JSON",
    "too many digits": b'{"seconds":1' + b"0" * 400 + b',"training_job":0,"by":0}',
}


@pytest.mark.parametrize("path", ["/control/mute", "/control/capture", ACKNOWLEDGE])
@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES)
def test_a_body_that_says_nothing_we_know_is_refused_with_what_would_do(node: Served, path: str, body: bytes) -> None:
    status, answer = raw(node, path, body)
    assert status in (400, 413)
    assert "instance" in answer["help"]


def test_a_silence_has_an_end_and_a_body_a_size(node: Served) -> None:
    for seconds in ("-1", "1e300", "true"):
        assert raw(node, "/control/mute", f'{{"training_job":"llama-7b","seconds":{seconds}}}'.encode())[0] == 400
    node.control.asked.clear()
    padded = b'{"training_job":"llama-7b"' + b" " * (1 << 20) + b"}"
    assert raw(node, "/control/capture", padded)[0] == 413
    assert node.control.asked == []  # not even as a capture of whatever runs


def raw(node: Served, path: str, body: bytes) -> tuple[int, Any]:
    """Ask over the socket in whatever bytes."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(str(node.output.socket_path))
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
        with contextlib.suppress(ConnectionError):  # it may have answered before it has read all
            connection.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        return answer.status, msgspec.json.decode(answer.read())


def test_the_evidence_is_one_file_without_links(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "stacks.json").write_text("[]")
    (tmp_path / "ranks" / "link.json").symlink_to("/etc/passwd")
    one = incident(bundle=str(tmp_path))
    with served(node_report(one), FakeControl(incidents=(one,))) as made:
        answer = made.ask("/api/v1/incidents/llama-7b-1/bundle.tar.gz")
    with tarfile.open(fileobj=io.BytesIO(answer.body)) as tar:
        assert tar.getnames() == ["llama-7b-1/ranks/stacks.json"]
    with served(stalled()) as gone:
        assert gone.ask("/api/v1/incidents/llama-7b-1/bundle.tar.gz").status == 404
