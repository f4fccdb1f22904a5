"""Bytes of logs as lines: encodings, lines that a container's runtime split, progress bars."""

import json
import sys
from collections.abc import Sequence

import pytest

from stallwatch.formats.log_lines import as_utf8, encoding_of, outdented, uncut, whole_lines
from stallwatch.formats.training_log import parse
from tests.builders.texts import LAUNCHERS, RAISED, marked, timed_out

_BAR = "Epoch 2:  {0}%|###   | {0}/100 [00:{0:02d}<01:00,  1.37it/s, loss=2.6, v_num=0]"
_COUNTED = "{0}it [00:{0:02d}, 3.91it/s]"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_text_of_two_bytes_a_character_is_read_as_the_same_text(encoding: str) -> None:
    text = "Traceback (most recent call last):\r\nValueError: größe 7\r\n"
    assert as_utf8(text.encode(encoding)).decode().lstrip("\ufeff") == text


@pytest.mark.parametrize("data", [b"", b"a", b"\0" * 64, b"step 1\nstep 2\n", "größe\n".encode(), bytes(range(256))])
def test_other_bytes_have_no_such_encoding(data: bytes) -> None:
    assert encoding_of(data) is None
    assert as_utf8(data) is data


def test_parts_of_a_split_line_are_one_line_by_stream() -> None:
    head = "2026-11-28T10:00:00.1Z"
    lines = [
        f"{head} stderr P [rank1]: Run",
        f"{head} stdout F step 7",
        f"{head} stderr P timeErr",
        f"{head} stderr F or: bad",
        f"{head} stderr F next",
    ]
    assert list(whole_lines(lines)) == [
        (2, f"{head} stdout F step 7"),
        (1, f"{head} stderr F [rank1]: RuntimeError: bad"),
        (5, f"{head} stderr F next"),
    ]


def test_a_part_whose_end_is_lost_is_told_and_words_with_a_p_are_no_parts() -> None:
    assert list(whole_lines(["2026-11-28T10:00:00.1Z stderr P half"])) == [(1, "2026-11-28T10:00:00.1Z stderr F half")]
    assert list(whole_lines(["the P in it", "a stdout P"])) == [(1, "the P in it"), (2, "a stdout P")]


@pytest.mark.parametrize("bar", [_BAR, _COUNTED])
@pytest.mark.parametrize("launcher", [None, *LAUNCHERS])
@pytest.mark.parametrize("bars", [1, 99])
def test_what_stands_behind_progress_bars_is_a_line_of_its_own(bar: str, launcher: str | None, bars: int) -> None:
    before = "".join("\r" + bar.format(step) for step in range(1, bars + 1))
    mark = LAUNCHERS[launcher](2) if launcher else "[rank2]: "
    first, *more = RAISED.splitlines()
    glued = first if launcher else f"[rank2]: {first}"
    text = f"{mark if launcher else ''}{before}{glued}\n" + marked("\n".join(more), mark)
    (raised,) = [event for event in parse(text.encode()).events if event.exception]
    assert (raised.exception, raised.message) == ("ValueError", "shard 17 is empty")
    assert raised.frame is not None
    assert raised.frame.filename == "/job/train.py"


@pytest.mark.parametrize("version", ["1.13", "2.1", "2.6"])
def test_a_watchdogs_line_behind_a_progress_bar_is_read(version: str) -> None:
    text = "".join("\r" + _BAR.format(step) for step in range(100)) + timed_out(version, 3, 9)
    assert [event.seq for event in parse(text.encode()).events if event.kind == "collective_timeout"] == [9]


def test_times_in_brackets_are_no_progress_bars() -> None:
    (event,) = parse(b"[10:00:00] <main> ValueError: 12:00 [10:00, x] a\n").events
    assert "[10:00:00] <main>" in event.text


def _cut(text: str, width: int, *, pad: bool = False) -> str:
    parts = [line[at : at + width] for line in text.splitlines() for at in range(0, len(line), width)]
    return "".join(f"{part.ljust(width) if pad else part}\n" for part in parts)


@pytest.mark.parametrize("version", ["1.13", "2.1", "2.3", "2.6"])
@pytest.mark.parametrize("width", [80, 116, 137])
@pytest.mark.parametrize("pad", [False, True])
def test_lines_of_torch_that_a_terminal_cut_are_whole_again(version: str, width: int, pad: bool) -> None:
    text = "".join(timed_out(version, rank, 9) for rank in range(4))
    whole, cut = parse(text.encode()).events, parse(_cut(text, width, pad=pad).encode()).events
    told = [(event.kind, event.group_rank, event.seq, event.enqueued) for event in whole]
    assert [(event.kind, event.group_rank, event.seq, event.enqueued) for event in cut] == told
    assert len(told) >= 4


