"""Names of incidents: job, epoch, owner and ordinal, no time, so that every node of a job arrives at the same one."""

import re

from stallwatch.model.snapshot import JobKey

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")


def incident_id(job: JobKey, ordinal: int) -> str:
    """Return a name that is a safe folder name: "llama-70b-3f2a9c1d-1". Epoch and owner are hashed."""
    import hashlib  # with it comes OpenSSL, 0.9 MiB, in a child that makes no names

    whose = f"\0{job.owner}" if job.owner else ""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "_", job.training_job).strip("._-")[:60] or "job"
    if readable != job.training_job:
        # Two jobs whose names differ only in what was replaced or cut stay apart.
        epoch = hashlib.sha256(f"{job.training_job}\0{job.epoch}{whose}".encode()).hexdigest()[:8]
    else:
        epoch = hashlib.sha256(f"{job.epoch}{whose}".encode()).hexdigest()[:8]
    return f"{readable}-{epoch}-{ordinal}"


def is_incident_id(text: str) -> bool:
    """What people and web requests send is looked up as a folder: nothing but a plain name may pass."""
    return bool(_ID.fullmatch(text))


def ordinal_of(name: str) -> int:
    """Return the ordinal at the end of an id, 0 where there is none."""
    tail = name.rpartition("-")[2]
    return int(tail) if tail.isdecimal() else 0


def shared_name(job: JobKey) -> str:
    """Return the part of a job's incidents' ids that they have in common, on all nodes."""
    return incident_id(job, 0).removesuffix("-0")
