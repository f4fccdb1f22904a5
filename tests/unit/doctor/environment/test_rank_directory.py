import os

import pytest

from stallwatch.doctor.check import Inapplicable
from stallwatch.doctor.environment.rank_directory import RankDirectory
from stallwatch.node.heartbeat_file import prepare
from tests.unit.doctor.fakes import DAEMON, SHELL, Node, one, rank


def test_a_job_whose_record_lies_where_no_daemon_reads_is_told(node: Node) -> None:
    theirs = rank(0, environment={"STALLWATCH_DIR": "/elsewhere"})
    found = one(RankDirectory().look(node.around(ranks=(theirs,), daemon=DAEMON)))
    assert found.subject == "rank 0 (pid 100)"
    assert found.seen == "STALLWATCH_DIR=/elsewhere, and no daemon reads there."
    assert one(RankDirectory().look(node.around({"STALLWATCH_DIR": "/x"}, daemon=DAEMON))).subject == SHELL


def test_where_a_daemon_reads_nothing_is_told(node: Node) -> None:
    directory = node.root / "ranks"
    prepare(directory)
    assert RankDirectory().look(node.around({"STALLWATCH_DIR": "/ranks"}, daemon=DAEMON)) == ()
    assert RankDirectory().look(node.around(daemon=DAEMON)) == ()


def test_without_a_daemon_there_is_nothing_to_compare(node: Node) -> None:
    with pytest.raises(Inapplicable):
        RankDirectory().look(node.around({"STALLWATCH_DIR": "/x"}))


@pytest.mark.skipif(os.geteuid() != 0, reason="plays several users")
def test_a_directory_of_records_that_another_user_holds_is_told_where_there_is_no_service_s(node: Node) -> None:
    shared = node.root / "dev/shm"
    theirs = shared / "stallwatch"
    theirs.mkdir(parents=True)
    shared.chmod(0o1777)
    with pytest.raises(Inapplicable):
        RankDirectory().look(node.around())
    os.chown(theirs, 64212, 64212)
    found = one(RankDirectory().look(node.around()))
    assert found.subject == "/dev/shm/stallwatch"
    assert found.seen == "/dev/shm/stallwatch belongs to uid 64212, whom no other user's rank obeys."
    assert "`chown root /dev/shm/stallwatch && chmod 1777 /dev/shm/stallwatch`" in found.remedy
    (node.root / "run/stallwatch/ranks").mkdir(parents=True)
    with pytest.raises(Inapplicable):
        RankDirectory().look(node.around())
