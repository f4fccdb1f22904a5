"""What is sent of a rank's activity is all of it."""

import msgspec

from stallwatch.diagnosis.activity.flat import FlatActivity, flatten, unflatten
from stallwatch.diagnosis.activity.rank_activity import RankActivity
from stallwatch.model.evidence import CodeFrame, SourceBlock
from stallwatch.model.hook_report import Handled, NamedCall
from stallwatch.model.verdict import Fact, Frame
from tests.builders.rank_evidence import STDLIB

LINE, STACK = Frame("/srv/job/train.py", 7, "step"), (CodeFrame("wait", f"{STDLIB}/threading.py", 327),)
WHOLE = FlatActivity(
    rank=2, host="node0", pid=700, where="gpu_sync", frame=LINE, detail="waits for its GPU", thread="MainThread",
    os_thread_id=700, stack=STACK, in_collective=True, collective="all_reduce", gpu_sync=True, gpu_guessed=True,
    in_teardown=True, exception="ValueError: no", exception_frame=LINE, exception_is_consequence=True,
    exception_swallowed=True, handled=Handled("ValueError", ()), logged_beside="OSError",
    named_call=NamedCall("recv", True, 1, "7"), call_members=(0, 1), call_group_name="2",
    blocks=(("train.py", "step", SourceBlock("for", 5, "for batch in data:")),), ends_by_itself="sleep",
    awaited_frame=LINE, awaited_detail="waits", awaited_stack=STACK, beside_frame=LINE, beside_detail="sleeps",
    polls="while True:", moving=True, io_known=True, cpu_share=0.5, waits_for_children=True, child_pids=(8,),
    child_pid=8, child_frame=LINE, child_detail="reads", child_where="socket",
    child_in_collective=True, stopped_child=9, uses_gpu=True, stopped=True, frozen=True,
    tracer_pid=4, uninterruptible=True, gone=True, exit_code=1, exit_signal=9, out_of_memory=True, joined=True,
    phase="eval", waits_on="nfs4 filer:/vol", shared_lock="file", lock_holder_pid=5, lock_is_inherited=True,
    why=(Fact("it stands", "py-spy"),),
)  # fmt: skip


def test_every_field_comes_back() -> None:
    blank = FlatActivity(rank=0)
    same = [name for name in blank.__struct_fields__ if getattr(blank, name) == getattr(WHOLE, name)]
    assert same == ["in_store_or_init"], "a field that the example leaves out"
    assert flatten(unflatten(WHOLE)) == WHOLE
    init = msgspec.structs.replace(WHOLE, where="init", gpu_sync=False, in_store_or_init=True)
    assert flatten(unflatten(init)) == init


def test_nothing_is_known_of_a_blank_one() -> None:
    assert unflatten(FlatActivity(rank=3)) == RankActivity(3)
    assert flatten(RankActivity(3)) == FlatActivity(rank=3)
