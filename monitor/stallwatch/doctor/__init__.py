"""What is misconfigured on this node, before or after a run: one small class per check, the outside world handed in.

`checks.CHECKS` is the tuple of all checks, `examine.examine` runs them with deadlines, `describe.checks_table` prints
them as Markdown. Nothing here changes the node or a job.
"""
