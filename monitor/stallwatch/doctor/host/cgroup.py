"""Files of the cgroup we run in, version 1 or 2."""

from stallwatch.doctor.surroundings import Surroundings


def cgroup_file(surroundings: Surroundings, controller: str, name: str) -> str | None:
    """The text of a controller's file; None when there is none. In a container our cgroup is the mount's root."""
    for prefix in _folders(surroundings, controller):
        text = surroundings.text(f"{prefix}/{name}")
        if text is not None:
            return text
    return None


def cgroup_value(surroundings: Surroundings, controller: str, *names: str) -> int | None:
    """The first of several files that holds a number; "max" is no number."""
    for name in names:
        text = (cgroup_file(surroundings, controller, name) or "").strip()
        if text.isdigit():
            return int(text)
    return None


def _folders(surroundings: Surroundings, controller: str) -> list[str]:
    folders = []
    for line in (surroundings.text("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        path = path.rstrip("/")
        if controllers == "":
            folders += [f"/sys/fs/cgroup{path}", "/sys/fs/cgroup"]
        elif controller in controllers.split(","):
            folders += [f"/sys/fs/cgroup/{controllers}{path}", f"/sys/fs/cgroup/{controller}{path}"]
            folders += [f"/sys/fs/cgroup/{controller}"] if path else []
    return folders
