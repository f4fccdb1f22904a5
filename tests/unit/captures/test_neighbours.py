"""Who runs on a rank's CPUs beside it: by what each took over some seconds, and by who has started it."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from stallwatch.captures.neighbours import Ran, neighbours, processes, ran_on, threads_of
from stallwatch.model.evidence import Neighbour
from stallwatch.model.snapshot import RankSample
from stallwatch.node.procfs import TICKS_PER_SECOND, Stat, parse_stat
from tests.unit.outputs.reports import sample
from tests.unit.sensors.fake_proc import FakeProc, stat_line

OWN = 50


def stat(pid: int, command: str = "python", *, parent: int = 1, ticks: int = 10, cpu: int = 3, start: int = 5) -> Stat:
    fields = stat_line(pid, command=command, parent=parent, ticks=ticks, start=start).split()
    fields[38] = str(cpu)
    return parse_stat(" ".join(fields).encode())


def rank(number: int, pid: int, *, job: str = "") -> RankSample:
    found = msgspec.structs.replace(sample(number), pid=pid, start_ticks=5)
    return msgspec.structs.replace(found, job=msgspec.structs.replace(found.job, training_job=job)) if job else found


RANKS = {50: rank(2, 50), 60: rank(3, 60), 70: rank(0, 70, job="other")}


def beside(shares: Mapping[int, float], stats: Mapping[int, Stat], *threads: Ran) -> tuple[Neighbour, ...]:
    all_of_them = {OWN: stat(OWN)} | dict(stats)
    ran = [Ran(pid, all_of_them[pid].command, share) for pid, share in shares.items()]
    return neighbours(OWN, ran, threads, all_of_them, RANKS)


def test_what_ran_meanwhile_on_its_cpus_is_what_it_took() -> None:
    before = {pid: stat(pid) for pid in (50, 60, 61, 62, 63)}
    taken = 10 + 4 * TICKS_PER_SECOND
    after = {
        60: stat(60, ticks=taken),
        61: stat(61, ticks=taken, cpu=4),  # elsewhere
        62: stat(62, ticks=taken, start=6),  # another process by now
        63: stat(63, ticks=10),  # did nothing
        64: stat(64, ticks=taken),  # began meanwhile
    }
    assert ran_on(before, after, (3, 8), 5.0) == [Ran(60, "python", 0.8)]


def test_its_own_child_is_named_as_one_whoever_is_between() -> None:
    """A loader's workers inherit the one CPU that their rank is bound to: the commonest of all, and it was left out."""
    stats = {51: stat(51, "sh", parent=OWN), 52: stat(52, "burn", parent=51)}
    assert beside({OWN: 0.5, 52: 0.5}, stats) == (Neighbour(52, "burn", 0.5, 1, "child", 2),)


def test_many_that_take_little_each_are_named_together() -> None:
    stats = {pid: stat(pid, "pt_data_worker", parent=OWN) for pid in range(80, 91)}
    (workers,) = beside({pid: 0.001 * pid for pid in stats}, stats)
    assert (workers.pid, workers.many, workers.kin) == (90, 11, "child")
    assert abs(workers.cpu_share - sum(0.001 * pid for pid in stats)) < 1e-9
    assert beside({80: 0.09}, stats) == (), "hardly anything"


def test_what_no_rank_has_started_is_named_by_itself() -> None:
    """Five processes of our own took 12 % of a CPU at each look that is taken: together they were neighbours."""
    stats = {pid: stat(pid) for pid in range(80, 85)}
    assert beside(dict.fromkeys(stats, 0.03), stats) == ()
    assert [one.pid for one in beside({80: 0.3, 81: 0.2}, stats)] == [80, 81]


def test_another_rank_its_child_and_another_jobs_rank_are_told_apart() -> None:
    stats = {60: stat(60), 61: stat(61, parent=60), 70: stat(70), 80: stat(80)}
    found = beside({60: 0.4, 61: 0.3, 70: 0.2}, stats)
    assert [(one.pid, one.kin, one.rank, one.training_job) for one in found] == [
        (60, "rank", 3, ""),
        (61, "child", 3, ""),
        (70, "rank", 0, "other"),
    ]
    assert beside({80: 0.4}, stats) == (Neighbour(80, "python", 0.4),)


def test_a_number_that_another_process_has_by_now_is_no_rank() -> None:
    assert beside({60: 0.4}, {60: stat(60, start=9)}) == (Neighbour(60, "python", 0.4),)


def test_parents_in_a_circle_end() -> None:
    """Two looks at a node that changes may say so."""
    stats = {80: stat(80, parent=81), 81: stat(81, parent=80)}
    assert beside({80: 0.4}, stats) == (Neighbour(80, "python", 0.4),)


def test_threads_of_its_own_process_are_named_by_their_names() -> None:
    found = beside({}, {}, Ran(53, "python", 0.3), Ran(54, "python", 0.2), Ran(55, "pt_autograd_0", 0.4))
    assert found == (Neighbour(53, "python", 0.5, 2, "thread", 2), Neighbour(55, "pt_autograd_0", 0.4, 1, "thread", 2))


def test_the_busiest_three_are_named() -> None:
    stats = {pid: stat(pid, f"burn{pid}") for pid in range(80, 85)}
    assert [one.pid for one in beside({pid: pid / 100 for pid in stats}, stats)] == [84, 83, 82]


def test_its_own_leave_room_for_others_however_busy_they_are() -> None:
    stats = {pid: stat(pid, f"worker{pid}", parent=OWN) for pid in range(80, 84)} | {90: stat(90, "burn")}
    found = beside({**dict.fromkeys(range(80, 84), 0.5), 90: 0.3}, stats, Ran(53, "python", 0.9))
    assert [one.pid for one in found] == [53, 80, 81, 90]


def test_processes_and_threads_are_read_and_who_is_gone_has_none(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.add(OWN, command="train")
    (tmp_path / "50/task/53").mkdir()
    (tmp_path / "50/task/53/stat").write_text(stat_line(53, command="pool"))
    (tmp_path / "self").mkdir()
    (tmp_path / "99").mkdir()
    assert {pid: one.command for pid, one in processes(str(tmp_path)).items()} == {OWN: "train"}
    assert {tid: one.command for tid, one in threads_of(OWN, str(tmp_path)).items()} == {53: "pool"}
    assert threads_of(98, str(tmp_path)) == {}
