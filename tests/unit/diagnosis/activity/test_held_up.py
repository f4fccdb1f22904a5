"""What keeps a rank from going on, or from its end, in words that send nobody astray."""

import msgspec

from stallwatch.diagnosis import judge
from stallwatch.diagnosis.activity import read_activity
from stallwatch.model.evidence import SourceLine
from tests.builders.job import Rank, evidence
from tests.builders.rank_evidence import JOB, STEP, process, rank, stack, stacks, thread

POOL = (
    "_WorkItem.run@PY/concurrent/futures/thread.py:58", "_worker@PY/concurrent/futures/thread.py:83",
    "Thread.run@PY/threading.py:982", "Thread._bootstrap@PY/threading.py:1002",
)  # fmt: skip


def test_a_limit_of_memory_is_no_file_system() -> None:
    """Seen live with memory.oom_control: whoever read it looked for a mount that does not answer."""
    found = read_activity(
        rank(stack(*STEP), "D", "mem_cgroup_oom_synchronize", sources=(SourceLine(JOB, 20, "a = load(b)"),))
    )
    assert (found.place.where, found.progress.ends_by_itself) == ("user_code", None)
    assert found.place.detail.startswith("waits for memory")


def test_the_thread_that_keeps_a_rank_from_its_end_is_named() -> None:
    """An upload in an executor that Python joins at exit: the sentence asked who is to take it, and named no line."""
    joins = stack("Thread.join@PY/threading.py:1119", "_python_exit@PY/concurrent/futures/thread.py:31",
                  "_shutdown@PY/threading.py:1560")  # fmt: skip
    main, upload = thread(joins, ident=11), thread(stack("upload@JOB:77", *POOL), name="save_0", tid=702)
    ended = (Rank(number, exit_code=0, dumped=False) for number in (0, 2, 3))
    looks = (stacks(main, upload), stacks(main, upload, look=2, source="stacks-2.json"))
    states = (process("S", "futex_do_wait"), process("S", "futex_do_wait", look=2, at_seconds=5))
    one = msgspec.structs.replace(rank(stacks=looks, processes=states), rank=1)
    job = evidence(*ended)
    verdict = judge(msgspec.structs.replace(job, ranks=(*job.ranks, one), world_size=4)).verdicts[0]
    assert verdict.culprits == ()
    assert "rank 1 is ending and waits for its threads: the one that keeps it is at" in verdict.summary
    assert ":77 in upload" in verdict.summary
    assert not any("take it" in text for text in (*verdict.missing, *verdict.next_steps))
