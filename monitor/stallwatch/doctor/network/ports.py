"""Ports: the rendezvous' own, and NCCL RAS'."""

from typing import ClassVar

from stallwatch.doctor.check import Inapplicable, Undetermined, finding
from stallwatch.doctor.check_result import Area, FindingRecord, count
from stallwatch.doctor.network.host_names import is_own_address
from stallwatch.doctor.process_table import SocketHolder, holders_of, stat_of
from stallwatch.doctor.surroundings import Surroundings
from stallwatch.formats.tcp_table import LISTEN, TIME_WAIT, TcpSocket, parse_tcp
from stallwatch.model.launchers import PROGRAMS

_DEFAULT_PORT = 29500  # torchrun, init_process_group, DeepSpeed
_RAS_PORT = 28028  # NCCL_RAS_ADDR


class MasterPort:
    """Reads the kernel's table of sockets and who holds them, then tries to listen; Inapplicable where the master is
    another node."""

    name: ClassVar[str] = "port_taken"
    area: ClassVar[Area] = "network"
    looks_for: ClassVar[str] = (
        "MASTER_PORT (or 29500) held by another process: pid, command, stale rank or zombie; a free port"
    )

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        port, chosen = self._port(surroundings)
        sockets = _tcp_sockets(surroundings)
        listening = [socket for socket in sockets if socket.port == port and socket.state == LISTEN]
        if listening:
            holders = holders_of(surroundings.proc, {socket.inode for socket in listening})
            return self._taken(surroundings, port, chosen, holders, listening[0].uid)
        waiting = sum(socket.port == port and socket.state == TIME_WAIT for socket in sockets)
        error = surroundings.sockets.can_listen(port)
        if error:
            return (
                finding(
                    self, "error" if chosen else "info", f"port {port}",
                    seen=f"Port {port} cannot be listened on: {error}; nobody in this network namespace listens.",
                    why="The rendezvous cannot begin. A port below 1024 needs root; a port of the ephemeral range may "
                    "be a client's.",
                    remedy=f"export MASTER_PORT={surroundings.sockets.free_port()}",
                ),
            )  # fmt: skip
        if waiting and chosen:
            return (
                finding(
                    self, "info", f"port {port}",
                    seen=f"{count(waiting, 'connection')} of an earlier job on port {port} "
                    f"{'is' if waiting == 1 else 'are'} in TIME_WAIT.",
                    why="They end by themselves within a minute and do not stop PyTorch's store, which reuses the "
                    "address.",
                    remedy="nothing; do not change tcp_fin_timeout, which has no effect on TIME_WAIT",
                    source="tcp(7); tried with torch 2.13",
                ),
            )  # fmt: skip
        return ()

    def _port(self, surroundings: Surroundings) -> tuple[int, bool]:
        said = surroundings.variable("MASTER_PORT")
        if said is None:
            return _DEFAULT_PORT, False
        if not said[0].isdigit() or not 0 < int(said[0]) < 65536:
            raise Undetermined(f"MASTER_PORT={said[0]} is no port")
        address = surroundings.variable("MASTER_ADDR")
        if address is not None and is_own_address(surroundings, address[0]) is False:
            raise Inapplicable(f"MASTER_ADDR={address[0]} is another node")
        return int(said[0]), True

    def _taken(
        self, surroundings: Surroundings, port: int, chosen: bool, holders: tuple[SocketHolder, ...], uid: int
    ) -> tuple[FindingRecord, ...]:
        live = {rank.pid for rank in surroundings.ranks if rank.alive}
        launchers = {stat.parent_pid for pid in live if (stat := stat_of(surroundings.proc, pid))}
        own = [holder for holder in holders if holder.pid in live | launchers]
        # The store of the job that runs here is held by its rank 0 or its agent: that is how it should be.
        if own and (not chosen or self._is_of_running_job(surroundings, port)):
            return ()
        if not chosen:
            return (
                finding(
                    self, "info", f"port {port}",
                    seen=f"The default port {port} is held by {_names(surroundings, holders, uid)}.",
                    why="A job started without --master-port, or by a library that hard-codes 29500, finds it taken.",
                    remedy=f"export MASTER_PORT={surroundings.sockets.free_port()}  (torchrun: "
                    "--rdzv-endpoint=localhost:0)",
                ),
            )  # fmt: skip
        stale = [holder for holder in holders if _is_stale(surroundings, holder)]
        return (
            finding(
                self, "error", f"port {port}",
                seen=f"MASTER_PORT={port} is held by {_names(surroundings, holders, uid)}.",
                why="A rank of an earlier run that did not end: the new job fails with EADDRINUSE, or worse, joins the "
                "old store and waits for ever."
                if stale
                else "The store of the new job cannot listen: EADDRINUSE on rank 0, and the others time out.",
                remedy=(f"kill {' '.join(str(holder.pid) for holder in stale)}; or " if stale else "")
                + f"export MASTER_PORT={surroundings.sockets.free_port()}  (a port free now), on every node the same",
                source="pytorch#126510, torchtune#392",
            ),
        )  # fmt: skip

    def _is_of_running_job(self, surroundings: Surroundings, port: int) -> bool:
        return any(rank.alive and rank.environment.get("MASTER_PORT") == str(port) for rank in surroundings.ranks)


