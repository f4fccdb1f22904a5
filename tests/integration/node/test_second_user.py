"""What another user of the node tries, one thing after the other, against one daemon: the job of the first goes on
being seen, and nothing is said of it."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.node.service import ALICE, BOB, PRIVILEGED, ServiceDaemon, UserJob, as_user
from tests.programs.everybody import PythonForEverybody

pytestmark = pytest.mark.slow
JOB = "alices-job"
ROOT = Path(__file__).parents[3]
# What the attempts have: the directory of ranks, the others' processes, and how to write a record of anybody.
HAS = f"""
import contextlib, fcntl, glob, json, os, socket, struct, sys, time
sys.path.insert(0, {str(ROOT)!r})
from stallwatch.hook import layout
from tests.programs.bad_neighbour import record

ranks, *pids = sys.argv[1:]
theirs = [path for path in glob.glob(ranks + "/rank-*.beat") if os.lstat(path).st_uid == {ALICE}]

def leave(job="bobs-job", rank=0, pid=os.getpid(), **words):
    ticks = int(open(f"/proc/{{pid}}/stat", "rb").read().rpartition(b")")[2].split()[19])
    path = ranks + "/" + layout.record_name(rank, f"{{pid}}-{{layout.new_mark()}}")
    with open(path, "wb") as file:
        file.write(record(rank, pid, job, **{{"start_ticks": ticks, **words}}))
    return path

def swap(path):
    new, data = path + ".new", open(path, "rb").read()
    for turn in range(3000):
        with contextlib.suppress(OSError):
            if turn % 4 == 0: open(new, "wb").write(data)
            elif turn % 4 == 1: os.symlink("/proc/1/environ", new)
            elif turn % 4 == 2: os.mkfifo(new)
            else: os.symlink(theirs[0], new)
            os.rename(new, path)

def shut(path):
    rights = ((1, 6, -1), (2, 0, {PRIVILEGED}), (4, 0, -1), (16, 7, -1), (32, 0, -1))
    entries = b"".join(struct.pack("<HHi", *one) for one in rights)
    with contextlib.suppress(OSError):  # a file system without lists
        os.setxattr(path, "system.posix_acl_access", struct.pack("<I", 2) + entries)
