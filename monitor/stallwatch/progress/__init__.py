"""What moves: the one place that decides it. Pure, beneath detectors and diagnosis, which ask it; so does telling.

Two observations of a rank give *moves*, *stands* or *unknown*, with the reasons (`progress`); the words of a hook's
record tell it tick by tick (`ticks`), counters of processes and of their threads where there is no hook (`outside`,
`thread_levels`); ranks together make a job that moves or not (`job_progress`); and what a rank does tells how long it
may stand before anybody is told (`patience`). What CPU time means to all of them is in `cpu_time`.
"""
