"""Programs that are hardly training: predictions, rewards, labels, weights for a server; their ranks meet seldom, or
wait for other programs and for people. Started as `training_of_many_kinds.py NAME`; see common.py."""

import contextlib
import http.server
import itertools
import logging
import os
import queue
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator

import torch.distributed as dist  # noqa: TID251

from tests.controls.common import (
    FOR_EVER,
    JOB_FOLDER,
    QUIET_SECONDS,
    RANK,
    STEP_SECONDS,
    WARM_UP,
    WORLD,
    beat,
    compute,
    main,
    one_rank_waits,
    situation,
    train,
)

_LOG = logging.getLogger("train")
# What candidates do that a model wrote: none of it is the job's.
_CANDIDATES = (
    "import os; os.kill(os.getpid(), 11)",
    "while True: pass",
    "raise RuntimeError('CUDA error: an illegal memory access was encountered')",
    "import sys; sys.exit(3)",
    "import os; os.abort()",
)
_SAMPLE = """### Why does my training stop?
[rank2]:[E ProcessGroupNCCL.cpp:616] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=42, \
OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.
Traceback (most recent call last):
  File "train.py", line 88, in <module>
    loss.backward()
RuntimeError: CUDA error: an illegal memory access was encountered
Segmentation fault (core dumped)
"""


class _Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def _served(handler: type[_Handler]) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def _predict(seconds: float) -> None:
    """Batches of a shard, each counted and written."""
    JOB_FOLDER.mkdir(exist_ok=True)
    until = time.monotonic() + seconds
    with (JOB_FOLDER / f"predictions-{RANK}").open("w") as file:
        while time.monotonic() < until:
            compute(STEP_SECONDS / 2)
            time.sleep(STEP_SECONDS / 2)
            print(time.monotonic(), file=file, flush=True)
            beat.step()


@situation
def predicts_shards_of_unequal_size() -> None:
    """Predictions: each rank steps through a shard of its own, without the others, and gathers when it is done; rank
    3's shard is much the longest."""
    _predict(WARM_UP * STEP_SECONDS + (2 * QUIET_SECONDS if RANK == WORLD - 1 else 3.0 * RANK))
    gathered: list[object] | None = [None] * WORLD if RANK == 0 else None
    dist.gather_object(RANK, gathered, dst=0)


@situation
def predicts_and_never_meets() -> None:
    """Predictions again; each rank ends when its shard does, rank 3 long after the others, and none waits for one."""
    _predict(WARM_UP * STEP_SECONDS + (min(QUIET_SECONDS, 18.0) if RANK == WORLD - 1 else 3.0 * RANK))
    dist.destroy_process_group()


@one_rank_waits
def reads_tokens_of_a_generator(seconds: float) -> None:
    """A generator in a program of its own, which waits for its GPU: its tokens come through a pipe, two a second."""
    program = "import sys, time\nfor _ in range(int(sys.argv[1])):\n    print('token', flush=True); time.sleep(0.5)"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(int(seconds * 2))], stdout=subprocess.PIPE, env={}
    ) as child:
        assert child.stdout
        child.stdout.read()


@one_rank_waits
def runs_candidates_in_sandboxes(seconds: float) -> None:
    """Rewards of code: candidates crash, are killed and exceed their time, one after the other."""
    until = time.monotonic() + seconds
    for candidate in itertools.cycle(_CANDIDATES):
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run([sys.executable, "-c", candidate], timeout=3, capture_output=True, env={}, check=False)
        if time.monotonic() > until:
            return


@one_rank_waits
def posts_each_parameter_to_a_server(seconds: float) -> None:
    """Weights for a server of inference, over HTTP: one request a parameter, each of which takes a while."""

    class Handler(_Handler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(1.2)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with _served(Handler) as address:
        for _ in range(max(1, int(seconds / 1.2))):
            urllib.request.urlopen(address, data=bytes(100_000)).close()


@one_rank_waits
def waits_for_a_person_s_labels(seconds: float) -> None:
    """Active learning: a page is served by a thread, and the rank waits until somebody has labelled."""
    labels: queue.Queue[bytes] = queue.Queue()

    class Handler(_Handler):
        def do_POST(self) -> None:
            labels.put(self.rfile.read(1))
            self.send_response(200)
            self.end_headers()

    with _served(Handler) as address:
        if seconds < FOR_EVER:
            threading.Timer(seconds, urllib.request.urlopen, (address, b"1")).start()
        labels.get()


@one_rank_waits
def prints_what_a_model_writes_of_failures(seconds: float) -> None:
    """Samples of a code model: tracebacks, watchdogs and crashes of nobody. An upload failed before, and was logged."""
    try:
        urllib.request.urlopen("http://127.0.0.1:9/")
    except OSError:
        _LOG.exception("the upload failed, going on")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        compute(2.0)
        print(_SAMPLE, flush=True)


@situation
def generates_scores_and_updates() -> None:
    """GRPO: all generate, each for a time of its own; rank 0 scores alone with a reward model, and then all update."""
    train(WARM_UP)
    for _ in range(2):
        until = time.monotonic() + 3.0 + RANK
        while time.monotonic() < until:
            compute(0.02)
            time.sleep(0.03)
        samples: list[object] | None = [None] * WORLD if RANK == 0 else None
        dist.gather_object(os.urandom(100), samples, dst=0)
        if RANK == 0:
            compute(QUIET_SECONDS / 2)
        dist.broadcast_object_list([None], src=0)
        train(16)
    train(40)


if __name__ == "__main__":
    main()
