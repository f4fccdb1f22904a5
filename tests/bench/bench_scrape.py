"""How long Prometheus waits for /metrics while the daemon publishes: `python -m tests.bench.bench_scrape`.

Prints what one reader sees, a publication and a scrape ten times a second (each scrape is rendered for), and what a
publication each second and a rendering every 15 s cost. Absolute numbers belong to the machine.
"""

import http.client
import itertools
import multiprocessing
import statistics
import threading
import time
from concurrent.futures import ProcessPoolExecutor

import msgspec

from stallwatch.model.incident import NodeReport
from stallwatch.model.reading import Known
from stallwatch.outputs.metrics import render
from tests.bench.figures import Figure, beside_yardstick, median_of, percentile
from tests.integration.outputs.page_reports import stalled_node
from tests.integration.outputs.serving import served
from tests.unit.outputs.reports import GPU, incident, sample, with_snapshot

SECONDS = 20.0
PERIOD_SECONDS = 0.1
SCRAPED_EVERY_SECONDS = 15


def node_of(ranks: int, pulse: int = 0) -> NodeReport:
    """Ranks, eight simulated GPUs and an open incident, at one pulse of all hooks."""
    gpus = tuple(msgspec.structs.replace(GPU, index=index, uuid=f"GPU-{index}") for index in range(8))
    report = stalled_node(ranks, incident())
    return with_snapshot(report, ranks=tuple(sample(rank, pulse=pulse) for rank in range(ranks)), gpus=Known(gpus, 0))


def scrape(port: int, seconds: float) -> tuple[list[float], int]:
    """Seconds of each scrape, and bytes of the last."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    taken, size, end = [], 0, time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        connection.request("GET", "/metrics")
        size = len(connection.getresponse().read())
        taken.append(time.perf_counter() - began)
        time.sleep(PERIOD_SECONDS)
    connection.close()
    return taken, size


def measure(ranks: int, seconds: float) -> tuple[list[float], int, float]:
    """Seconds of each scrape, bytes of the last, and CPU seconds of one publication."""
    reports, stopped, spent = [node_of(ranks, pulse) for pulse in range(16)], threading.Event(), []
    with served(reports[0]) as node:

        def publish() -> None:
            for report in itertools.cycle(reports):  # shares of looks need pulses that move
                if stopped.wait(PERIOD_SECONDS):
                    return
                before = time.thread_time()
                node.output.publish(report)
                spent.append(time.thread_time() - before)

        daemon = threading.Thread(target=publish)
        daemon.start()
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as prometheus:  # it does not share our GIL
            taken, size = prometheus.submit(scrape, node.port, seconds).result()
        stopped.set()
        daemon.join()
    return taken, size, statistics.median(spent)


def rendered(ranks: int) -> float:
    """CPU seconds of one rendering."""
    spent = []
    for pulse in range(10):
        report = node_of(ranks, pulse)
        before = time.thread_time()
        render(report, ())
        spent.append(time.thread_time() - before)
    return statistics.median(spent)


def figures(quick: bool) -> list[Figure]:
    """8 and 1,024 ranks."""
    found = []
    for ranks in (8, 1024):
        taken, size, publication = measure(ranks, 5.0 if quick else SECONDS)
        _, ratios = beside_yardstick(lambda ranks=ranks: rendered(ranks), 3 if quick else 9)  # type: ignore[misc]
        cpu = publication + rendered(ranks) / SCRAPED_EVERY_SECONDS
        spread = f"median {statistics.median(taken) * 1e3:.1f} ms of {len(taken)} scrapes of {size / 1000:.0f} kB"
        found += [
            Figure(f"{ranks} ranks: p99", percentile(taken, 0.99) * 1e3, "ms", detail=spread),
            Figure(f"{ranks} ranks: processor a second", cpu * 1e3, "ms", detail="published each second"),
            median_of(f"{ranks} ranks: a rendering, in yardsticks", ratios, "×"),
        ]
    return found


if __name__ == "__main__":
    for figure in figures(quick=False):
        print(figure)
