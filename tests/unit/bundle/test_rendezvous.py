"""What a node's snapshot tells of the ranks of a job that are not in its bundle."""

from stallwatch.bundle.rendezvous import others_of_job
from stallwatch.model.rendezvous import Apart, Rendezvous
from stallwatch.model.snapshot import JobKey, ProcessEnd, RankSample
from tests.builders.node import unread_rank

HERE, THERE = "127.0.0.1:29500/4/0/", "127.0.0.1:29501/4/0/"
FAR = "10.0.0.1:29500/4/0/"


def _rank(
    rank: int, epoch: str = HERE, job: str = "llama", world: int = 4, ended: bool = False, ended_ns: int = 0
) -> RankSample:
    end = ProcessEnd(ended_ns, 0, None, "zombie") if ended or ended_ns else None
    return unread_rank(rank, 100 + rank, job=JobKey(job, epoch), world_size=world, end=end)


def _met(*samples: RankSample, epoch: str = HERE) -> Rendezvous:
    return others_of_job(samples, "llama", epoch, 4)


def test_ranks_of_the_job_with_another_port_meet_apart() -> None:
    met = _met(_rank(0), _rank(1), _rank(2, THERE), _rank(3))
    assert met == Rendezvous("127.0.0.1:29500", (Apart(2, "127.0.0.1:29501"),), ())


def test_a_job_that_meets_on_this_node_is_here_as_a_whole() -> None:
    assert _met(_rank(0), _rank(1), _rank(3)).never_seen == (2,)


def test_the_rest_of_a_job_that_meets_elsewhere_may_be_anywhere() -> None:
    assert _met(_rank(0, FAR), _rank(1, FAR), epoch=FAR).never_seen == ()


def test_a_rank_that_was_here_and_ended_is_not_one_that_never_came() -> None:
    assert _met(_rank(0), _rank(1), _rank(2, ended=True), _rank(3)).never_seen == ()


def test_of_a_job_that_is_over_those_count_that_lived_as_its_first_rank_ended() -> None:
    over = [_rank(rank, ended_ns=50 + rank) for rank in (0, 1, 2)]
    assert _met(*over, _rank(3, THERE, ended_ns=60)).apart == (Apart(3, "127.0.0.1:29501"),)
    assert _met(*over, _rank(3, THERE)).apart == (Apart(3, "127.0.0.1:29501"),)
    assert _met(*over, _rank(3, THERE, ended_ns=40)).apart == (), "of a life before"
    assert _met(*over).never_seen == (3,)
    alive = [_rank(rank) for rank in (0, 1)]
    assert _met(*alive, _rank(2, ended_ns=50), _rank(3, THERE, ended_ns=60)).apart == (), "its life goes on"


def test_other_jobs_and_worlds_of_other_sizes_are_none_of_it() -> None:
    met = _met(_rank(0), _rank(1), _rank(3), _rank(2, THERE, job="other"), _rank(2, THERE, world=8))
    assert (met.apart, met.never_seen) == ((), (2,))


def test_without_any_rank_of_its_own_nothing_is_concluded() -> None:
    assert _met(_rank(0, job="other")).never_seen == ()
