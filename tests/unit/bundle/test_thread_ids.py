from stallwatch.bundle.thread_ids import as_the_node_numbers
from stallwatch.model.evidence import ChildProcess, ProcessLook, Stacks, ThreadStack, ThreadState


def stacks(*ids: int, pid: int = 900, look: int = 1) -> Stacks:
    threads = tuple(ThreadStack("", number, active=True, owns_gil=False, frames=(), pid=pid) for number in ids)
    return Stacks("stacks.json", look, pid, threads)


def process(
    *threads: ThreadState, look: int = 1, inner: int | None = None, children: tuple[ChildProcess, ...] = ()
) -> ProcessLook:
    return ProcessLook(
        source="process.json", look=look, pid=900, state="S", threads=threads, children=children, namespace_pid=inner
    )


def seen(one: Stacks) -> list[tuple[int | None, bool]]:
    return [(thread.os_thread_id, thread.active) for thread in one.threads]


MAIN, WORKER = ThreadState(900, "python", "S", namespace_tid=1), ThreadState(907, "python", "R", namespace_tid=8)


def test_threads_of_a_container_get_the_nodes_ids_and_the_kernels_word() -> None:
    (one,) = as_the_node_numbers([stacks(1, 8)], [process(MAIN, WORKER)])
    assert seen(one) == [(900, False), (907, True)]


def test_each_look_has_its_own_states() -> None:
    later = process(ThreadState(900, "python", "R", namespace_tid=1), look=2)
    first, second = as_the_node_numbers([stacks(1), stacks(1, look=2)], [later, process(MAIN)])
    assert (seen(first), seen(second)) == ([(900, False)], [(900, True)])


def test_a_thread_that_nobody_saw_run_is_not_called_busy() -> None:
    (one,) = as_the_node_numbers([stacks(1, 30)], [process(MAIN)])
    assert seen(one) == [(900, False), (30, False)]


def test_of_an_older_look_the_first_thread_is_known() -> None:
    (one,) = as_the_node_numbers([stacks(1, 8)], [process(ThreadState(900, "python", "R"), inner=1)])
    assert seen(one) == [(900, True), (8, False)]


def test_a_childs_first_thread_is_its_process() -> None:
    children = (ChildProcess(950, "S", namespace_pid=12),)
    (one,) = as_the_node_numbers([stacks(12, 13, pid=950)], [process(MAIN, children=children)])
    assert seen(one) == [(950, False), (13, False)]


def test_a_process_of_our_namespace_stays_as_py_spy_saw_it() -> None:
    for look in (process(ThreadState(900, "python", "S")), process(ThreadState(900, "python", "S"), inner=900)):
        (one,) = as_the_node_numbers([stacks(900, 901)], [look])
        assert seen(one) == [(900, True), (901, True)]


def test_ids_that_are_the_nodes_already_stay() -> None:
    (one,) = as_the_node_numbers([stacks(900, 907)], [process(MAIN, WORKER)])
    assert seen(one) == [(900, True), (907, True)]
