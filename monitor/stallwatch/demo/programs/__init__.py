"""Training programs that go wrong, as real ones do. Named for what they are about, not for what happens to them:
file names show in stacks, and the daemon is not told the fault."""
