"""A rank without torch that steps for ever. SIGUSR1 makes it wait for a licence instead, SIGUSR2 ends it with code 3.
With arguments, the rank in argument 1 fails in the job's first life and goes to wait in its second."""

import os
import signal
import sys
import time

import stallwatch

wanted = ""


def want(number: int, frame: object) -> None:
    global wanted
    wanted = "licence" if number == signal.SIGUSR1 else "end"


def wait_for_licence() -> None:
    while True:
        time.sleep(3600)


signal.signal(signal.SIGUSR1, want)
signal.signal(signal.SIGUSR2, want)
beat = stallwatch.attach()
print("ready" if beat else "not attached", flush=True)
fails = sys.argv[1:] == [os.environ["RANK"]]
for step in range(1_000_000):
    beat.step()
    time.sleep(0.05)
    if fails and step == 60:
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            sys.exit(3)
        wanted = "licence"
    if wanted == "licence":
        wait_for_licence()
    if wanted == "end":
        sys.exit(3)
