"""What a thread waits for by the kernel's word: the symbol in /proc/<pid>/wchan names the function it sleeps in."""

import re
from typing import Literal

KernelWait = Literal[
    "futex",
    "sleep",
    "poll",
    "pipe",
    "pipe_write",
    "socket",
    "file",
    "file_lock",
    "child",
    "vfork",
    "stopped",
    "gpu",
    "semaphore",
]

# Symbols differ between kernel versions and carry suffixes such as ".constprop.0"; order matters.
_SYMBOLS: tuple[tuple[KernelWait, re.Pattern[str]], ...] = (
    ("stopped", re.compile(r"do_signal_stop|ptrace_stop|do_jobctl_trap|ptrace_notify")),
    ("futex", re.compile(r"futex")),
    ("sleep", re.compile(r"nanosleep|nsleep|^sigtimedwait|do_sigtimedwait")),
    ("vfork", re.compile(r"^kernel_clone|wait_for_vfork_done|^_do_fork|^do_fork")),
    ("child", re.compile(r"^do_wait\b|^kernel_wait|^do_wait4|^kernel_waitid|^do_wait_pid")),
    ("semaphore", re.compile(r"semtimedop|semctl|do_msgrcv|^mq_timed")),
    ("file_lock", re.compile(r"flock|locks_lock|posix_lock|fcntl_setlk|lockd|nlm")),
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
        r"|balance_dirty|lock_page|writeback|sync_fs|do_truncate|dio_|iomap")),
)  # fmt: skip


def kernel_wait(wchan: str | None, state: str | None) -> KernelWait | None:
    """Name the kind of wait, or None when the thread runs, or sleeps in something that says nothing."""
    if state in ("T", "t"):
        return "stopped"
    if not wchan or wchan == "0":
        return None
    for kind, symbol in _SYMBOLS:
        if symbol.search(wchan):
            return kind
    # Uninterruptible sleep is a file system or a device in nearly every case.
    return "file" if state == "D" else None