"""
REFUSED = {
    "removes another's record": "os.unlink(theirs[0])",
    "renames another's record": "os.rename(theirs[0], ranks + '/x')",
    "writes another's record": "open(theirs[0], 'wb')",
    "links to another's record": "os.link(theirs[0], ranks + '/' + layout.record_name(1, '7-0123456789abcdef'))",
    "leaves a request": "open(ranks + '/.daemon/0-1.request', 'w')",
    "renames the folder of requests": "os.rename(ranks + '/.daemon', ranks + '/d')",
    "makes a device": "os.mknod(ranks + '/d', 0o20666, os.makedev(1, 5))",
    "links to another's facts": "os.link(glob.glob(ranks + '/*.facts.json')[0], ranks + '/x')",
    "seizes the daemon's processes": "[os.open(f'/proc/{pid}/mem', os.O_RDWR) for pid in pids[2:]]",
    "stops the daemon's processes": "[os.kill(int(pid), 19) for pid in pids[2:]]",
    "opens the directory to all": "os.chmod(ranks, 0o777)",
    "renames the directory": "os.rename(ranks, ranks + '-mine')",
}
WITHOUT_EFFECT = {
    "claims another's process": f"leave({JOB!r}, 0, int(pids[0]))",
    "says that another's rank has ended": f"leave({JOB!r}, 1, int(pids[1]), ended=1, exit_code=1, ended_ns=1)",
    "claims pid 1": "leave(pid=1)",
    "says a world of 10^9": "leave(world_size=10**9)",
    "says words of 2^62": "leave(step=2**62, pulse_ns=2**62, answered_request=2**62, dump_started_ns=2**62)",
    "says words of -1": "leave(rank=0, local_rank=-1, world_size=-1, step=-1, pulse_ns=-1, attached_ns=-1)",
    "has a name that climbs out": "leave('../../../../etc/x/')",
    "has a name with escapes": "leave('a\\x1b[2J\\nb\\u202ec')",
    "has facts of 8 GiB with holes": "open(leave()[:-5] + '.facts.json', 'w').truncate(8 << 30)",
    "has facts nested 100,000 deep": "open(leave()[:-5] + '.facts.json', 'w').write('[' * 100_000)",
    "has facts that are a pipe": "os.mkfifo(leave()[:-5] + '.facts.json')",
    "has a record that is a pipe": "os.mkfifo(ranks + '/' + layout.record_name(0, '77-0123456789abcdef'))",
    "has a record that is a folder": "os.mkdir(ranks + '/' + layout.record_name(0, '79-0123456789abcdef'))",
    "has a record that is a link": "os.symlink(theirs[0], ranks + '/' + layout.record_name(5, '7-0123456789abcdef'))",
    "replaces its record by a folder": "(path := leave(), os.unlink(path), os.mkdir(path))",
    "replaces its record by a socket": "(path := leave(), os.unlink(path), socket.socket(socket.AF_UNIX).bind(path))",
    "replaces its record by a circle": "(path := leave(), os.unlink(path), os.symlink(os.path.basename(path), path))",
    "swaps its record again and again": "swap(leave())",
    "shuts the reader out by an access list": "shut(leave())",
    "has a lease on its record": "fcntl.fcntl(os.open(leave(), os.O_RDWR), 1024, fcntl.F_WRLCK)",
    "links its record": "[os.link(leave(), f'{ranks}/rank-{r}-7-{layout.new_mark()}.beat') for r in range(8)]",
    "says that another's rank is its child": f"leave({JOB!r}, 1, int(pids[1]), is_child=1)",
    "says times to come": "leave(pulse_ns=2**60, attached_ns=2**60, phase_since_ns=2**60)",
    "locks another's record": "__import__('fcntl').flock(open(theirs[0]), 2)",
    "has 300 records of one process": "[leave(rank=rank) for rank in range(300)]",
}


@pytest.fixture
def job(daemon: ServiceDaemon, python: PythonForEverybody) -> Iterator[UserJob]:
    running = UserJob(python, ALICE, JOB, 2, daemon.rank_directory)
    yield running
    running.end()


def tried(daemon: ServiceDaemon, python: PythonForEverybody, job: UserJob, does: str) -> str:
    """Return what the kernel said, "" when it let it be done; and wait until the daemon has looked twice since."""
    command = [*as_user(BOB), *python.command, "-c", f"{HAS}\n{does}", str(daemon.rank_directory)]
    done = subprocess.run(
        [*command, *map(str, (job.pid(0), job.pid(1), daemon.pid, daemon.side.pid))],
        env=python.environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    tick = daemon.client.ranks().tick
    daemon.until(lambda: daemon.client.ranks().tick > tick + 2, "two looks")
    return done.stderr


@pytest.mark.timeout(600)
def test_nothing_that_another_user_tries_touches_the_first_ones_job(
    daemon: ServiceDaemon, python: PythonForEverybody, job: UserJob
) -> None:
    daemon.until(lambda: daemon.steps(JOB), "the ranks step")
    for what, does in REFUSED.items():
        assert "PermissionError" in tried(daemon, python, job, does), what
    for what, does in WITHOUT_EFFECT.items():
        assert tried(daemon, python, job, does) == "", what
        daemon.until(lambda: daemon.steps(JOB), f"the ranks step, though he {what}")
        assert daemon.incidents(JOB) == [], what
        assert {rank.owner for rank in daemon.ranks(JOB) if rank.pid in (job.pid(0), job.pid(1))} == {f"uid {ALICE}"}
    assert "stage=" not in daemon.log_text()