def test_lines_that_are_not_torch_s_or_not_cut_are_left_as_they_are() -> None:
    rule = ["=" * 80] * 9 + ["step 1"] * 3
    assert uncut(rule) == rule
    whole = timed_out("2.6", 1, 9).splitlines() * 3 + ["x" * 50]
    assert uncut(whole) == whole
    parts = _cut(timed_out("2.6", 1, 9) * 3, 100).splitlines()
    assert len(uncut(parts)) == len(parts), "numbers of lines stay"


def test_lines_of_one_length_before_another_header_are_whole() -> None:
    """All ranks' abort lines of torch 2.15 are as long as each other; the next line is of another file of torch's."""
    abort = "[rank{0}]:[E1129 20:10:02.223456789 ProcessGroupNCCL.cpp:702] [TC][rank={0}][name=0] Aborting process"
    other = "[rank{0}]:[E1129 20:10:02.123456789 WorkNCCL.cpp:214] [TC][rank={0}][name=0] Operation timed out"
    agent = "W1129 20:10:30.000000 3900 torch/distributed/elastic/multiprocessing/api.py:1010] Sending process 4000"
    lines = [text.format(rank) for rank in range(4) for text in (other, abort)] + [agent]
    assert list(uncut(lines)) == lines


def test_lines_of_a_logger_that_writes_json_are_read_with_their_rank() -> None:
    lines = [
        {"timestamp": "2026-11-28T10:00:00Z", "level": "error", "rank": 3, "message": line}
        for line in RAISED.splitlines()
    ]
    (event,) = parse("".join(json.dumps(line) + "\n" for line in lines).encode()).events
    assert (event.exception, event.rank) == ("ValueError", 3)
    for other in ('{"a": {"b": 1}}', '{"loss": 0.1, "rank": 2}', '{"message": 7}', '{"rank": 1', '{"log": ['):
        assert parse(other.encode()).events[-1].text == other


@pytest.mark.parametrize("width", range(100, 200, 9))
def test_a_window_of_a_few_lines_that_was_copied_with_its_spaces_is_whole_again(width: int) -> None:
    text = f"loading\n{timed_out('2.8', 4, 9387)}done\n"
    window = [line[at : at + width].ljust(width) for line in text.splitlines() for at in range(0, len(line), width)]
    timeout, status, *_ = parse("\n".join(window).encode()).events
    assert (timeout.kind, timeout.seq, timeout.numel_out) == ("collective_timeout", 9387, 1)
    assert (status.kind, status.enqueued, status.completed) == ("group_status", 9387, 9386)


@pytest.mark.parametrize("indent", ["    ", "\t", " \t  ", " " * 64])
def test_the_indentation_of_a_page_is_taken_from_all_lines(indent: str) -> None:
    lines = [f"{indent}step 1", "", " ", f"{indent}  step 2", f"{indent}\tstep 3"]
    assert outdented(lines) == ["step 1", "", " ", "  step 2", "\tstep 3"]
    assert outdented([*lines, "step 4"]) == [*lines, "step 4"]
    assert outdented([*lines, "  step 4"]) == [*lines, "  step 4"]


def test_no_page_indents_by_more_than_a_line_of_it_is_wide() -> None:
    """As many spaces as a line can have are no page's, and were compared once for each of them."""
    assert outdented([" " * 100 + "x", " " * 100_000 + "y"]) == [" " * 36 + "x", " " * 99_936 + "y"]


def _calls(lines: Sequence[str]) -> int:
    """How many calls it takes to outdent them: a figure of the work that no busy machine changes."""
    calls = 0

    def count(_frame: object, event: str, _what: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    outdented(list(lines))  # what is compiled once is no work of these lines
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        outdented(list(lines))
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("mark", [">", "> ", ">> "])
def test_a_line_of_marks_of_a_quotation_is_gone_through_once_however_long(mark: str) -> None:
    """All lines were once copied for each mark of the shortest: a line of 64 kB took 1.2 s, one of 1 MB minutes."""
    assert _calls([mark * 4_000] * 8) == _calls([mark * 500] * 8)
    assert _calls([mark * 500] * 64) <= 8 * _calls([mark * 500] * 8)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_the_marks_that_all_lines_have_before_them_are_taken_and_no_more(depth: int) -> None:
    said = ["[rank0]: step 1", "", "> what somebody quoted", ">>> print(1)", "  step 2"]
    for mark in ("> ", ">"):
        quoted = [mark * (depth - 1) + "> " + line for line in said]
        assert outdented(quoted) == said
        assert outdented([*quoted, "", ">" * (depth - 1)]) == [*said, "", ""]
        assert outdented([*quoted, "mail"]) == [*quoted, "mail"]


def test_no_mail_quotes_deeper_than_mails_do() -> None:
    assert outdented([">" * 100 + "x", ">" * 100_000 + "y"]) == [">" * 68 + "x", ">" * 99_968 + "y"]
