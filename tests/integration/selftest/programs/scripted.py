"""A rank program without torch: it tells what the test wants to be told, and ends as the test wants it to end.

FAKE_NEEDS=NAME=VALUE: all_reduce fails unless the environment says so. FAKE_SICK=2: it fails where GPU 2 takes part
with others. FAKE_END=1:exit:3, 1:signal:9, 1:crash:words, 1:silent:5, 1:hang, 1:teardown:11: how it ends.
"""

import os
import sys
import threading

from stallwatch.selftest import rank
from stallwatch.selftest.worker.step_lines import IMPORT, StepReport

options = rank._arguments()
number = int(os.environ["RANK"])
devices = (options.devices or "").split(",")
end = os.environ.get("FAKE_END", "::").split(":")
ending, value = (end[1], end[2]) if end[0] == str(number) else ("", "")
if ending == "silent":
    sys.exit(int(value))

report = StepReport(number, options.report)
for step in (IMPORT, "device", "store", "meeting", "init"):
    report.begin(step, None)
    report.end("ok", "", **({"backend": options.backend, "pid": os.getpid()} if step == "device" else {}))
report.begin("all_reduce", 8)
if ending == "exit":
    os._exit(int(value))
if ending == "signal":
    os.kill(os.getpid(), int(value))
if ending == "crash":
    report.crash(value)
    sys.exit(70)
if ending == "hang":
    threading.Event().wait()
name, _, wanted = os.environ.get("FAKE_NEEDS", "").partition("=")
sick = os.environ.get("FAKE_SICK")
if (name and os.environ.get(name) != wanted) or (sick in devices and len(devices) > 1):
    report.end("error", "NCCL error: unhandled system error")
    sys.exit(10)
report.end("ok")
report.finished()
if ending == "teardown":
    os.kill(os.getpid(), int(value))