# Who starts ranks and stays as their parent: launchers, their and schedulers' daemons, shells. Anything else that is a
# rank's parent has adopted it (init, systemd, tini, a container's shim), for its launcher has gone.
_PARENTS = (
    *PROGRAMS, "pdsh", "mpi", "orte", "prte", "hydra", "pmi", "slurm", "ray", "kubelet", "python", "bash", "sh", "dash",
    "zsh", "fish", "tcsh", "sudo", "su", "timeout", "nohup", "numactl", "nsys",
)  # fmt: skip


def _is_stale(surroundings: Surroundings, holder: SocketHolder) -> bool:
    """A rank, or the remains of one, that has no launcher: adopted, a zombie, or stuck."""
    return holder.state in ("Z", "D", "X") or _is_orphan(surroundings, holder)


def _is_orphan(surroundings: Surroundings, holder: SocketHolder) -> bool:
    if "RANK" not in holder.environment:
        return False
    parent = stat_of(surroundings.proc, holder.parent_pid)
    return holder.parent_pid == 1 or (parent is not None and not parent.command.startswith(_PARENTS))


def _names(surroundings: Surroundings, holders: tuple[SocketHolder, ...], uid: int) -> str:
    if not holders:
        return f"a process of uid {uid} that is not visible from here (another user's, or of another PID namespace)"
    return ", ".join(_describe(surroundings, holder) for holder in holders[:4])


def _describe(surroundings: Surroundings, holder: SocketHolder) -> str:
    notes = {"Z": "zombie: its main thread has ended, another still holds the port", "D": "in an uninterruptible wait",
             "T": "stopped"}.get(holder.state, "")  # fmt: skip
    if _is_orphan(surroundings, holder):
        notes = ", ".join(
            filter(None, (f"rank {holder.environment['RANK']} of an earlier run, its launcher is gone", notes))
        )
    command = holder.command if len(holder.command) <= 120 else holder.command[:117] + "…"
    return f"pid {holder.pid} ({command})" + (f", {notes}" if notes else "")


class RasPort:
    """Reads who listens at the port of NCCL_RAS_ADDR, else 28028; a rank that does is as it should be."""

    name: ClassVar[str] = "ras_port"
    area: ClassVar[Area] = "network"
    looks_for: ClassVar[str] = "NCCL RAS' port 28028 held by a program that is no rank, or by another user's job"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """An info where somebody who is no rank listens at the port: RAS of the next job cannot be asked."""
        said = surroundings.variable("NCCL_RAS_ADDR")
        text = said[0].rsplit(":", 1)[-1] if said else ""
        port = int(text) if text.isdigit() else _RAS_PORT
        listening = [socket for socket in _tcp_sockets(surroundings) if socket.port == port and socket.state == LISTEN]
        if not listening:
            return ()
        holders = holders_of(surroundings.proc, {socket.inode for socket in listening})
        live = {rank.pid for rank in surroundings.ranks if rank.alive}
        if any(holder.pid in live or "RANK" in holder.environment for holder in holders):
            return ()
        return (
            finding(
                self, "info", f"port {port}",
                seen=f"NCCL RAS' port {port} is held by {_names(surroundings, holders, listening[0].uid)}.",
                why="A new job's RAS cannot be asked on this node; the job itself runs.",
                remedy=f"export NCCL_RAS_ADDR=localhost:{surroundings.sockets.free_port()}",
                source="NCCL user guide, NCCL_RAS_ADDR",
            ),
        )  # fmt: skip


def _tcp_sockets(surroundings: Surroundings) -> tuple[TcpSocket, ...]:
    """Every TCP socket of our network namespace."""
    return tuple(
        socket for name in ("tcp", "tcp6") for socket in parse_tcp(surroundings.text(f"/proc/net/{name}") or "")
    )
