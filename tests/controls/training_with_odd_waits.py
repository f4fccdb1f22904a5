"""Situations that are no hang, in which a rank waits for what is seldom waited for: a signal, a driver that sleeps, a
shell of many short programs, a team of native threads, answers that come word by word. Started as
`training_with_odd_waits.py NAME`. See common.py."""

import concurrent.futures
import ctypes
import http.server
import os
import signal
import subprocess
import time
import urllib.request

import torch  # noqa: TID251

from tests.controls.common import (
    FOR_EVER,
    QUIET_SECONDS,
    RANK,
    every_rank_waits,
    main,
    one_rank_waits,
    situation,
    train,
)

_PAUSE = min(QUIET_SECONDS, FOR_EVER)


@every_rank_waits
def waits_for_an_operator_s_signal(seconds: float) -> None:
    """The job has reached its milestone and waits for SIGUSR2 on every rank (`kill -USR2`) before it goes on."""
    signal.signal(signal.SIGUSR2, lambda *_: None)
    if os.fork() == 0:
        time.sleep(min(seconds, FOR_EVER))
        os.kill(os.getppid(), signal.SIGUSR2)
        os._exit(0)
    signal.pause()


@one_rank_waits
def decodes_by_a_shell_of_programs(seconds: float) -> None:
    """A shell script decodes videos, three at a time by `xargs -P`; grandchildren compute, each for a moment."""
    script = (
        f"end=$(( $(date +%s) + {int(seconds)} )); while [ $(date +%s) -lt $end ]; do"
        " seq 6 | xargs -P 3 -n 1 sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'; done"
    )
    subprocess.run(["sh", "-c", script], check=True)


@one_rank_waits
def driver_sleeps_in_native_code(seconds: float) -> None:
    """A vendor's library resets its card, and sleeps in its own code until that is done."""
    ctypes.CDLL(None).usleep(ctypes.c_uint(int(min(seconds, 4000.0) * 1e6)))


@situation
def more_threads_than_cores() -> None:
    """Every rank takes eight threads of a small node: steps are of any length, and rank 1 then has a longer one."""
    torch.set_num_threads(8)
    values = torch.randn(384, 384)
    for number in range(40):
        for _ in range(60 if number % 7 == 0 else 15):
            values = torch.nn.functional.normalize(values @ values)
        train(1)
    if RANK == 1:
        until = time.monotonic() + QUIET_SECONDS
        while time.monotonic() < until:
            values = torch.nn.functional.normalize(values @ values)
    train(20)


@one_rank_waits
def asks_many_models_at_once(seconds: float) -> None:
    """Synthetic data: sixteen threads ask a model behind HTTP, whose answers come word by word, each a second apart."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Model)
    _Model.words = int(min(seconds, FOR_EVER))
    model = os.fork()
    if model == 0:
        server.serve_forever()

    def ask(_: int) -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/", timeout=60) as answer:
            return sum(len(word) for word in answer)

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(ask, range(16)))
    os.kill(model, signal.SIGKILL)
    os.waitpid(model, 0)


class _Model(http.server.BaseHTTPRequestHandler):
    words = 0

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        for _ in range(self.words):
            self.wfile.write(b"word\n")
            time.sleep(1.0)

    def log_message(self, *_: object) -> None:
        return


if __name__ == "__main__":
    main()
