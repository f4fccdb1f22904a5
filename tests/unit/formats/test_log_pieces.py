"""Long logs: what is picked out of them says what the whole does."""

import io
import random

import pytest

from stallwatch.formats import log_pieces
from stallwatch.formats.log_pieces import parse_pieces
from stallwatch.formats.training_log import parse
from tests.builders.texts import AGENT, KILL, RAISED, ranked, timed_out

_KERNEL = "[ 9000.1] NVRM: Xid (PCI:0000:61:00): 79, pid=42, name=python, GPU has fallen off the bus.\n"


def _filler(chance: random.Random, alphabet: str, lines: int) -> str:
    return "".join("".join(chance.choices(alphabet, k=60)) + "\n" for _ in range(lines))


@pytest.mark.parametrize("alphabet", ["ab c", "abcdefghijklmnopqrstuvwxyz 0123456789", "aA_:[]() eErRoO"])
@pytest.mark.parametrize(
    "told",
    [
        timed_out("2.6", 3, 9),
        timed_out("1.13", 3, 9),
        ranked(RAISED, 2),
        AGENT["2.4"].format(code=-9, rank=1, pid=7),
        KILL,
        _KERNEL,
    ],
)
def test_what_is_picked_out_of_a_long_log_is_what_the_whole_says(told: str, alphabet: str) -> None:
    chance = random.Random(7)
    data = (_filler(chance, alphabet, 3_000) + told + _filler(chance, alphabet, 3_000)).encode()
    picked, whole = parse_pieces(io.BytesIO(data).read), parse(data)
    assert (picked.events, picked.kernel) == (whole.events, whole.kernel)
    assert whole.events or whole.kernel


def test_every_needle_is_found_whatever_stands_beside_it_and_whenever_its_words_came_before() -> None:
    chance = random.Random(3)
    filler = [_filler(chance, "abcdefghijklmnopqrstuvwxyz ", 60).encode() for _ in range(3)]
    for needle in log_pieces.NEEDLES:
        line = b"7x" + needle + b"y9 and so on\n"
        words = b"\n".join(b"1 " + word + b" 2" for word in needle.split()) + b"\n"
        for blocks in ((filler[0] + line,), (filler[0], filler[1] + line), (filler[0] + words, filler[1] + line)):
            shapes = log_pieces.Shapes()
            found = [shapes.needles_in(block)[0] for block in (*blocks, filler[2] + line)]
            assert needle in found[-2], needle
            assert needle in found[-1], "and again in the next block"


@pytest.mark.parametrize(
    "before", ["", "frame #3: run() + 0x14d (0x7f1c2b in /env/libtorch_cuda.so)\n", "step 40 loss 2.1\n"]
)
def test_a_long_log_begins_with_what_the_whole_begins_with(before: str) -> None:
    data = (before + timed_out("2.6", 3, 9) + _filler(random.Random(7), "ab c", 60_000)).encode()
    picked, whole = parse_pieces(io.BytesIO(data).read), parse(data)
    assert picked.events == whole.events
    assert {event.before for event in whole.events} == {
        "other" if "step" in before else "rest" if before else "nothing"
    }
