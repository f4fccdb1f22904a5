"""What a thread waits for by the kernel's word: the symbol in /proc/<pid>/wchan names the function it sleeps in."""

import re
from typing import Literal

from stallwatch.model.process import STOPPED, TERMINAL
from stallwatch.model.verdict import Where

KernelWait = Literal[
    "futex",
    "sleep",
    "signal",
    "poll",
    "pipe",
    "pipe_write",
    "terminal",
    "socket",
    "file",
    "file_lock",
    "child",
    "vfork",
    "stopped",
    "gpu",
    "semaphore",
    "memory",
]

# Symbols differ between kernel versions and carry suffixes such as ".constprop.0"; order matters.
_SYMBOLS: tuple[tuple[KernelWait, re.Pattern[str]], ...] = (
    ("stopped", re.compile(r"do_signal_stop|ptrace_stop|do_jobctl_trap|ptrace_notify")),
    ("futex", re.compile(r"futex|^do_wait_intr_irq")),  # the latter: an eventfd, by which a thread says that it is done
    ("sleep", re.compile(r"nanosleep|nsleep")),
    ("signal", re.compile(r"sys_pause|sigsuspend|sigtimedwait")),
    ("vfork", re.compile(r"^kernel_clone|wait_for_vfork_done|^_do_fork|^do_fork")),
    ("child", re.compile(r"^do_wait\b|^kernel_wait|^do_wait4|^kernel_waitid|^do_wait_pid")),
    ("semaphore", re.compile(r"semtimedop|semctl|do_msgrcv|^mq_timed")),
    ("file_lock", re.compile(r"flock|locks_lock|posix_lock|fcntl_setlk|lockd|nlm")),
    ("memory", re.compile(r"mem_cgroup_oom|oom_synchronize")),
    ("gpu", re.compile(r"^nv_|^nvidia|^uvm_|^rm_|^os_acquire|^kfd_|amdgpu|^dma_fence")),
    ("pipe_write", re.compile(r"pipe_write")),
    ("pipe", re.compile(r"pipe_|wait_for_partner|fifo_open")),
    ("socket", re.compile(
        r"sk_wait|inet_|tcp_|unix_|skb_|wait_woken|sock_|vsock_|netlink_|__skb_|rdma_|^ib_|ucma_|svc_recv")),
    ("poll", re.compile(r"poll|^do_select|epoll|ep_wait")),
    ("file", re.compile(
        r"nfs|^rpc_|fuse|request_wait_answer|ceph|^ll_|^cl_|^osc_|^ptlrpc|lustre|gpfs|cxi|beegfs|weka|cifs|smb|ocfs|gfs2"
        r"|folio_|wait_on_page|wait_on_buffer|^io_schedule|^bit_wait|blk_|blkdev|submit_bio|ext4|xfs|btrfs|jbd2|f2fs|zfs"
        r"|^cv_wait|zio_|inode|dentry|d_alloc|^iterate_dir|lookup_slow|path_|do_fsync|vfs_|rwsem_down|autofs|overlay|^ovl_"
        r"|balance_dirty|lock_page|writeback|sync_fs|do_truncate|dio_|iomap|^read_events|io_cqring_wait")),
)  # fmt: skip

_FLOCK = re.compile(r"flock_lock|locks_lock_(?:inode|file)_wait")

# The kernel lets it wait where its group says so (cgroup v1: memory.oom_control), or till another is killed.
WAITS_FOR_MEMORY = "waits for memory, of which its control group has none left,"
# Where such a wait is, and a predicate for a sentence.
KERNEL_WORDS: dict[KernelWait, tuple[Where, str]] = {
    "futex": ("lock", "waits for a lock"),
    "semaphore": ("lock", "waits for a semaphore shared with other processes"),
    "file_lock": ("lock", "waits for a lock on a file"),
    "sleep": ("user_code", "sleeps"),
    "signal": ("user_code", "waits for a signal"),
    "poll": ("socket", "waits for a socket or pipe"),
    "socket": ("socket", "waits for a socket"),
    "pipe": ("filesystem", "waits for the other end of a pipe"),
    "pipe_write": ("filesystem", "writes into a pipe that is full and that nobody reads"),
    "terminal": ("filesystem", "waits for a terminal"),
    "file": ("filesystem", "waits for the file system"),
    "child": ("user_code", "waits for a child process"),
    # The child has not come to exec: what keeps it there is the storage that the program lies on.
    "vfork": ("filesystem", "is held by the kernel until a child that it started can run"),
    "gpu": ("gpu_sync", "waits in the GPU's driver"),
    "memory": ("user_code", WAITS_FOR_MEMORY),
}

# nanosleep() that was interrupted, as by a look that held its thread: the kernel goes on with it by restart_syscall, of
# which no function is left on the stack (Linux 6.18).
_RESTARTED = "do_syscall_64"


def kernel_wait(wchan: str | None, state: str | None, waits_on: str = "") -> KernelWait | None:
    """Name the kind of wait, or None when the thread runs, or sleeps in something that says nothing."""
    if state in STOPPED:
        return "stopped"
    if waits_on.startswith(TERMINAL):
        return "terminal"  # its driver sleeps as a socket does
    if not wchan or wchan == "0":
        return None
    for kind, symbol in _SYMBOLS:
        if symbol.search(wchan):
            return kind
    if state == "D":  # a file system or a device in nearly every case
        return "file"
    return "sleep" if wchan == _RESTARTED else None


def is_of_flock(wchan: str | None) -> bool:
    """Whether it waits for a lock of flock(2), which belongs to the open file and so to forked children, too. One of
    fcntl(2) or lockf(3) waits in fcntl_setlk (Linux 6.18), and is its process's alone."""
    return bool(wchan and _FLOCK.search(wchan))


def stored_at(wchan: str | None, state: str | None, waits_on: str) -> str:
    """Given what the call of a thread is about, return the file system or server that it waits for: a named pipe's is
    none, whose name lies there and whose other end is a process."""
    return "" if kernel_wait(wchan, state, waits_on) in ("pipe", "pipe_write") else waits_on
