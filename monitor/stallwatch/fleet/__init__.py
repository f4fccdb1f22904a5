"""Several nodes judged as one: each daemon puts a summary of its evidence in a meeting place, and one of them merges,
judges and tells.

`place` is what a meeting place can do, `redis_place` and `directory_place` are the two there are; `member` decides what
this node wants of it, and who speaks (pure); `link` carries that out through children (`child`, `judge_child`); what is
in the meeting place is signed (`seal`) and trusted for no more than its node may say (`summary`).
"""
