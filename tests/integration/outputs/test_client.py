import errno
import http.client
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallwatch.errors import UsageError
from stallwatch.outputs.client import Client, DaemonUnreachable
from tests.integration.outputs.serving import Served, served, stalled
from tests.unit.outputs.reports import JOB


@pytest.fixture(scope="module")
def node() -> Iterator[Served]:
    with served(stalled()) as made:
        yield made


def test_it_reads_ranks_incidents_and_the_pages_address(node: Served) -> None:
    assert [rank.rank for rank in node.client.ranks().ranks] == [0, 1, 2, 3]
    (listed,) = node.client.incidents(past=10).incidents
    assert node.client.incident(listed.incident_id).stacks is not None
    assert node.client.page_url() == f"http://127.0.0.1:{node.port}/?token={node.token}"
    assert "stallwatch_rank_step" in node.client.metrics()
    assert node.client.healthy()


def test_it_asks_for_captures_silence_and_test_alerts(node: Served) -> None:
    node.control.asked.clear()
    assert node.client.capture(JOB.training_job) == "llama-7b-2"
    assert node.client.capture() == "llama-7b-2"
    node.client.mute(JOB.training_job, 60)
    assert node.control.asked == [("capture", "llama-7b"), ("capture", None), ("mute", "llama-7b", 60.0)]
    assert node.client.notify_test() == ("slack: delivered (200 ok)",)


def test_a_refusal_carries_the_daemons_advice(node: Served) -> None:
    with pytest.raises(UsageError, match="no job 'other'") as refusal:
        node.client.capture("other")
    assert refusal.value.help == "Running: llama-7b"
    with pytest.raises(UsageError, match="no incident"):
        node.client.incident("../../etc/passwd")
    with pytest.raises(UsageError):
        node.client.mute(JOB.training_job, -1)


def test_nobody_there_is_said_with_what_to_do() -> None:
    with pytest.raises(DaemonUnreachable, match="no daemon answers") as refusal:
        Client("/nowhere/control.sock").ranks()
    assert "stallwatch daemon" in refusal.value.help
    assert refusal.value.exit_code == 69


def test_who_may_not_ask_is_told_which_group_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(http.client.HTTPConnection, "request", refused)
    path = tmp_path / "control.sock"
    path.touch()
    with pytest.raises(DaemonUnreachable, match="permission denied") as refusal:
        Client(path).ranks()
    assert f"the group {path.group()}: as root `usermod -aG {path.group()} NAME`" in refusal.value.help
    path.unlink()
    with pytest.raises(DaemonUnreachable) as refusal:
        Client(path).ranks()
    assert "the group of the socket (http.socket_group)" in refusal.value.help


def test_a_daemon_that_accepts_and_says_nothing_does_not_hold_the_caller() -> None:
    with tempfile.TemporaryDirectory(prefix="sw-") as folder, socket.socket(socket.AF_UNIX) as mute:
        path = Path(folder) / "control.sock"
        mute.bind(str(path))
        mute.listen(4)
        with pytest.raises(DaemonUnreachable, match="did not answer"):
            Client(path, seconds=0.2).ranks()
