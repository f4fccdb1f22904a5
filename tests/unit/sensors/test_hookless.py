from pathlib import Path
from typing import Any

import pytest

from stallwatch.sensors import hookless
from stallwatch.sensors.environ import RankNames, parse_environment, rank_names
from stallwatch.sensors.hookless import HooklessSearch, KnownRank
from tests.unit.sensors.fake_proc import FakeProc, stat_line

RANK_0 = "RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1"
RANK_1 = "RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1"
SLURM = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=0"
TORCH = "7f00-7f01 r-xp 00000000 08:01 5 /site-packages/torch/lib/libtorch_cpu.so\n"


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def found(search: HooklessSearch, searches: int = 6, known: tuple[int, ...] = ()) -> list[tuple[int, int]]:
    """By pid and rank; `known` are processes of rank 0 of two."""
    followed = dict.fromkeys(known, KnownRank(names(RANK_0)))
    for _ in range(searches - 1):
        search.search(followed)
    return [(rank.pid, rank.names.rank) for rank in search.search(followed)]


def names(environment: str) -> RankNames:
    said = rank_names(parse_environment(environment.replace(" ", "\0").encode()))
    assert said is not None
    return said


def test_a_search_sees_whose_children_there_are(proc: FakeProc) -> None:
    proc.add(101, environment=RANK_0, maps=TORCH)
    proc.add(102, parent=101)
    proc.add(103, parent=102)
    proc.add(104, parent=101)
    search = HooklessSearch(str(proc))
    found(search)
    proc.add(105, parent=101)
    proc.remove(104)
    found(search, searches=1)
    children = search.children((101, 104))
    assert {pid: sorted(of) for pid, of in children.items()} == {101: [102, 105], 104: []}


def test_processes_with_rank_variables_and_torch_are_ranks(proc: FakeProc) -> None:
    proc.add(100)
    proc.add(101, parent=100, environment=RANK_0, maps=TORCH)
    proc.add(102, parent=100, environment=RANK_1, maps=TORCH)
    assert sorted(found(HooklessSearch(str(proc)))) == [(101, 0), (102, 1)]


def test_worker_that_inherited_the_variables_is_no_rank(proc: FakeProc) -> None:
    proc.add(101, environment=RANK_0, maps=TORCH)
    proc.add(150, parent=101, environment=RANK_0, maps=TORCH)
    proc.add(151, parent=150, environment=RANK_0, maps=TORCH)
    assert found(HooklessSearch(str(proc))) == [(101, 0)]


@pytest.mark.parametrize("environment", [RANK_0, SLURM])
def test_rank_below_a_wrapper_that_has_its_variables_is_found(proc: FakeProc, environment: str) -> None:
    """srun with a shell script, numactl, nsys, unshare: what they start has the variables from them."""
    proc.add(101, environment=environment, argv=("bash", "run.sh"))
    proc.add(102, parent=101, environment=environment, argv=("nsys", "profile", "python", "train.py"))
    proc.add(103, parent=102, environment=environment, maps=TORCH)
    proc.add(104, parent=103, environment=environment, maps=TORCH)
    assert [pid for pid, _ in found(HooklessSearch(str(proc)))] == [103]


def test_worker_below_a_rank_with_a_hook_is_no_rank_even_before_that_imports_torch(proc: FakeProc) -> None:
    proc.add(101, environment=RANK_0)
    proc.add(150, parent=101, environment=RANK_0, maps=TORCH)
    assert found(HooklessSearch(str(proc)), known=(101,)) == []


@pytest.mark.parametrize("between", ["HOME=/root", RANK_0])
def test_worker_below_a_rank_that_gave_itself_its_variables_is_no_rank(proc: FakeProc, between: str) -> None:
    """mp.spawn and Ray: the rank sets its variables when it runs, and only what it starts then shows them. A process of
    torch's checkpoints was a rank of a job of its own."""
    proc.add(101, environment="HOME=/root", maps=TORCH)
    proc.add(140, parent=101, environment=between)
    proc.add(150, parent=140, environment=RANK_0, maps=TORCH)
    proc.add(160, parent=101, environment=RANK_1, maps=TORCH)  # of a job that it has started
    assert found(HooklessSearch(str(proc)), known=(101,)) == [(160, 1)]


