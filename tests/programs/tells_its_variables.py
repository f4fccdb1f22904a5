"""Writes what torchrun's variables say, a line a rank, and ends with the exit code in argument 1; rank 1 alone with
the one in argument 2, if there is one; a rank that got "wait" is ended by others."""

import os
import signal
import sys

names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
print(*(os.environ[name] for name in names), os.environ["GREETING"], flush=True)
code = sys.argv[2] if os.environ["RANK"] == "1" and len(sys.argv) > 2 else sys.argv[1]
if code == "wait":
    signal.pause()
sys.exit(int(code))
