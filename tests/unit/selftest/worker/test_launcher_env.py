"""Who a rank is, from the launcher's variables."""

import pytest

from stallwatch.selftest.worker.launcher_env import NotLaunched, place_of
from stallwatch.selftest.worker.transfers import distances
from stallwatch.selftest.worker.walk import sizes

ADDRESS = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.setenv(name, "")  # put back after the test, whatever it sets


def test_torchrun_and_srun() -> None:
    assert place_of({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"} | ADDRESS) == (3, 8, 1)
    srun = {"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "0"}
    assert place_of(srun | ADDRESS) == (3, 8, 1)


def test_a_batch_script_without_srun_waits_for_nobody() -> None:
    with pytest.raises(NotLaunched, match="srun"):
        place_of({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"} | ADDRESS)


def test_without_a_launcher_it_says_how_to_start() -> None:
    with pytest.raises(NotLaunched, match="torchrun"):
        place_of(dict(ADDRESS))


def test_without_an_address_it_says_what_to_export() -> None:
    with pytest.raises(NotLaunched, match="MASTER_ADDR"):
        place_of({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"})


def test_sizes_go_from_8_bytes_to_the_most() -> None:
    assert sizes(4096) == [8, 64, 512, 4096]
    assert sizes(256 << 20)[-1] == 256 << 20
    assert sizes(8) == [8]


def test_every_pair_of_a_node_is_joined_by_some_distance() -> None:
    ranks = 8
    joined = {(rank, (rank + d) % ranks) for d in distances(ranks) for rank in range(ranks)}
    assert joined == {(a, b) for a in range(ranks) for b in range(ranks) if a != b}
    assert len(distances(1024)) < 32
