"""What the host and its container grant: files, memory, shared memory, locks, ptrace, clocks."""