def test_who_has_many_processes_waits_himself_and_delays_nobodys_rank(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment is a megabyte if its user likes, and maps are eight."""
    monkeypatch.setattr(hookless, "_MOST_READS", 8)
    for number in range(100):
        proc.add(200 + number, uid=2000, environment=f"RANK={number} LOCAL_RANK=0 WORLD_SIZE=900", maps="large")
    proc.add(901, uid=1000, environment=RANK_0, maps=TORCH)
    read: list[str] = []
    search = HooklessSearch(str(proc))
    really = search._read

    def noted(seen: hookless._Seen, name: str, limit_bytes: int) -> bytes:
        read.append(str(seen.uid))
        return really(seen, name, limit_bytes)

    monkeypatch.setattr(search, "_read", noted)
    assert found(search, searches=1) == []
    assert read.count("2000") == 8
    assert found(search, searches=3) == [(901, 0)]


def test_who_has_large_processes_waits_himself_too(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hookless, "_MOST_READ_BYTES", 100_000)
    for number in range(10):
        proc.add(200 + number, uid=2000, environment="X=" + "x" * 60_000)
    search = HooklessSearch(str(proc))
    search.search({})
    assert sum(seen.environment_reads for seen in search._seen.values()) == 2


def test_a_chain_of_processes_is_walked_so_far(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(300):
        proc.add(1000 + number, parent=999 + number, environment=f"RANK={number} LOCAL_RANK=0 WORLD_SIZE=900")
    search = HooklessSearch(str(proc))
    search.search({})
    assert len(list(search._ancestors(search._seen[1299]))) == 64


def test_process_without_torch_is_no_rank(proc: FakeProc) -> None:
    proc.add(101, environment=RANK_0, maps="7f00-7f01 r-xp 0 08:01 5 /usr/lib/libc.so.6\n")
    assert found(HooklessSearch(str(proc))) == []


def test_rank_that_is_starting_has_the_time_to_attach_its_hook(proc: FakeProc) -> None:
    proc.add(101, environment=RANK_0, maps=TORCH)
    search = HooklessSearch(str(proc))
    assert found(search, searches=2) == []
    assert found(search, searches=1) == [(101, 0)]


def test_rank_with_a_hook_is_not_found_again(proc: FakeProc) -> None:
    proc.add(101, environment=RANK_0, maps=TORCH)
    assert found(HooklessSearch(str(proc)), known=(101,)) == []


def test_job_that_turned_stallwatch_off_is_left_alone(proc: FakeProc) -> None:
    proc.add(101, environment=RANK_0 + " STALLWATCH_DISABLE=1", maps=TORCH)
    assert found(HooklessSearch(str(proc))) == []


def test_process_read_before_its_exec_is_read_again(proc: FakeProc) -> None:
    proc.add(101, environment="HOME=/root", maps=TORCH)
    search = HooklessSearch(str(proc))
    search.search({})
    proc.add(101, environment=RANK_0, maps=TORCH)
    assert found(search) == [(101, 0)]


def test_pid_that_was_used_again_is_another_process(proc: FakeProc) -> None:
    proc.add(101, environment="HOME=/root", start=1)
    search = HooklessSearch(str(proc))
    assert found(search, searches=20) == []
    proc.add(101, environment=RANK_0, maps=TORCH, start=2)
    assert found(search, searches=20) == [(101, 0)]


def test_worker_whose_rank_is_gone_does_not_become_a_rank(proc: FakeProc) -> None:
    proc.add(101, environment=RANK_0, maps=TORCH)
    proc.add(150, parent=101, environment=RANK_0, maps=TORCH)
    search = HooklessSearch(str(proc))
    assert found(search) == [(101, 0)]
    proc.remove(101)
    proc.add(150, parent=1, environment=RANK_0, maps=TORCH)
    assert found(search) == []


@pytest.mark.parametrize(("group", "session"), [(101, 1), (1, 101)])
def test_what_a_rank_forked_as_it_ended_does_not_become_that_rank(proc: FakeProc, group: int, session: int) -> None:
    """A library made itself a daemon: no search sees the child below its rank, and the job seemed to have that rank
    still, which had ended."""
    proc.add(101, environment=RANK_0, maps=TORCH, group=101, session=101)
    search = HooklessSearch(str(proc))
    assert found(search) == [(101, 0)]
    proc.remove(101)
    proc.add(150, environment=RANK_0, maps=TORCH, group=group, session=session)
    assert found(search, known=(101,)) == []
    assert found(search) == []  # also once that rank is forgotten


def test_rank_whose_main_thread_has_ended_alone_is_found(proc: FakeProc) -> None:
    """The kernel tells its memory, and with it its variables, by its other threads alone."""
    proc.add(101, state="Z", pages=0, threads=("python", "training-loop"))
    proc.add(102, environment=RANK_0, maps=TORCH)
    other = proc.root / "101" / "task" / "10101"
    for name in ("environ", "maps", "cmdline", "status"):
        (other / name).write_bytes((proc.root / "102" / name).read_bytes())
    (other / "stat").write_text(stat_line(10101))
    proc.remove(102)
    assert found(HooklessSearch(str(proc))) == [(101, 0)]


def beside(proc: FakeProc, pid: int, rank: str = RANK_0, **fields: Any) -> None:
    """A service with a rank's variables and torch, which init has adopted."""
    proc.add(pid, environment=rank, maps=TORCH, start=2000, group=pid, session=pid, **fields)


@pytest.mark.parametrize("known", [(), (101,)])
def test_what_has_a_rank_s_variables_beside_one_that_takes_part_is_no_rank(
    proc: FakeProc, known: tuple[int, ...]
) -> None:
    """A tracker's service, a server of batches, a program that is tried in a shell of the same container: the rank was
    there twice."""
    proc.add(101, environment=RANK_0, maps=TORCH, threads=("python", "pt_gloo_runloop"))
    beside(proc, 150)
    beside(proc, 151, RANK_1)
    assert [pid for pid, _ in found(HooklessSearch(str(proc)), known=known)] == [*{101}.difference(known), 151]


def test_what_is_beside_a_rank_with_a_hook_is_none(proc: FakeProc) -> None:
    proc.add(101, environment=RANK_0, maps=TORCH)
    beside(proc, 150)
    search = HooklessSearch(str(proc))
    for _ in range(6):
        assert search.search({101: KnownRank(names(RANK_0), has_hook=True)}) == []


def test_who_was_taken_for_a_rank_before_that_took_part_is_told(proc: FakeProc) -> None:
    """A start: neither has a process group yet, and which of them will is not known."""
    proc.add(101, environment=RANK_0, maps=TORCH)
    beside(proc, 150)
    search = HooklessSearch(str(proc))
    assert [pid for pid, _ in found(search)] == [101, 150]
    assert search.beside == frozenset()
    proc.add(101, environment=RANK_0, maps=TORCH, threads=("python", "pt_nccl_watchdg"))
    assert found(search, 1, known=(101, 150)) == []
    assert search.beside == {(150, 2000)}
    assert found(search, 1, known=(101,)) == []


def test_what_was_beside_a_rank_does_not_become_it_when_that_is_gone(proc: FakeProc) -> None:
    """Its death would be hidden by that."""
    proc.add(101, environment=RANK_0, maps=TORCH, threads=("python", "pt_gloo_runloop"))
    beside(proc, 150)
    search = HooklessSearch(str(proc))
    assert [pid for pid, _ in found(search)] == [101]
    proc.remove(101)
    assert found(search, known=(101,)) == []
    assert found(search) == []


def test_another_job_of_the_same_names_is_found_once_it_takes_part(proc: FakeProc) -> None:
    proc.add(101, environment=RANK_0, maps=TORCH, threads=("python", "pt_gloo_runloop"))
    beside(proc, 150)
    search = HooklessSearch(str(proc))
    assert found(search, known=(101,)) == []
    beside(proc, 150, threads=("python", "pt_gloo_runloop"))
    assert found(search, known=(101,)) == [(150, 0)]


_STACK = 140_723_792_195_200


def _forked(
    proc: FakeProc, *, alive: bool = False, its: int = _STACK, stack: int = _STACK, randomised: str = "2", **how: Any
) -> list[tuple[int, int]]:
    """What is found beside a rank's process 101 after another one has come of which init is the parent."""
    (proc.root / "sys" / "kernel").mkdir(parents=True)
    (proc.root / "sys" / "kernel" / "randomize_va_space").write_text(f"{randomised}\n")
    proc.add(101, environment=RANK_0, maps=TORCH, group=101, session=101, stack=its)
    search = HooklessSearch(str(proc))
    found(search, known=(101,))
    if not alive:
        proc.remove(101)
    values: dict[str, Any] = {"parent": 1, "start": 2000, "group": 149, "session": 149}
    proc.add(150, environment=RANK_0, maps=TORCH, stack=stack, **(values | how))
    return found(search, known=(101,))


@pytest.mark.parametrize("session", [149, 150])
@pytest.mark.parametrize("alive", [True, False])
def test_what_a_rank_forked_into_a_session_of_its_own_is_not_that_rank(
    proc: FakeProc, session: int, alive: bool
) -> None:
    """daemon(3) and whatever forks twice: fork keeps the stack where it was."""
    assert _forked(proc, alive=alive, group=session, session=session) == []


@pytest.mark.parametrize(
    "how",
    [
        {"stack": _STACK + 4096},  # it was executed
        {"stack": 0, "its": 0},  # not told
        {"start": 900},  # it is older than the rank
        {"randomised": "0"},
        {"personality": "00040000"},  # setarch -R
    ],
)
def test_who_was_not_surely_forked_by_that_rank_is_found(proc: FakeProc, how: dict[str, Any]) -> None:
    assert _forked(proc, **how) == [(150, 0)]


def test_next_attempt_that_what_forked_the_one_before_forks_is_found(proc: FakeProc) -> None:
    proc.add(90, environment=RANK_0, stack=_STACK, start=900, argv=("python", "attempts.py"))
    assert _forked(proc, parent=90) == [(150, 0)]


def test_next_attempt_in_the_group_of_another_rank_is_found(proc: FakeProc) -> None:
    """A script starts ranks in its own process group, or in that of the first of them."""
    proc.add(103, environment=RANK_1, maps=TORCH, group=101, session=101)
    proc.add(104, environment=RANK_0, maps=TORCH, group=100, session=100)
    assert sorted(found(HooklessSearch(str(proc)), known=(101,))) == [(103, 1), (104, 0)]


@pytest.mark.parametrize(
    "launcher",
    [
        ("python", "/usr/bin/torchrun", "--nnodes=2", "train.py"),
        ("python", "-m", "torch.distributed.run", "train.py"),
        ("python", "-u", "-m", "deepspeed.launcher.launch", "train.py"),
        ("/venv/bin/python3", "/venv/bin/accelerate", "launch", "train.py"),
        ("python", "-m", "accelerate.commands.launch", "train.py"),
    ],
)
def test_launcher_that_slurm_started_is_no_rank_even_while_it_waits_for_other_nodes(
    proc: FakeProc, launcher: tuple[str, ...]
) -> None:
    proc.add(100, environment=SLURM, maps=TORCH, argv=launcher)
    search = HooklessSearch(str(proc))
    assert found(search) == []
    proc.add(101, parent=100, environment=f"{SLURM} {RANK_0} TORCHELASTIC_RUN_ID=r", maps=TORCH)
    proc.add(102, parent=100, environment=f"{SLURM} {RANK_1} TORCHELASTIC_RUN_ID=r", maps=TORCH)
    assert sorted(found(search)) == [(101, 0), (102, 1)]


def test_launcher_of_another_name_is_known_by_the_ranks_below_it(proc: FakeProc) -> None:
    proc.add(100, environment=SLURM.replace("PROCID=1", "PROCID=0"), maps=TORCH)
    proc.add(101, parent=100, environment=f"{SLURM} {RANK_0}", maps=TORCH)
    proc.add(102, parent=100, environment=f"{SLURM} {RANK_1}", maps=TORCH)
    assert sorted(found(HooklessSearch(str(proc)))) == [(101, 0), (102, 1)]


def test_script_whose_arguments_name_a_launcher_is_a_rank(proc: FakeProc) -> None:
    proc.add(101, environment=RANK_0, maps=TORCH, argv=("python", "train.py", "--launcher", "torchrun"))
    assert found(HooklessSearch(str(proc))) == [(101, 0)]


def test_spawned_worker_that_got_its_ranks_variables_at_run_time_is_no_rank(proc: FakeProc) -> None:
    """Lightning under Slurm sets RANK and the master in its own environment, and loader workers inherit that."""
    proc.add(101, environment=SLURM, maps=TORCH)
    inherited = f"{SLURM} RANK=1 LOCAL_RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=9"
    proc.add(150, parent=101, environment=inherited, maps=TORCH)
    assert found(HooklessSearch(str(proc))) == [(101, 1)]
