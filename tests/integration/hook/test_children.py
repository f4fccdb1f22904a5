"""Processes that a rank starts are no ranks."""

import sys
from pathlib import Path

from tests.integration.hook.programs import eventually, records, running, script


def test_a_forked_child_never_writes(tmp_path: Path, directory: Path) -> None:
    source = """
import os, sys
import stallwatch
beat = stallwatch.attach()
beat.step()
child = os.fork()
if child == 0:
    for _ in range(100):
        beat.step()
    again = stallwatch.attach()
    with beat.phase("loading"), again.phase("loading"):
        again.step()
    os._exit(10 + bool(beat) + 2 * bool(again))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
sys.stdin.readline()
"""
    with running(script(tmp_path, source), directory) as program:
        assert program.line() == "10"
        pulse = program.record().pulse_count
        record = program.record(until=lambda record: record.pulse_count > pulse)
        assert (record.step, record.phase) == (1, "")
        assert list(records(directory)) == [program.process.pid]


def test_a_forked_child_that_ends_in_order_does_not_end_the_rank(tmp_path: Path, directory: Path) -> None:
    source = """
import os, sys
import stallwatch
beat = stallwatch.attach()
if os.fork() == 0:
    sys.exit(3)
os.wait()
print("waited")
sys.stdin.readline()
"""
    with running(script(tmp_path, source), directory) as program:
        assert program.line() == "waited"
        pulse = program.record().pulse_count
        assert not program.record(until=lambda record: record.pulse_count > pulse).ended


def test_a_forked_child_with_a_rank_of_its_own_is_a_rank(tmp_path: Path, directory: Path) -> None:
    source = """
import os, sys
import stallwatch
beat = stallwatch.attach()
child = os.fork()
if child == 0:
    os.environ["RANK"] = "2"
    beat = stallwatch.attach()
    beat.step()
    print(os.getpid())
    sys.stdin.readline()
    os._exit(0)
os.waitpid(child, 0)
"""
    with running(script(tmp_path, source), directory) as program:
        child = int(program.line())
        record = eventually(lambda: records(directory).get(child))
        assert (record.rank, record.is_child) == (2, False)
        assert records(directory)[program.process.pid].rank == 3
        program.end()


def test_a_spawned_worker_that_attaches_again_is_the_rank_s_child(tmp_path: Path, directory: Path) -> None:
    source = """
import multiprocessing, sys
import stallwatch
beat = stallwatch.attach()

def work(pipe):
    pipe.send(bool(beat))
    pipe.recv()

if __name__ == "__main__":
    ours, theirs = multiprocessing.Pipe()
    worker = multiprocessing.get_context("spawn").Process(target=work, args=(theirs,))
    worker.start()
    print(worker.pid, ours.recv())
    sys.stdin.readline()
    ours.send(None)
    worker.join()
"""
    with running(script(tmp_path, source), directory) as program:
        pid, works = program.line().split()
        child = eventually(lambda: records(directory).get(int(pid)))
        assert works == "True"
        assert (child.rank, child.is_child) == (3, True)
        assert not program.record().is_child
        program.end()


def test_a_program_that_a_rank_starts_with_its_variables_is_its_child_until_the_rank_is_gone(
    tmp_path: Path, directory: Path
) -> None:
    script(
        tmp_path, "import stallwatch, sys\nbeat = stallwatch.attach()\nprint('up')\nsys.stdin.readline()", "other.py"
    )
    source = f"""
import subprocess, sys
import stallwatch
beat = stallwatch.attach()
other = subprocess.Popen([{sys.executable!r}, "other.py"])
other.wait()
"""
    with running(script(tmp_path, source), directory, folder=tmp_path) as program:
        assert program.line() == "up"
        children = [record for pid, record in records(directory).items() if pid != program.process.pid]
        assert [record.is_child for record in children] == [True]
        program.end()


def test_attaching_twice_is_attaching_once(tmp_path: Path, directory: Path) -> None:
    source = "import stallwatch\nprint(stallwatch.attach() is stallwatch.attach(auto=True))"
    with running(script(tmp_path, source), directory) as program:
        assert program.line() == "True"
        program.end()
    assert len(list(directory.glob("*.beat"))) == 1


def test_a_fork_finds_no_second_thread_and_the_pulse_goes_on(tmp_path: Path, directory: Path) -> None:
    source = """
import os, sys
import stallwatch
def threads():
    return len(os.listdir("/proc/self/task"))  # the system's own: `threading` does not know them
os.register_at_fork(before=lambda: print("at the fork", threads()))  # registered first, it runs last
beat = stallwatch.attach()
print(threads())
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
print(threads())
sys.stdin.readline()
"""
    with running(script(tmp_path, source), directory) as program:
        assert program.line() == "2"
        assert program.line() == "at the fork 1"
        assert program.line() == "2"
        pulse = program.record().pulse_count
        program.record(until=lambda record: record.pulse_count > pulse)
        assert program.end() == (0, "")


def test_a_job_that_forks_all_the_time_is_published(tmp_path: Path, directory: Path) -> None:
    source = """
import os, select, sys
import stallwatch
beat = stallwatch.attach()
print("forking")
while not select.select([sys.stdin], [], [], 0)[0]:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    beat.step()
"""
    with running(script(tmp_path, source), directory) as program:
        assert program.line() == "forking"
        first = program.record(until=lambda record: (record.step or 0) > 0)
        later = program.record(until=lambda record: record.pulse_count >= first.pulse_count + 2)
        assert (later.step or 0) > (first.step or 0)
        assert program.end() == (0, "")


def test_threads_that_attach_at_once_attach_once(tmp_path: Path, directory: Path) -> None:
    source = """
import sys, threading
sys.setswitchinterval(1e-6)
import stallwatch
beats = []
threads = [threading.Thread(target=lambda: beats.append(stallwatch.attach())) for _ in range(30)]
for thread in threads: thread.start()
for thread in threads: thread.join()
for beat in beats: beat.step()
import os, time
deadline = time.monotonic() + 30  # a thread that was joined is the system's for a moment more
while len(os.listdir("/proc/self/task")) > 2 and time.monotonic() < deadline: time.sleep(0.01)
print(len(set(map(id, beats))), len(os.listdir("/proc/self/task")) - 1)
sys.stdin.readline()
"""
    with running(script(tmp_path, source), directory) as program:
        assert program.line() == "1 1"
        assert program.record(until=lambda record: record.step == 30).errors == 0
        program.end()
