"""A /proc of our own making, for readers that take its root as an argument."""

import shutil
from pathlib import Path

STATUS = (
    "Name:\tpython\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t7\t7\t7\t7\nGroups:\t7 8\n"
    "TracerPid:\t{tracer}\nNSpid:\t{nspid}\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n"
)


def stat_line(
    pid: int, *, command: str = "python", state: str = "S", parent: int = 1, terminal: int = 0, ticks: int = 30,
    start: int = 1000, pages: int = 10, exit_status: int = 0, threads: int = 1, reaped: int = 0,
    group: int = 1, session: int = 1, stack: int = 0,
) -> str:  # fmt: skip
    head = f"{pid} ({command}) {state} {parent} {group} {session} {terminal} -1 0 0 0 0 0"
    return (
        f"{head} {ticks - 10} 10 {reaped} 0 20 0 {threads} 0 {start} 4096 {pages} "
        + " ".join([*["0"] * 3, str(stack), *["0"] * 23])
        + f" {exit_status}\n"
    )


class FakeProc:
    """Processes as folders; what is not given is as the kernel shows a sleeping process."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __str__(self) -> str:
        return str(self.root)

    def add(
        self,
        pid: int,
        *,
        environment: str = "",
        maps: str = "",
        children: tuple[int, ...] = (),
        uid: int = 1000,
        tracer: int = 0,
        namespace_pids: str = "",
        io: str = "rchar: 5\nwchar: 6\n",
        wchan: str = "futex_do_wait",
        command: str = "python",
        state: str = "S",
        parent: int = 1,
        start: int = 1000,
        terminal: int = 0,
        ticks: int = 30,
        reaped: int = 0,
        pages: int = 10,
        argv: tuple[str, ...] = ("python", "train.py"),
        group: int = 1,
        session: int = 1,
        stack: int = 0,
        personality: str = "00000000",
        threads: tuple[str, ...] = ("python",),
    ) -> None:
        folder = self.root / str(pid)
        task = folder / "task" / str(pid)
        task.mkdir(parents=True, exist_ok=True)
        line = stat_line(
            pid, command=command, state=state, parent=parent, start=start, terminal=terminal, ticks=ticks, pages=pages,
            reaped=reaped, group=group, session=session, stack=stack, threads=len(threads),
        )  # fmt: skip
        (folder / "stat").write_text(line)
        (task / "stat").write_text(line)
        (task / "children").write_text(" ".join(map(str, children)))
        for place, name in enumerate(threads):
            thread = folder / "task" / str(pid + 10_000 * place)
            thread.mkdir(exist_ok=True)
            (thread / "comm").write_text(f"{name}\n")
        (folder / "status").write_text(STATUS.format(uid=uid, tracer=tracer, nspid=namespace_pids or pid))
        (folder / "environ").write_text(environment.replace(" ", "\0") + "\0")
        (folder / "maps").write_text(maps)
        (folder / "cmdline").write_text("".join(f"{word}\0" for word in argv))
        (folder / "wchan").write_text(wchan)
        (folder / "io").write_text(io)
        (folder / "personality").write_text(f"{personality}\n")

    def remove(self, pid: int) -> None:
        shutil.rmtree(self.root / str(pid))
