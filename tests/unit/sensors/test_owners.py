import threading

from stallwatch.sensors.owners import OwnerNames


def test_a_user_goes_by_the_nodes_name_for_him_and_is_asked_for_once() -> None:
    asked: list[int] = []

    def look_up(uid: int) -> str:
        asked.append(uid)
        return f"user{uid}"

    owners = OwnerNames(look_up)
    assert [owners.name_of(1001), owners.name_of(1002), owners.name_of(1001)] == ["user1001", "user1002", "user1001"]
    assert asked == [1001, 1002]


def test_who_has_no_name_goes_by_his_uid() -> None:
    def nobody(uid: int) -> str:
        raise KeyError(uid)

    assert OwnerNames(nobody).name_of(65001) == "uid 65001"


def test_names_that_hang_with_the_network_are_waited_for_once_and_jobs_keep_what_they_were_called() -> None:
    answer = threading.Event()
    asked: list[int] = []

    def look_up(uid: int) -> str:
        asked.append(uid)
        answer.wait()
        return "late"

    owners = OwnerNames(look_up, seconds=0.01)
    try:
        assert owners.name_of(1001) == "uid 1001"
        assert owners.name_of(1002) == "uid 1002"
        assert asked == [1001]
    finally:
        answer.set()
    assert owners.name_of(1001) == "uid 1001"


def test_when_nobody_uses_a_uid_any_more_its_name_is_asked_for_anew() -> None:
    names = iter(["anna", "ben"])
    owners = OwnerNames(lambda uid: next(names))
    assert owners.name_of(1001) == "anna"
    owners.keep([1001])
    assert owners.name_of(1001) == "anna"
    owners.keep([])
    assert owners.name_of(1001) == "ben"
