"""Of a verdict, the file system or server that all of its culprits wait for: other jobs may stand there too."""

import pytest
from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.diagnosis.node_summary import judge_nodes, redacted, summarise_node
from stallwatch.model.evidence import CodeFrame, Evidence
from tests.builders.job import Rank, evidence, loop, world

MOUNT = "nfs4 filer:/vol/team/runs/7"
SAVES = (
    CodeFrame("save", "/usr/lib/python3/site-packages/torch/serialization.py", 900),
    CodeFrame("checkpoint", "/srv/job/train.py", 40),
    CodeFrame("<module>", "/srv/job/train.py", 90),
)


def stands(*on: str, wchan: str = "rpc_wait_bit_killable") -> Evidence:
    """Ranks 0 and 1 wait for the others, which save, each to one of these."""
    steps = loop(world(2 + len(on)), 4)
    waiting = [Rank(r, (*steps, steps[0]), len(steps)) for r in range(2)]
    savers = [Rank(2 + n, steps, frames=SAVES, state="D", wchan=wchan) for n in range(len(on))]
    whole = evidence(*waiting, *savers)

    def with_place(number: int, place: str) -> None:
        rank = whole.ranks[number]
        looks = tuple(
            replace(look, threads=tuple(replace(thread, waits_on=place) for thread in look.threads))
            for look in rank.processes
        )
        ranks[number] = replace(rank, processes=looks)

    ranks = list(whole.ranks)
    for number, place in enumerate(on, 2):
        with_place(number, place)
    return replace(whole, ranks=tuple(ranks))


@pytest.mark.parametrize(
    ("on", "said"), [((MOUNT,), MOUNT), ((MOUNT, MOUNT), MOUNT), ((MOUNT, "ext4 /dev/sda1 of n1"), ""), (("",), "")]
)
def test_what_all_culprits_wait_for_is_the_verdicts(on: tuple[str, ...], said: str) -> None:
    found = judge(stands(*on)).verdicts[0]
    assert found.culprits == tuple(range(2, 2 + len(on)))
    assert found.waits_on == said
    assert [process.waits_on for process in found.culprit_processes] == list(on)


@pytest.mark.parametrize("wchan", ["anon_pipe_read", "pipe_write", "wait_for_partner"])
def test_who_waits_at_a_named_pipe_waits_for_no_file_system(wchan: str) -> None:
    """Its name lies on one: two jobs that were fed by pipes seemed to stand at one disk."""
    found = judge(stands("ext4 /dev/sda1 of n1", wchan=wchan)).verdicts[0]
    assert (found.culprits, found.waits_on) == ((2,), "")
    assert not any("/dev/sda1" in fact.fact for fact in found.because)


def test_it_is_the_same_for_another_node() -> None:
    told = redacted(summarise_node(stands(MOUNT)), "functions")
    assert judge_nodes([told]).verdicts[0].waits_on == MOUNT
