"""The real outside world: DNS, sockets, disks, NVML, the training interpreter, running ranks. All with deadlines."""
