"""How slow_rank.py may be slow, and what is so by design; without torch, for whoever runs it."""

BY = ("sleep", "cpu", "gil", "loader", "gpu", "beside", "creep", "stops")
# What is so by design, and nobody's fault: of these nobody is to be told. Some have an --extra: what rank 0 logs,
# always (logs), another rank every few steps (wander), one rank that gets what the others lose (surge), how much each
# rank's steps vary (jitter, and heavy: a few steps much more). Stages hand on to each other, the first and the last
# with half the work (pipeline); the first steps are longer, on one rank more than on others (warmup).
BY_DESIGN = (
    "logs", "evaluates", "saves", "uneven", "experts", "wander", "surge", "jitter", "heavy", "pipeline", "warmup",
)  # fmt: skip
