"""In which thread ranks train whose main threads wait for its results, where no hook and no recorder tells it."""

from msgspec.structs import replace

from stallwatch.diagnosis.activity import read_activity
from stallwatch.diagnosis.activity.training_threads import training_entry
from stallwatch.diagnosis.verdicts import judge
from stallwatch.model.evidence import Evidence, RankEvidence, ThreadStack, ThreadState
from tests.builders.rank_evidence import PID, issued_by, own_record, process, rank, stack, stacks, thread

BOOTSTRAP = ("Thread.run@PY/threading.py:982", "_bootstrap_inner@PY/threading.py:1045")
POLLS = ("wait@PY/threading.py:331", "get@PY/queue.py:180", "results@JOB:9", "<module>@JOB:99")
COLLECTIVE = ("all_reduce@TORCH/distributed/distributed_c10d.py:2810", "wrapper@TORCH/distributed/c10d_logger.py:81")
LOOP = ("loop@JOB:20", *BOOTSTRAP)
WAITS = (*COLLECTIVE, "step@JOB:40", *LOOP)
STANDS = ("wait@PY/threading.py:331", "Event.wait@PY/threading.py:629", "load@JOB:50", *LOOP)
MEETS = (*COLLECTIVE, "meet@JOB:60", *BOOTSTRAP)
RECORDS = ("record@JOB:70", *BOOTSTRAP)


def seen(
    number: int,
    loop: tuple[str, ...],
    *beside: tuple[str, ...],
    main: tuple[str, ...] = POLLS,
    wakes: int = 0,
    ends: int = 40,
    wchan: str = "futex_do_wait",
) -> RankEvidence:
    """Two looks, at which a loop in a thread stands at the same place, and others do. `wakes`: of the loop's thread
    between them; `ends`: of the others'."""
    threads: list[ThreadStack] = [thread(stack(*main)), thread(stack(*loop), name="Thread-1", tid=701)]
    threads += [thread(stack(*one), name=f"Thread-{n}", tid=700 + n) for n, one in enumerate(beside, 2)]

    def state(look: int) -> tuple[ThreadState, ...]:
        woke = {PID: 10 * look, 701: wakes * look, **{700 + n: ends * look for n in range(2, 2 + len(beside))}}
        return tuple(ThreadState(tid, "python", "S", 5, wchan, wakes=count) for tid, count in woke.items())

    both = (stacks(*threads), stacks(*threads, look=2, source="stacks-2.json"))
    processes = (process(threads=state(1), at_seconds=0), process(look=2, threads=state(2), at_seconds=5))
    return replace(rank(stacks=both, processes=processes), rank=number)


def job(*beside: tuple[str, ...]) -> list[RankEvidence]:
    return [seen(number, STANDS if number == 2 else WAITS, *beside) for number in range(4)]


def entry(ranks: list[RankEvidence]) -> str | None:
    found = training_entry(ranks)
    return found and found[1]


def test_the_thread_in_which_most_ranks_stand_in_a_collective_trains() -> None:
    assert entry(job()) == "loop"
    assert entry(job(RECORDS)) == "loop"
    assert entry(job(MEETS)) == "loop", "a keep-alive comes out of its collectives"


def test_nothing_is_said_where_two_may_train_or_none_stands() -> None:
    both = [seen(number, WAITS, MEETS, ends=0) for number in range(4)]
    assert entry(both) is None
    assert entry([seen(number, STANDS) for number in range(4)]) is None
    assert entry([seen(number, WAITS if number == 0 else STANDS) for number in range(4)]) is None
    assert entry([seen(number, WAITS, wakes=20) for number in range(4)]) is None, "its collectives end"
    assert entry([seen(number, WAITS, wakes=4) for number in range(4)]) == "loop", "our pauses"
    assert entry([seen(0, WAITS)]) == "loop", "of a job on several nodes one rank may be here"
    assert entry([]) is None


def test_a_main_thread_that_communicates_is_the_one_and_so_is_who_else_is_known() -> None:
    in_main = (*COLLECTIVE, "<module>@JOB:99")
    assert entry([*job()[:3], seen(3, RECORDS, MEETS, main=in_main)]) is None
    assert entry([*job()[:3], replace(job()[3], heartbeat=(own_record(),))]) is None
    assert entry([*job()[:3], replace(job()[3], recorders=(issued_by(1, (1, "7")),))]) is None


def test_an_engine_that_waits_for_requests_is_left_alone() -> None:
    """Its loop waits for the next one, in whatever way, and the others' for its broadcast."""
    waiting = [seen(number, WAITS) for number in (0, 1, 3)]
    asks = ("get@PY/queue.py:180", "serve@JOB:50", *LOOP)
    receives = ("SocketIO.readinto@PY/socket.py:717", "serve@JOB:50", *LOOP)
    assert entry([*waiting, seen(2, asks)]) is entry([*waiting, seen(2, receives)]) is None
    assert entry([*waiting, seen(2, ("poll@JOB:50", *LOOP), wchan="hrtimer_nanosleep")]) is None
    serves = ("select@PY/selectors.py:468", "serve_forever@PY/socketserver.py:232", *BOOTSTRAP)
    assert entry(job(serves)) is None
    runs = ("select@PY/selectors.py:468", "run_forever@PY/asyncio/base_events.py:607", "<module>@JOB:99")
    assert entry([*job()[:3], seen(3, WAITS, main=runs)]) is None


def test_a_rank_is_judged_by_that_thread() -> None:
    ranks = job(MEETS)
    found = training_entry(ranks)
    waits, stands = read_activity(ranks[0], found), read_activity(ranks[2], found)
    assert (waits.call.in_collective, stands.call.in_collective) == (True, False)
    assert stands.place.frame is not None
    assert stands.place.frame.line == 50
    assert read_activity(ranks[0]).call.in_collective is not True


def test_who_stands_in_its_thread_is_named() -> None:
    verdict = judge(Evidence(4, None, tuple(job(MEETS)), (), (), looks=2)).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.where) == ("not_entered", (2,), "lock")
