"""Forms of public reports, rebuilt with other numbers: what stands around torch's lines, and what they allow to say."""

import pytest

from tests.builders.texts import RAISED, dump_signal, marked, ranked, timed_out, verdict

UNDECIDED: tuple[str, tuple[int, ...]] = ("undecided", ())
STUCK: tuple[str, tuple[int, ...]] = ("comm_stuck", ())
BAR = "\r 6%|##   | 3204/50015 [6:28:43<94:39:17,  1.37it/s, loss=2.6, v_num=95nc]"


def _waits(version: str, *ranks: int, seq: int = 395, **said: object) -> str:
    return "".join(timed_out(version, rank, seq, **said) for rank in ranks)  # type: ignore[arg-type]


def _numbered(text: str) -> str:
    return "".join(f"[{80746 + place}] {line}\n" for place, line in enumerate(text.splitlines()))


def _padded(text: str, width: int = 200) -> str:
    """As a terminal's window is copied: cut at its width, and filled up to it."""
    out = []
    for line in text.splitlines():
        while len(line) > width:
            out.append(line[:width])
            line = line[width:]
        out.append(line.ljust(width))
    return "\n".join(out) + "\n"


# verl 1158: a group without a description, all members alike.
_UNNAMED = (
    _waits("2.5", *range(8), seq=486, operation="ALLTOALL").replace("(default_pg)", "").replace("PG ID 0", "PG ID 2")
)
# pytorch 118369: several numbers of one rank, groups that torch 2.0 does not tell.
_MANY = "".join(timed_out("2.0", rank, seq) for rank, seq in ((0, 96120), (0, 96117), (0, 96125), (7, 64088)))
# Lightning 20832: rank 0 is two calls further than a broadcast in which the others wait: its root may be, in health.
_AHEAD = _waits("2.5", 1, 2, 3, seq=532, operation="BROADCAST") + timed_out("2.5", 0, 534, "_ALLGATHER_BASE", 5, out=20)
# Lightning 5646: torch 1.7 prints no number.
_OLDEST = "".join(
    f"[E ProcessGroupNCCL.cpp:485] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(OpType=BROADCAST, Timeout(ms)=1800000) ran for 1809029 milliseconds before timing out.\n"
    for rank in (2, 3, 17)
)
# PyDIff 31: a clock and two blanks; sglang 3424: a terminal's window; litData 340: a table; party 7: a mail; milabench
# 269: names of a launcher of its own; LlamaFactory 7396: numbers of lines; DeepSpeed 6705: pdsh with addresses.
_ONE_BEHIND = _waits("2.6", 0, 1, 3) + dump_signal("2.6", 2, 394, 0)
_FORMS = {
    "clock": marked(_ONE_BEHIND, "2025-06-24 17:29:06  "),
    "table": marked(_ONE_BEHIND, "  | 2024-08-23T22:22:51.871Z | "),
    "mail": marked(_ONE_BEHIND, "> "),
    "launcher": marked(_ONE_BEHIND, "dinov2-nodes.cn-d003.nolog [stderr] "),
    "numbers": _numbered(_ONE_BEHIND),
    "pdsh": marked(_ONE_BEHIND, "202.197.0.170: "),
    "bar": BAR + _ONE_BEHIND,
    "window": _padded(_ONE_BEHIND),
}


@pytest.mark.parametrize("form", _FORMS)
def test_whatever_stands_around_it_the_one_that_enqueued_less_is_named(form: str) -> None:
    found = verdict(_FORMS[form])
    assert (found.cause, found.culprits) == ("not_entered", (2,))


@pytest.mark.parametrize(
    ("log", "accept"),
    [
        (_UNNAMED, (STUCK, UNDECIDED)),
        (BAR + _MANY, (STUCK, UNDECIDED)),
        (_AHEAD, (UNDECIDED, ("collective_mismatch", ()))),
        (_padded(_AHEAD), (UNDECIDED, ("collective_mismatch", ()))),
        (_OLDEST, (STUCK, UNDECIDED)),
        # DeepSpeed 7533: while a model is saved all wait in one number, and one tells it by its dump signal alone.
        (_waits("2.8", 0, 1, 3, 4) + dump_signal("2.8", 2, 395, 0), (STUCK, UNDECIDED)),
        # diffusers 12422: blocking wait; what a rank raised before is why it did not come.
        (ranked(RAISED, 2) + _waits("2.8", 0, 1, 3), (("rank_raised", (2,)),)),
        # accelerate 3510: the first collective of all.
        (_waits("2.6", 0, 1, 2, 3, seq=1, operation="ALLGATHER", out=4), (STUCK, UNDECIDED)),
    ],
    ids=["unnamed", "many", "ahead", "ahead in a window", "oldest", "saving", "raised", "first"],
)  # fmt: skip
def test_what_a_report_allows_to_say_and_no_more(log: str, accept: tuple[tuple[str, tuple[int, ...]], ...]) -> None:
    found = verdict(log)
    assert (found.cause, found.culprits) in accept
