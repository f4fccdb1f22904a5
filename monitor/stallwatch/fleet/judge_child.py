"""Merges all summaries of an incident and judges: `python -m stallwatch.fleet.judge_child`, a JudgeQuestion on standard
input, a JobVerdict on standard output (a PaceVerdict to a question about the pace). What other nodes wrote is read
here and in no process that must live."""

import gc
import sys
from collections.abc import Callable

import msgspec

from stallwatch.clock import SECOND_NS, since_boot_ns
from stallwatch.encoding import json_of
from stallwatch.fleet.clocks import aligned
from stallwatch.fleet.node_word import believed
from stallwatch.fleet.pace_seat import ORDINAL, SILENT_SECONDS
from stallwatch.fleet.pace_verdict import PaceVerdict, believed_paces, judge_pace
from stallwatch.fleet.place import LIFE_SECONDS, Dated, Key, MeetingPlace, PlaceProblem
from stallwatch.fleet.place_settings import Settings, open_place, secret_of
from stallwatch.fleet.seal import key_id
from stallwatch.fleet.verdict import Home, JobVerdict, judge_job
from stallwatch.node.capabilities import drop_unless_root


class JudgeQuestion(msgspec.Struct, frozen=True):
    """What is to be judged over all nodes."""

    settings: Settings
    key: Key
    world_size: int
    signs: str = ""  # by which the key is known that this node signs with (seal.key_id); "": not known
    began_ns: int = 0  # CLOCK_BOOTTIME when the youngest of the job's processes here began; 0: not known
    minimum_share: float = 0.0  # of the pace: by how much peers must wait more than who holds them back
    before: PaceVerdict | None = None  # of the pace


def answer_to(
    question: JudgeQuestion,
    place: MeetingPlace,
    secret: bytes,
    since_boot_ns: Callable[[], int] = since_boot_ns,
) -> JobVerdict | PaceVerdict | None:
    """The verdict over what nodes gave; None where there is none."""
    if question.before is not None:
        paces = believed_paces(_paces(question, place, since_boot_ns()).summaries, secret, question.key)
        return judge_pace(paces, question.minimum_share, question.before)

    def homes() -> dict[int, Home]:
        key = Key(question.key.job, ORDINAL)
        summaries, ages = _paces(question, place, since_boot_ns())
        return {
            rank.rank: Home(node, ages.get(node, 0.0) > SILENT_SECONDS)
            for node, pace in believed_paces(summaries, secret, key).items()
            for rank in pace.ranks
        }

    summaries, ages = place.dated_summaries(question.key)
    return judge_job(aligned(believed(summaries, secret, question.key), ages), question.world_size, homes)


def _paces(question: JudgeQuestion, place: MeetingPlace, now_ns: int) -> Dated:
    """What nodes say of the job while it moves. What was put before this life of it began here is of a job before, at
    the same address: its ranks ran elsewhere."""
    summaries, ages = place.dated_summaries(Key(question.key.job, ORDINAL))
    oldest = (now_ns - question.began_ns) / SECOND_NS + LIFE_SECONDS if question.began_ns else float("inf")
    return Dated({node: pace for node, pace in summaries.items() if ages.get(node, 0.0) <= oldest}, ages)


def main() -> int:
    """Answer the question of standard input."""
    drop_unless_root()
    gc.disable()  # evidence is a tree without cycles that lives until the end
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=JudgeQuestion)
    try:
        secret = secret_of(question.settings)
        if question.signs not in ("", key_id(secret)):
            raise PlaceProblem("the key of this node has changed", "It is taken over within half a minute.")
        verdict = answer_to(question, open_place(question.settings, secret), secret)
    except PlaceProblem as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if verdict is None:
        sys.stderr.write("nothing that could be believed has been put yet\n")
        return 1
    sys.stdout.buffer.write(json_of(verdict))
    return 0


if __name__ == "__main__":
    sys.exit(main())
