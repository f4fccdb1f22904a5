"""A rank program: rank 1 lives in a network namespace of its own, as in a container without the host's network."""

import ctypes
import os

from stallwatch.selftest import rank

_CLONE_NEWNET = 0x40000000

if os.environ["RANK"] == "1" and ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
    raise OSError(ctypes.get_errno(), "unshare")
os._exit(rank.main())
