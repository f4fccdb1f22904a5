"""Work that is at the same lines at two looks, for long or for ever: what other looks, counters, libraries tell."""

import msgspec
import pytest

from stallwatch.diagnosis.activity import RankActivity, read_activity
from stallwatch.model.evidence import ChildProcess
from tests.builders.rank_evidence import STEP, own_record, process, rank, stack, stacks, thread

# datasets.Dataset.map(num_proc=2), as datasets 5.2 has it, and a pool of another library.
HF = "/venv/lib/python3.11/site-packages"
POOL_OF_DATASETS = (
    f"Connection._recv@{HF}/multiprocess/connection.py:398",
    f"BaseProxy._callmethod@{HF}/multiprocess/managers.py:822",
    f"iflatmap_unordered@{HF}/datasets/utils/py_utils.py:610",
    f"Dataset.map@{HF}/datasets/arrow_dataset.py:3627",
    *STEP,
)
POOL_OF_A_LIBRARY = (
    "Condition.wait@PY/threading.py:327",
    "IMapIterator.next@PY/multiprocessing/pool.py:861",
    f"tokenize@{HF}/webdataset/writer.py:7",
    *STEP,
)


@pytest.mark.parametrize("waits", [POOL_OF_DATASETS, POOL_OF_A_LIBRARY])
def test_a_library_of_data_that_maps_by_a_pool_of_processes_waits_for_no_batch(waits: tuple[str, ...]) -> None:
    """Each process calls the job's own function for sample after sample, and is at its lines at every look."""
    maps = ("tokenise@JOB:14", f"worker@{HF}/multiprocess/pool.py:125")
    worker = msgspec.structs.replace(thread(stack(*maps), tid=801, active=True), pid=801)

    def seen(ticks: int) -> RankActivity:
        looks = [
            part
            for look in (1, 2)
            for part in (
                stacks(thread(stack(*waits)), look=look),
                stacks(worker, source=f"stacks.child-801-{look}.json", pid=801, look=look),
            )
        ]
        processes = [
            process("S", "do_poll", look=look, at_seconds=5 * look,
                    children=(ChildProcess(801, "R", "python", ticks * look),))
            for look in (1, 2)
        ]  # fmt: skip
        return read_activity(rank(stacks=tuple(looks), processes=tuple(processes)))

    assert seen(ticks=400).progress.moving is True
    assert "pool of worker processes" in seen(ticks=400).place.detail
    assert seen(ticks=0).progress.moving is False


BATCH_BY_THREADS = (
    "Condition.wait@PY/threading.py:327",
    "ApplyResult.get@PY/multiprocessing/pool.py:768",
    f"StreamingDataset.__getitem__@{HF}/streaming/base/dataset.py:1",
    f"_BaseDataLoaderIter.__next__@{HF}/torch/utils/data/dataloader.py:630",
    *STEP,
)
A_CHILD = (ChildProcess(801, "S", "python", 64),)


@pytest.mark.parametrize(
    ("waits", "children"),
    [
        (BATCH_BY_THREADS, ()),
        (BATCH_BY_THREADS, A_CHILD),  # a tracker's service
        (POOL_OF_A_LIBRARY, ()),  # a pool of threads, or one of processes that were not seen
        (POOL_OF_DATASETS, ()),
    ],
)
def test_a_library_that_makes_a_batch_by_a_pool_of_threads_loads_data(
    waits: tuple[str, ...], children: tuple[ChildProcess, ...]
) -> None:
    """ThreadPool is of multiprocessing.pool as well: told at once, and as certain."""
    activity = read_activity(rank(stack(*waits), processes=(process("S", "futex_do_wait", children=children),)))
    assert (activity.place.where, activity.progress.ends_by_itself) == ("dataloader", "data")


VALIDATES = ("validate@JOB:30", *STEP)
IN_ITS_MODEL = ("forward@JOB:14", *VALIDATES)


def computed(
    *looks: tuple[tuple[str, ...], int], steps: tuple[int, ...] = (), apart: int = 60, stepped: bool = True
) -> RankActivity:
    """A rank that computes on the CPU: its stack at each look, and how often its frames had changed by then. The looks
    are so many seconds apart, the first as long after its last step."""
    numbers = range(1, len(looks) + 1)
    return read_activity(
        rank(
            stacks=tuple(
                stacks(thread(stack(*frames), active=True), look=number, source=f"stacks-{number}.json")
                for number, (frames, _) in zip(numbers, looks, strict=True)
            ),
            processes=tuple(
                process("R", None, look=number, ticks=98 * apart * number, at_seconds=apart * number)
                for number in numbers
            ),
            heartbeat=tuple(
                own_record(step=step, last_step_ns=1 if stepped else None, frame_changes=changes)
                for step, (_, changes) in zip(steps or [7] * len(looks), looks, strict=True)
            ),
        )
    )


def test_a_loop_that_was_elsewhere_in_its_step_goes_round_while_its_frames_change() -> None:
    """A validation of 150 s in a model's few lines: two of five pairs of looks were at the same ones."""
    elsewhere = computed((VALIDATES, 10), (IN_ITS_MODEL, 90), (IN_ITS_MODEL, 170))
    assert elsewhere.place.where == "busy_loop"
    assert elsewhere.progress.moving is True


def test_a_loop_that_was_elsewhere_is_not_believed_to_end_for_ever() -> None:
    """`while not ready(): pass`: at every later look it was said to move, and told after 24 minutes."""
    looks = ((VALIDATES, 10), *((IN_ITS_MODEL, 10 + 80 * number) for number in range(1, 12)))
    said = [computed(*looks[:number]).progress.moving for number in range(3, len(looks) + 1)]
    assert said == [True] * 3 + [None] * 7, "five minutes after its last step"
    assert computed(*looks[:3], apart=200).progress.moving is None
    assert computed(*looks[:3], stepped=False).progress.moving is None, "nothing tells since when"


@pytest.mark.parametrize(
    ("looks", "steps"),
    [
        (((IN_ITS_MODEL, 10), (IN_ITS_MODEL, 90), (IN_ITS_MODEL, 170)), (7, 7, 7)),  # nowhere else
        (((VALIDATES, 10), (IN_ITS_MODEL, 90), (IN_ITS_MODEL, 90)), (7, 7, 7)),  # in one call that does not end
        (((VALIDATES, 10), (IN_ITS_MODEL, 90), (IN_ITS_MODEL, 170)), (6, 7, 7)),  # in the step before
    ],
)
def test_a_loop_that_may_spin_is_not_judged(
    looks: tuple[tuple[tuple[str, ...], int], ...], steps: tuple[int, ...]
) -> None:
    assert computed(*looks, steps=steps).progress.moving is None
