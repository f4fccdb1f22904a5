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
