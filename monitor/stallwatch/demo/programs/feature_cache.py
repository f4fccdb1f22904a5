"""Features come from a cache behind a lock, and the thread that refreshes it never gives the lock back."""

import threading

from torch import Tensor

from stallwatch.demo.training import Training, run

cache_lock = threading.Lock()
cache: dict[int, Tensor] = {}


def refresh() -> None:
    cache_lock.acquire()
    cache.clear()  # and no release: what an exception between the two leaves behind


def features(training: Training, step: int) -> Tensor:
    if training.strikes(step):
        refresher = threading.Thread(target=refresh, name="cache-refresh", daemon=True)
        refresher.start()
        refresher.join()
    with cache_lock:
        return cache.setdefault(step % 8, training.batch())


def train(training: Training) -> None:
    for step in training.steps():
        training.learn(features(training, step))


if __name__ == "__main__":
    run(train)
