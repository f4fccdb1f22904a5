"""File systems that several nodes share, by the names that mountinfo has for them."""

from typing import Final

_SHARED: Final = frozenset(
    ("nfs", "nfs4", "lustre", "ceph", "cifs", "smb3", "smbfs", "beegfs", "gpfs", "wekafs", "9p", "virtiofs", "ocfs2",
     "gfs2", "afs", "pvfs2", "panfs", "glusterfs")
)  # fmt: skip


def is_shared(kind: str) -> bool:
    """Whether the same source is the same place on every node. Of FUSE ("fuse.glusterfs") the kind does not tell."""
    return kind in _SHARED


def is_fuse(kind: str) -> bool:
    """Whether a program serves it, which nearly always speaks with a server."""
    return kind == "fuse" or kind.startswith("fuse.")
