"""Features come from a cache behind a lock, and the thread that refreshes it never gives the lock back."""

import threading

from torch import Tensor

from stallwatch.demo.training import Training, run

cache_lock = threading.Lock()
cache: dict[int, Tensor] = {}


def refresh() -> None:
    """Empty the cache, in a thread of its own, and keep the lock."""
    cache_lock.acquire()
    cache.clear()  # and no release: what an exception between the two leaves behind


def features(training: Training, step: int) -> Tensor:
    """The features of a step, from the cache or made; in the step that strikes it is refreshed before."""
    if training.strikes(step):
        refresher = threading.Thread(target=refresh, name="cache-refresh", daemon=True)
        refresher.start()
        refresher.join()
    with cache_lock:
        return cache.setdefault(step % 8, training.batch())


def train(training: Training) -> None:
    """Learn from cached features until told to stop."""
    for step in training.steps():
        training.learn(features(training, step))


if __name__ == "__main__":
    run(train)
