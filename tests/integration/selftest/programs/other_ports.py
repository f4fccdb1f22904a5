"""A rank program: what the ranks listen on from now on are ports 30000 to 31000, which the test has blocked."""

import os

from stallwatch.selftest import rank

with open("/proc/sys/net/ipv4/ip_local_port_range", "w", encoding="ascii") as file:
    file.write("30000 31000")
os._exit(rank.main())
