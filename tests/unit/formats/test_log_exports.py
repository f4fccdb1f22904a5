"""Logs as Loki, Cloud Logging, journald, CloudWatch and Elasticsearch hand them out."""

import json
from collections.abc import Callable

import pytest

from stallwatch.bundle.guessing import guess
from stallwatch.formats.entry_templates import TemplateLibrary
from stallwatch.model.log_event import LogTail

_WAITS = (
    "[rank{0}]:[E1103 04:17:22.481 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=44, OpType=ALLREDUCE, NumelIn=9, NumelOut=9, Timeout(ms)=600000) ran for 600072 milliseconds "
    "before timing out."
)
_RAISED = (
    "Traceback (most recent call last):",
    '  File "/w/train.py", line 77, in main',
    "ValueError: shard 17 is empty",
)
_LINES = [
    (pod, text)
    for number in range(3)
    for pod, text in (("train-2", _RAISED[number]), ("train-0", f"step {number}"), ("train-1", _WAITS.format(number)))
]  # of two that write at the same time


def _second(place: int) -> str:
    return f"2026-11-03T04:17:{place:02}.100Z"


def _loki_lines() -> str:
    return "\n".join(
        json.dumps({"labels": {"pod": pod}, "line": text, "timestamp": _second(place)})
        for place, (pod, text) in enumerate(_LINES)
    )


def _loki_newest_first() -> str:
    return "\n".join(_loki_lines().split("\n")[::-1])


def _loki_answer() -> str:
    streams = [
        {
            "stream": {"pod": pod},
            "values": [
                [str(1793679000000000000 + place), text] for place, (of, text) in enumerate(_LINES) if of == pod
            ][::-1],
        }
        for pod in ("train-0", "train-1", "train-2")
    ]
    return json.dumps({"status": "success", "data": {"resultType": "streams", "result": streams}})


def _cloud_logging() -> str:
    return json.dumps(
        [
            {"insertId": str(place), "textPayload": text, "labels": {"pod": pod}, "timestamp": _second(place)}
            for place, (pod, text) in enumerate(_LINES)
        ][::-1],
        indent=2,
    )


def _elastic() -> str:
    hits = [{"_id": "1", "_source": {"message": text, "kubernetes": {"pod_name": pod}}} for pod, text in _LINES]
    return json.dumps({"took": 3, "hits": {"total": len(hits), "hits": hits}})


def _downloaded_newest_first() -> str:
    return "\n".join(f"{_second(place)} [pod/{pod}/c] {text}" for place, (pod, text) in enumerate(_LINES))


@pytest.mark.parametrize(
    "form",
    [_loki_lines, _loki_newest_first, _loki_answer, _cloud_logging, _elastic, _downloaded_newest_first],
)
def test_the_lines_of_each_writer_are_read_in_the_order_of_their_times(form: Callable[[], str]) -> None:
    kind, tail = guess(form().encode(), "export", 1, TemplateLibrary())
    assert kind == "log"
    assert isinstance(tail, LogTail)
    assert [event.rank for event in tail.events if event.kind == "collective_timeout"] == [0, 1, 2]
    (raised,) = (event for event in tail.events if event.kind == "exception")
    assert (raised.exception, raised.frame and raised.frame.line) == ("ValueError", 77)


def test_a_kernels_line_in_journalds_json_is_one() -> None:
    line = {
        "_TRANSPORT": "kernel",
        "_HOSTNAME": "n1",
        "MESSAGE": "NVRM: Xid (PCI:0000:19:00): 95, pid=901, name=python",
    }
    _, tail = guess(f"{json.dumps(line)}\n{json.dumps(line)}\n".encode(), "journal.json", 1, TemplateLibrary())
    assert [event.xid for event in tail.kernel] == [95, 95]


def test_a_job_whose_logs_own_times_fall_once_is_read_as_it_stands() -> None:
    text = "\n".join(f"{_second(place)} {_WAITS.format(number)}" for number, place in enumerate((5, 3, 4)))
    _, tail = guess(text.encode(), "log", 1, TemplateLibrary())
    assert [event.rank for event in tail.events] == [0, 1, 2]
