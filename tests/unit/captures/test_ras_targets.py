"""Which NCCL may be asked for its RAS report without harm to the job that it serves."""

import contextlib
import os
import socket
from collections.abc import Iterator

import pytest

from stallwatch.captures.folder import NotCaptured
from stallwatch.captures.ras_targets import SAFE_VERSION, all_answer, answers_for_others, check_version
from stallwatch.config_sections import CaptureSection
from stallwatch.doctor import data
from stallwatch.doctor.frameworks.versions import Bug
from stallwatch.doctor.version_numbers import in_range
from stallwatch.model.snapshot import ProcessEnd
from tests.builders.heartbeat import heartbeat
from tests.builders.node import sample, unread_rank


@pytest.mark.parametrize("version", ["2.24.3", "2.26.2", "2.27.7", "2.28.9", ""])
def test_a_version_whose_report_reads_beyond_its_memory_is_not_asked(version: str) -> None:
    """rasClientRunComms steps over the ranks of a communicator and not over those that are missing, to 2.28.9."""
    with pytest.raises(NotCaptured) as refused:
        check_version(version)
    assert "2.29.2" in str(refused.value)


@pytest.mark.parametrize("version", ["2.29.2", "2.29.7", "2.30.7", "2.32.3"])
def test_later_versions_are_asked(version: str) -> None:
    check_version(version)


def test_the_version_before_is_asked_where_no_rank_of_the_job_is_missing() -> None:
    check_version("2.28.9", all_answer=True)
    with pytest.raises(NotCaptured):
        check_version("2.27.7", all_answer=True)


def test_ranks_that_are_stopped_ended_or_elsewhere_do_not_answer() -> None:
    alive = [sample(rank, heartbeat(rank), world_size=2) for rank in (0, 1)]
    assert all_answer(alive)
    assert not all_answer(alive[:1])
    assert not all_answer([])
    assert not all_answer([alive[0], sample(1, None, world_size=2, state="T")])
    assert not all_answer([alive[0], sample(1, None, world_size=2, end=ProcessEnd(1, None, None, "unknown"))])
    assert not all_answer([alive[0], unread_rank(1, 7, world_size=2)])


def test_the_doctor_and_the_configuration_name_the_same_version() -> None:
    safe = ".".join(map(str, SAFE_VERSION))
    bugs = [bug for bug in data.entries("bugs.toml", "bug", Bug) if "RAS" in bug.seen]
    assert [in_range("2.28.9", bug.first, bug.fixed) for bug in bugs] == [True]
    assert bugs[0].fixed == safe
    assert safe in str(CaptureSection.__annotations__["nccl_ras"])


@contextlib.contextmanager
def _listening(port: int = 0) -> Iterator[socket.socket]:
    """As NCCL's service does, which lets jobs of one user listen side by side."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind(("127.0.0.1", port))
        one.listen()
        yield one


def test_a_port_on_which_a_process_of_another_job_listens_as_well_tells_of_either() -> None:
    with _listening() as own:
        port = own.getsockname()[1]
        ends, go = os.pipe()
        ready, tells = os.pipe()
        assert not answers_for_others(port, [os.getpid()])
        child = os.fork()
        if child == 0:
            os.close(go)
            own.close()
            with _listening(port):
                os.write(tells, b"1")
                os.read(ends, 1)
            os._exit(0)
        try:
            os.read(ready, 1)
            assert answers_for_others(port, [os.getpid()])
            assert answers_for_others(port, [child])
            assert not answers_for_others(port, [os.getpid(), child])
        finally:
            os.close(go)
            os.waitpid(child, 0)
    assert not answers_for_others(port, [os.getpid()]), "nobody listens"
