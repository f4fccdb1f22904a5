"""A rank program: rank 3 waits for something before it comes to meet the others."""

import os
import threading

from stallwatch.selftest import rank

if os.environ["RANK"] == "3":
    threading.Event().wait()
os._exit(rank.main())
