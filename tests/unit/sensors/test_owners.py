import threading
from pathlib import Path

from stallwatch.sensors.owners import OwnerNames, in_file


def unknown(uid: int) -> str:
    return ""


def test_a_user_goes_by_the_nodes_name_for_him_and_is_asked_for_once() -> None:
    asked: list[int] = []

    def look_up(uid: int) -> str:
        asked.append(uid)
        return f"user{uid}"

    owners = OwnerNames(look_up, local=unknown)
    assert [owners.name_of(1001), owners.name_of(1002), owners.name_of(1001)] == ["user1001", "user1002", "user1001"]
    assert asked == [1001, 1002]


def test_who_has_no_name_goes_by_his_uid() -> None:
    def nobody(uid: int) -> str:
        raise KeyError(uid)

    assert OwnerNames(nobody, local=unknown).name_of(65001) == "uid 65001"


def test_names_that_hang_with_the_network_are_waited_for_once_and_jobs_keep_what_they_were_called() -> None:
    answer = threading.Event()
    asked: list[int] = []

    def look_up(uid: int) -> str:
        asked.append(uid)
        answer.wait()
        return "late"

    owners = OwnerNames(look_up, seconds=0.01, local=unknown)
    try:
        assert owners.name_of(1001) == "uid 1001"
        assert owners.name_of(1002) == "uid 1002"
        assert asked == [1001]
    finally:
        answer.set()
    assert owners.name_of(1001) == "uid 1001"


def test_when_nobody_uses_a_uid_any_more_its_name_is_asked_for_anew() -> None:
    names = iter(["anna", "ben"])
    owners = OwnerNames(lambda uid: next(names), local=unknown)
    assert owners.name_of(1001) == "anna"
    owners.keep([1001])
    assert owners.name_of(1001) == "anna"
    owners.keep([])
    assert owners.name_of(1001) == "ben"


def test_a_user_of_the_node_itself_is_known_without_asking_anybody(tmp_path: Path) -> None:
    """By another name after a restart his job would be another's, and he told again."""
    passwd = tmp_path / "passwd"
    passwd.write_bytes(
        b"# local\nroot:x:0:0:root:/root:/bin/bash\n+::::::\n\xff:x:7:7::/:\nben:x:no\nben:x:1001:100::/:\n"
    )

    def hangs(uid: int) -> str:
        raise AssertionError(uid)

    owners = OwnerNames(hangs, local=lambda uid: in_file(uid, passwd))
    assert [owners.name_of(0), owners.name_of(1001)] == ["root", "ben"]
    assert in_file(65001, passwd) == in_file(0, tmp_path / "none") == ""
