"""Which children a rank waits for: the one of its system call, or the workers of its data loader. What others of them
do (a tracker's service, a collector of metrics) is their own."""

from msgspec.structs import replace

from stallwatch.diagnosis.activity.threads import RankLook, ThreadLook
from stallwatch.diagnosis.frames.code_origin import code_origin
from stallwatch.model.evidence import ChildProcess, ThreadStack
from stallwatch.model.verdict import Where

_LOADS = "torch.utils.data._utils.worker"


def only_awaited(look: RankLook, kernel: ThreadLook, where: Where) -> RankLook:
    """Given a look and the judged thread in it, return the look with none but the children that this one may wait for,
    and those that these have started; as it is where nothing tells which they are."""
    if look.process is None:
        return look
    children = look.process.children
    asked = {child.pid for child in children if kernel.awaited_child == (child.namespace_pid or child.pid)}
    if where == "dataloader":
        workers = {pid for pid, threads in look.children if any(_is_worker(thread) for thread in threads)}
        # Of a worker without a stack nothing tells that it is one.
        dark = {child.pid for child in children} - {pid for pid, threads in look.children if threads}
        asked = workers | dark if workers else set()
    kept = _with_descendants(asked, children)
    if not kept:
        return look
    return look._replace(
        children=tuple((pid, threads) for pid, threads in look.children if pid in kept),
        process=replace(look.process, children=tuple(child for child in children if child.pid in kept)),
    )


def _is_worker(thread: ThreadStack) -> bool:
    return any(code_origin(frame.filename).module.startswith(_LOADS) for frame in thread.frames)


def _with_descendants(pids: set[int], children: tuple[ChildProcess, ...]) -> set[int]:
    """Nearest first, as children are listed."""
    kept = set(pids)
    for child in children:
        if child.parent_pid in kept:
            kept.add(child.pid)
    return kept
