"""Slack away for ten minutes, with real jobs, a real daemon and SIGKILLs: `python -m tests.bench.bench_slack_outage`.

The other side first refuses connections, then answers 503, then takes messages and never answers, then 429 with
Retry-After; meanwhile jobs hang and end, and the daemon is killed three times, once in the midst of an attempt. When
Slack is back, one more message is taken and the daemon killed before it hears so: the one place for a duplicate.
Prints what was delivered and how often; fails unless every step of every incident arrived.
"""

import argparse
import json
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

from stallwatch.demo.catalogue import find
from stallwatch.demo.daemon_child import DaemonChild
from stallwatch.demo.job import PROGRAMS, job_environment
from tests.bench.jobs import ForkedJob, Server, free_port, server

Mood = Literal["503", "silent", "429", "well", "takes it and is not heard"]
RETRY_AFTER_SECONDS = 30
SETTLE_SECONDS = 420.0  # above the longest wait between two attempts


class Slack:
    """A webhook's address that is away, or there in a mood; keeps what it has taken."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/services/T/B/x"
        self.mood: Mood = "well"
        self.taken: list[dict[str, Any]] = []
        self.attempts: Counter[str] = Counter()
        self.asked = threading.Condition()
        self._closing = threading.Event()
        self._server: ThreadingHTTPServer | None = None

    def open(self) -> None:
        slack = self

        class Endpoint(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                mood = slack.note(body)
                if mood in ("silent", "takes it and is not heard"):
                    slack._closing.wait(120)
                    return
                status, text = {"503": (503, b"down"), "429": (429, b"rate_limited")}.get(mood, (200, b"ok"))
                self.send_response(status)
                if mood == "429":
                    self.send_header("Retry-After", str(RETRY_AFTER_SECONDS))
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Endpoint)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def note(self, body: dict[str, Any]) -> Mood:
        with self.asked:
            mood = self.mood
            self.attempts[mood] += 1
            if mood in ("well", "takes it and is not heard"):
                self.taken.append(body)
            self.asked.notify_all()
        return mood

    def wait_for_attempt(self, mood: Mood, seconds: float) -> bool:
        with self.asked:
            return self.asked.wait_for(lambda: self.attempts[mood] > 0, seconds)

    def close(self) -> None:
        self._closing.set()
        if self._server:
            self._server.shutdown()
            self._server.server_close()


class Story:
    def __init__(self, folder: Path, slack: Slack, jobs: Server) -> None:
        self.folder, self.slack, self.jobs = folder, slack, jobs
        self.daemon = DaemonChild(folder, os.environ, {"slack": {"webhook_url": slack.url}})
        self.began = time.monotonic()
        self.kills = 0

    def say(self, words: str) -> None:
        print(f"{time.monotonic() - self.began:6.1f} s  {words}", flush=True)

    def hang(self, fault_name: str, name: str) -> ForkedJob:
        fault = find(fault_name)
        scratch = self.folder / name
        scratch.mkdir()
        environment = job_environment(os.environ, self.daemon.rank_directory, scratch / "mark", scratch, name)
        changed = {key: value for key, value in environment.items() if os.environ.get(key) != value}
        self.say(f"job {name} starts, to hang by {fault_name!r}")
        program = PROGRAMS / f"{fault.program}.py"
        return self.jobs.launch(program, ["--seed=1", "--backend=gloo"], 4, changed, scratch / "job.log")

    def kill_daemon(self) -> None:
        assert self.daemon.pid
        os.kill(self.daemon.pid, signal.SIGKILL)
        self.kills += 1
        time.sleep(2)
        self.daemon.start()
        self.say(f"daemon killed with SIGKILL and started again; {len(self.spool()['queue'])} messages wait")

    def spool(self) -> dict[str, Any]:
        try:
            spool = json.loads((self.folder / "state" / "slack.json").read_text())
        except FileNotFoundError:
            return {"told": {}, "queue": []}
        assert isinstance(spool, dict)
        return spool

    def queue_empties(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.spool()["queue"]:
            time.sleep(0.5)

    def play(self, minutes: float) -> None:
        unit = minutes / 10 * 60

        def at(minute: float) -> None:
            time.sleep(max(self.began + minute * unit - time.monotonic(), 0))

        self.daemon.start()
        self.began = time.monotonic()
        self.say("daemon runs; nobody listens at Slack's address")
        first = self.hang("lock", "outage-a")
        at(2)
        first.stop()
        self.say("job outage-a is ended")
        second = self.hang("stopped", "outage-b")
        at(3.5)
        self.kill_daemon()
        third = self.hang("sleep", "outage-c")
        at(5)
        self.slack.mood = "503"
        self.slack.open()
        self.say("Slack answers 503")
        at(6)
        second.stop()
        self.say("job outage-b is ended")
        at(7)
        self.slack.mood = "silent"
        self.say("Slack takes messages and does not answer")
        if self.slack.wait_for_attempt("silent", 300):  # the waits have grown by now
            self.kill_daemon()  # in the midst of an attempt
        self.slack.mood = "429"
        self.say(f"Slack answers 429, Retry-After {RETRY_AFTER_SECONDS}")
        third.stop()
        self.say("job outage-c is ended")
        at(10)
        self.slack.wait_for_attempt("429", 300)
        self.slack.mood = "well"
        self.say(f"Slack is well; attempts so far: {dict(self.slack.attempts)}; {len(self.spool()['queue'])} wait")
        self.queue_empties(SETTLE_SECONDS)
        self.say("the queue is empty")
        self.slack.mood = "takes it and is not heard"
        last = self.hang("lock", "outage-d")
        self.slack.wait_for_attempt("takes it and is not heard", 90)
        self.slack.mood = "well"
        self.kill_daemon()
        time.sleep(5)
        self.queue_empties(60)
        last.stop()
        time.sleep(8)
        self.queue_empties(60)


def step_of(text: str) -> str:
    """Which step of an incident's life a message tells, by its headline."""
    headline = text.partition("\n")[0]
    if "resolved" in headline:
        return "resolved"
    return "escalated" if ": still " in headline else "updated" if ": now " in headline else "told"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--minutes", type=float, default=10.0, help="of the outage; fewer say less")
    minutes = options.parse_args().minutes
    slack = Slack()
    with tempfile.TemporaryDirectory(prefix="sw-out-", dir="/tmp") as made, server() as jobs:
        story = Story(Path(made), slack, jobs)
        try:
            story.play(minutes)
            spool, metrics = story.spool(), story.daemon.client.metrics()
            incidents = {one.incident_id: one for one in story.daemon.client.incidents(past=50).incidents}
        finally:
            story.daemon.stop()
            slack.close()
    arrived: Counter[tuple[str, str]] = Counter()
    for message in slack.taken:
        (incident_id,) = set(re.findall(r"incident `([^`]+)`", json.dumps(message, ensure_ascii=False)))
        arrived[(incident_id, step_of(message["text"]))] += 1
    print("\nmessages in the order of their arrival:")
    for message in slack.taken:
        print("  " + message["text"].partition("\n")[0])
    missing = []
    for incident_id, steps in spool["told"].items():
        for step in dict.fromkeys(steps):
            count = arrived[(incident_id, step)]
            told_as_critical = step == "escalated" and not count  # by its first message, which settles both
            if not count and not told_as_critical:
                missing.append(f"{incident_id} {step}")
    told = {incident_id for incident_id, _ in arrived}
    silent = [f"{i} ({one.severity})" for i, one in incidents.items() if i not in told and one.severity != "none"]
    counted = re.findall(r"^stallwatch_output_deliveries_total\{(.*?)\} (\S+)", metrics, re.MULTILINE)
    print(f"attempts by Slack's mood: {dict(slack.attempts)}; daemon killed {story.kills} times")
    print(f"incidents {len(told)}, different messages {len(arrived)}, arrived {arrived.total()}, ", end="")
    print(f"duplicates {arrived.total() - len(arrived)}; still in the queue {len(spool['queue'])}")
    print(f"missing: {missing or 'none'}; incidents never told: {silent or 'none'}")
    print("the last daemon's own count: " + ", ".join(f"{labels} {value}" for labels, value in counted))
    return 1 if missing or silent or spool["queue"] else 0


if __name__ == "__main__":
    sys.exit(main())
