from stallwatch.sensors.environ import RankNames, rank_names
from stallwatch.sensors.owners import Owners

ALICE, BOB = 1001, 1002


def names() -> RankNames:
    found = rank_names(
        {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
    )
    assert found is not None
    return found


def test_a_job_of_the_same_names_by_another_user_is_another_job() -> None:
    owners, named = Owners(), names()
    assert owners.names_for(named, ALICE) == named
    assert owners.names_for(named, BOB).epoch != named.epoch
    assert owners.names_for(named, ALICE) == named


def test_when_the_job_is_gone_its_names_are_free() -> None:
    owners, named = Owners(), names()
    owners.names_for(named, ALICE)
    owners.keep([named])
    assert owners.names_for(named, BOB) != named
    owners.keep([])
    assert owners.names_for(named, BOB) == named
