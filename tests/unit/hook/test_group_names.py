"""Numbers of a recorder and the groups of a torch that is played here."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from stallwatch.hook import group_names
from stallwatch.hook.group_names import GroupNames, group_name
from stallwatch.model.verdict import GroupRef
from stallwatch.outputs import metrics


class Torch:
    """Its groups in the order of their creation, each (torch's name, description, members, backends)."""

    def __init__(self, *groups: tuple[str, str, list[int], str]) -> None:
        self.level = "OFF"
        self._world = SimpleNamespace()
        self.has(*groups)

    def has(self, *groups: tuple[str, str, list[int], str]) -> None:
        self._world.pg_names, self._world.pg_group_ranks, self._world.pg_backend_config = {}, {}, {}
        for name, description, members, backends in groups:
            group = Group(description)
            self._world.pg_names[group] = name
            self._world.pg_group_ranks[group] = dict.fromkeys(members)
            self._world.pg_backend_config[group] = backends

    def get_debug_level(self) -> Any:
        return SimpleNamespace(name=self.level)


class Group:
    def __init__(self, description: str) -> None:
        self.group_desc = description


WORLD = ("0", "default_pg", [0, 1, 2, 3], "cpu:gloo,cuda:nccl")
TP = ("2", "mesh_tp", [2, 3], "nccl")
DP = ("5", "mesh_dp", [1, 3], "cpu:gloo,cuda:nccl")


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Torch:
    played = Torch(WORLD, TP, DP)
    monkeypatch.setattr(group_names, "distributed", lambda: played)
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", played)
    return played


def counters(*numbers: tuple[str, int]) -> tuple[tuple[str, int, int, int], ...]:
    return tuple((recorder, pg_id, 5, 4) for recorder, pg_id in numbers)


def test_each_recorder_counts_the_groups_that_have_its_backend(torch: Torch) -> None:
    names = GroupNames().learn(counters(("gloo", 0), ("gloo", 1), ("nccl", 0), ("nccl", 2)))
    assert names == {
        "gloo 0": group_name("default_pg", [0, 1, 2, 3]),
        "gloo 1": group_name("mesh_dp", [1, 3]),
        "nccl 0": group_name("default_pg", [0, 1, 2, 3]),
        "nccl 2": group_name("mesh_dp", [1, 3]),
    }


def test_a_name_is_the_same_in_any_order_of_members_and_the_one_of_an_incident() -> None:
    assert group_name("mesh_tp", [3, 2]) == metrics.group_name(GroupRef("mesh_tp", (2, 3)))
    assert group_name("mesh_tp", [1, 2]) != group_name("mesh_tp", [2, 3])


def test_after_a_group_was_destroyed_new_numbers_have_no_name_and_old_ones_keep_theirs(torch: Torch) -> None:
    names = GroupNames()
    names.learn(counters(("nccl", 1)))
    torch.has(WORLD, DP, ("6", "late", [0, 3], "nccl"))
    assert names.learn(counters(("nccl", 1), ("nccl", 2))) == {"nccl 1": group_name("mesh_tp", [2, 3])}


def test_more_numbers_than_living_groups_are_not_guessed_at(torch: Torch) -> None:
    assert GroupNames().learn(counters(("nccl", 0), ("nccl", 3))) == {}


def test_a_debug_mode_with_groups_of_its_own_gives_no_names(torch: Torch) -> None:
    torch.level = "DETAIL"
    assert GroupNames().learn(counters(("gloo", 0))) == {}


def test_a_torch_with_other_private_values_costs_the_names_alone(torch: Torch) -> None:
    del torch._world.pg_backend_config
    assert GroupNames().learn(counters(("gloo", 0))) == {}


def test_without_torch_there_is_nothing_to_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_names, "distributed", lambda: None)
    assert GroupNames().learn(counters(("gloo", 0))) == {}
