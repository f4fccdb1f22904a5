"""What `py-spy record --format raw --threads --idle` prints (0.4.3), chatter and all."""

import pytest

from stallwatch.formats.py_spy_profile import parse
from stallwatch.formats.unreadable import Unreadable
from stallwatch.model.evidence import CodeFrame, SampledStack

RAW = b"""py-spy> Sampling process 20 times a second for 2 seconds. Press Control-C to exit.

thread (31001): pulse;Thread._bootstrap (/usr/lib/python3.11/threading.py:1002);<lambda> (/tmp/p.py:12) 39
thread (30999): MainThread;<module> (/tmp/p.py:13);main (/tmp/p.py:10);load (/tmp/p (1).py:7) 22
thread (0x7F12): MainThread;<module> (/tmp/p.py:13) 1
<module> (/tmp/p.py:13);built (native) 2
py-spy> Wrote raw flamegraph data to '/dev/stdout'. Samples: 78 Errors: 0
"""


def test_stacks_are_innermost_first_with_their_thread_and_count() -> None:
    stacks = parse(RAW, "ranks/2/profile.txt", 3).stacks
    assert stacks[1] == SampledStack(
        "MainThread",
        30999,
        (
            CodeFrame("load", "/tmp/p (1).py", 7),
            CodeFrame("main", "/tmp/p.py", 10),
            CodeFrame("<module>", "/tmp/p.py", 13),
        ),
        22,
    )
    assert [(stack.thread, stack.os_thread_id, stack.count) for stack in stacks] == [
        ("pulse", 31001, 39),
        ("MainThread", 30999, 22),
        ("MainThread", None, 1),
        ("", None, 2),
    ]


def test_a_childs_profile_says_whose_it_is() -> None:
    assert parse(RAW, "ranks/2/profile.child-77-2.txt", 2).pid == 77
    assert parse(RAW, "ranks/2/profile-2.txt", 2).pid is None


@pytest.mark.parametrize("data", [b"", b"Error: Permission Denied\n", b"\xff\xfe;; 3\n", b"py-spy> Sampling 3\n"])
def test_what_is_no_profile_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(Unreadable):
        parse(data, "profile.txt")


def test_lines_that_are_no_stack_cost_only_themselves() -> None:
    odd = b"x\n;;; 4\nmain (a.py:99999999999999) 3\nmain (a.py:1) 99999999999999999999\n" + RAW
    assert len(parse(odd, "profile.txt").stacks) == 5
