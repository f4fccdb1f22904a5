"""The privileged side: the one process that holds the capabilities. It has no network, and offers verbs.

    python -P -m stallwatch.node.privileged_server --inherit FD                for the daemon that started it
    python -P -m stallwatch.node.privileged_server --listen PATH --user NAME   a unit of its own

The daemon, which talks to the network, holds no capability, and cannot take any from here: a request names a verb,
ranks by pid and start ticks, and numbers that are bounded; never a program, a module, a path, a user, a descriptor.
Which py-spy is run, what directories hold records, what is read is this side's own: its Settings, JSON on standard
input. Which processes are ranks, and who owned what of those that are gone, its own reader of ranks remembers in a file
in memory that lives here, so a new reader still knows. Evidence goes back over a socket, of which the daemon gets the
other end.

What it starts is forked from it, as long as that can be imported: that is in memory once (this side with the readers
of ranks and of the node took 29.5 MiB as programs of their own, and 23.7 so), and a look need not import for 0.17 s of
processor first. So it has one thread. By itself it needs the standard library only.
"""

import argparse
import contextlib
import json
import os
import pwd
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from stallwatch.node.children import Main, OwnChild, OwnFork, Talking, imported, module_of_ours
from stallwatch.node.free_lists import FreeLists
from stallwatch.node.no_network import give_up_network
from stallwatch.node.privileged_process import HELD_BYTES, PrivilegedProcess
from stallwatch.node.privileged_verbs import MOST_RANKS, SENSOR, VERBS, NotAllowed, Verb, number_of
from stallwatch.node.run_once import RunOnce

MESSAGE_LIMIT_BYTES = 1 << 16
MOST_CONNECTIONS = 4  # of which three are of a daemon that is going, or of root
_MOST_LOOKS_A_MINUTE = 60  # at one rank; an incident takes some of them, twelve at most
_MOST_OF_USER = 4 * MOST_RANKS  # processes that are looked at in a minute
_END_SECONDS = 2.0  # between SIGTERM and SIGKILL
_RENEW_SECONDS = 10.0
_BETWEEN_RENEWALS_SECONDS = 5.0
_LAST_SECONDS = 5.0  # for what is under way when this process has to end
_PEER = struct.Struct("3i")  # struct ucred: pid, uid, gid
_LISTEN_FD = 3  # sd_listen_fds(3)


class Connection:
    """One daemon, and the children that it asked for; they end with it."""

    def __init__(self, connection: socket.socket, side: "PrivilegedSide") -> None:
        connection.setblocking(False)
        self.socket = connection
        self._side = side
        self._children: dict[int, PrivilegedProcess] = {}
        self._number = 0
        self.open = True

    @property
    def is_over(self) -> bool:
        """Whether it is closed and no child of it is left."""
        return not self.open and not self._children

    def take(self) -> None:
        """Answer what has been asked. What makes no sense is refused with a sentence, or not heard."""
        for _ in range(64):
            try:
                data, descriptors, flags, _ = socket.recv_fds(
                    self.socket, MESSAGE_LIMIT_BYTES, 16, socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
                )
            except BlockingIOError:
                return
            except OSError:
                self.close()
                return
            for descriptor in descriptors:  # nothing is wanted of anybody
                os.close(descriptor)
            if not data:
                self.close()
                return
            if flags & socket.MSG_TRUNC:
                continue
            try:
                request = json.loads(data)
            except (ValueError, RecursionError):
                continue
            if isinstance(request, dict):
                self._answer(request)
            if self._side.renews_now:
                return

    def _answer(self, request: dict[str, Any]) -> None:
        number = request.get("number")
        if type(number) is not int:
            number = 0
        try:
            if request.get("verb") == "renew":
                self._side.renew()
                return
            if request.get("verb") == "end":
                child = self._children.get(number_of(request, "child", 1, 1 << 62))
                if child is not None:
                    child.end(request.get("force") is True)
                return
            identifier, theirs = self._start(request)
        except NotAllowed as error:
            self._tell({"number": number, "errno": 1, "error": str(error)})
        except OSError as error:
            self._tell({"number": number, "errno": error.errno, "error": error.strerror})
        else:
            with theirs:
                self._tell(
                    {"number": number, "child": identifier, "pid": self._children[identifier].process.pid}, theirs
                )

    def _start(self, request: dict[str, Any]) -> tuple[int, socket.socket]:
        name = request.get("verb")
        verb = self._side.verb(name) if isinstance(name, str) else None
        if verb is None or not isinstance(name, str):
            raise NotAllowed("there is no such verb")
        if sum(child.name == name for child in self._children.values()) >= verb.most:
            raise NotAllowed(f"{verb.most} of {name} are under way")
        words = verb.words(request) if verb.words is not None else {}
        self._side.check_pace(words.get("ranks", ()))
        self._number += 1
        child, theirs = self._side.start(name, verb, words)
        self._children[self._number] = child
        return self._number, theirs

    def look_after_children(self, now: float) -> None:
        """Tell of ends; end what is late."""
        for identifier, child in list(self._children.items()):
            if child.has_ended():
                del self._children[identifier]
                child.close()
                if self.open:
                    self._tell({"ended": identifier, "code": child.process.returncode})
            elif child.deadline is not None and now > child.deadline:
                child.end(force=child.told_to_end)
                child.told_to_end, child.deadline = True, now + _END_SECONDS

    def next_deadline(self) -> float | None:
        """When the next child of it is due (CLOCK_MONOTONIC, seconds); None."""
        waits = [child.deadline for child in self._children.values() if child.deadline is not None]
        if any(child.releasing is not None for child in self._children.values()):
            waits.append(time.monotonic() + 0.05)
        return min(waits, default=None)

    def close(self) -> None:
        """A capture lets its ranks go on, and ends."""
        if self.open:
            self.open = False
            self.socket.close()
            for child in self._children.values():
                child.end(force=False)
                child.deadline, child.told_to_end = time.monotonic() + _END_SECONDS, True

    def _tell(self, message: dict[str, Any], *sockets: socket.socket) -> None:
        try:
            socket.send_fds(self.socket, [json.dumps(message).encode()], [each.fileno() for each in sockets])
        except OSError:  # it has gone, or does not listen
            self.close()


class _Renewing(NamedTuple):
    process: RunOnce
    deadline: float


class PrivilegedSide:
    """Holds the rights, and does for daemons what the table of verbs allows."""

    def __init__(
        self, settings: Mapping[str, Any], known: int, mains: Mapping[str, Main] = MappingProxyType({})
    ) -> None:
        """`settings`: what each part of VERBS is given, as a dictionary; `sensor_names`; and `renew`: the command that
        prints them anew. `known`: the file in memory that the reader of ranks writes and captures read. `mains`: of
        modules that are imported here, so that who runs them is forked."""
        self._mains = mains
        self._settings = dict(settings)
        self._known = known
        self._looks: dict[int, list[float]] = {}
        self._connections: list[Connection] = []
        self._renewing: _Renewing | None = None
        self._stopping = self.is_to_renew = False
        self._renew_at = 0.0  # not sooner

    def serve(
        self, wakeup: int, connection: socket.socket | None, listening: socket.socket | None, uids: set[int]
    ) -> None:
        """Until told to stop; with a `connection`, until that is over. `wakeup` is readable after a signal."""
        if connection is not None:
            self._connections.append(Connection(connection, self))
        end = None
        free_lists = FreeLists()
        while True:
            free_lists.give_back()
            self._connections = [one for one in self._connections if not one.is_over]
            if self._stopping and listening is not None and end is None:
                end = time.monotonic() + _LAST_SECONDS
                for one in self._connections:
                    one.close()
            if (end is not None or connection is not None) and not self._connections:
                return
            if end is not None and time.monotonic() > end:
                return
            self._wait(wakeup, None if end is not None else listening)
            self._end_renewing()
            if listening is not None and end is None:
                self._accept(listening, uids)
            for one in self._connections:
                if one.open and self._renewing is None:  # what is asked meanwhile is to have the new settings
                    one.take()
                one.look_after_children(time.monotonic())
            if self.renews_now:
                self.is_to_renew = False
                self._renew_at = time.monotonic() + _BETWEEN_RENEWALS_SECONDS
                self._begin_to_renew()

    def stop(self, *_: object) -> None:
        """End, by a signal."""
        self._stopping = True

    def renew(self, *_: object) -> None:
        """Read the settings again, by a signal."""
        self.is_to_renew = True

    @property
    def renews_now(self) -> bool:
        """Who asks again and again has it done now and then, and keeps nobody from being served meanwhile."""
        return self.is_to_renew and time.monotonic() >= self._renew_at

    def verb(self, name: str) -> Verb | None:
        """The verb of that name; None: there is none."""
        return SENSOR if name in self._settings["sensor_names"] else VERBS.get(name)

    def start(self, name: str, verb: Verb, words: Mapping[str, Any]) -> tuple[PrivilegedProcess, socket.socket]:
        """Start what a verb stands for; return it and the daemon's end of its socket. Raise OSError."""
        settings = self._settings[verb.part]
        lends = [self._known]
        held = os.memfd_create("stallwatch-held", os.MFD_CLOEXEC) if verb.part == "captures" else -1
        if held >= 0:
            os.ftruncate(held, HELD_BYTES)
            lends.append(held)
        given = {**settings, **words, "known": self._known, **({"held": held} if held >= 0 else {})}
        arguments = [*(() if verb.words else (name,)), json.dumps(given)]
        try:
            main = self._mains.get(verb.module)
            started: Talking = (
                OwnChild(module_of_ours(verb.module, *arguments), lends=lends)
                if main is None
                else OwnFork(partial(main, arguments), module_of_ours(verb.module, name), lends)
            )
        except OSError:
            if held >= 0:
                os.close(held)
            raise
        seconds = settings.get(verb.seconds)
        deadline = None if seconds is None else time.monotonic() + seconds
        return PrivilegedProcess(name, started.child, held, deadline), started.channel

    def check_pace(self, ranks: Sequence[tuple[int, int]]) -> None:
        """Raise NotAllowed for who would have ranks looked at without end, or of one user more than he has."""
        now = time.monotonic()
        self._looks = {
            pid: recent for pid, all_ in self._looks.items() if (recent := [t for t in all_ if now - t < 60])
        }
        if any(len(self._looks.get(pid, ())) >= _MOST_LOOKS_A_MINUTE for pid, _ in ranks):
            raise NotAllowed(f"a rank is looked at {_MOST_LOOKS_A_MINUTE} times a minute at most")
        if len(self._looks) > _MOST_OF_USER:
            users = {_user_of(pid) for pid, _ in ranks} - {None}  # a look at who is gone costs nothing
            if any(sum(_user_of(pid) == user for pid in self._looks) > _MOST_OF_USER for user in users):
                raise NotAllowed(f"{_MOST_OF_USER} processes of a user are looked at a minute at most")
        for pid, _ in ranks:
            self._looks.setdefault(pid, []).append(now)

    def _wait(self, wakeup: int, listening: socket.socket | None) -> None:
        poll = select.poll()
        poll.register(wakeup, select.POLLIN)
        if listening is not None:
            poll.register(listening.fileno(), select.POLLIN)
        for one in self._connections:
            if one.open and self._renewing is None:
                poll.register(one.socket.fileno(), select.POLLIN)
        deadlines = [deadline for one in self._connections if (deadline := one.next_deadline()) is not None]
        if self._stopping:
            deadlines.append(time.monotonic() + 1)
        if self._renewing is not None:
            deadlines.append(self._renewing.deadline)
        elif self.is_to_renew:
            deadlines.append(self._renew_at)
        poll.poll(max(0.0, min(deadlines) - time.monotonic()) * 1e3 + 1 if deadlines else None)
        with contextlib.suppress(BlockingIOError):
            os.read(wakeup, 4096)

    def _accept(self, listening: socket.socket, uids: set[int]) -> None:
        with contextlib.suppress(OSError):
            connection, _ = listening.accept()
            _, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
            if uid not in uids or len(self._connections) >= MOST_CONNECTIONS:
                connection.close()
                return
            self._connections.append(Connection(connection, self))

    def _begin_to_renew(self) -> None:
        command = self._settings.get("renew")
        if not command or self._renewing is not None:
            return
        with contextlib.suppress(OSError):
            self._renewing = _Renewing(RunOnce(command, leads_group=False), time.monotonic() + _RENEW_SECONDS)

    def _end_renewing(self) -> None:
        renewing = self._renewing
        if renewing is None:
            return
        ended = renewing.process.poll()
        if ended is None:
            if time.monotonic() > renewing.deadline:
                renewing.process.end()
                self._renewing = None
            return
        self._renewing = None
        sys.stderr.write(ended.errors.decode(errors="replace"))
        if ended.code == 0:
            with contextlib.suppress(ValueError):
                self._settings = json.loads(ended.output)


def _user_of(pid: int) -> "int | None":
    """Whose a process is; None of one that is gone."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def _uids(user: str) -> list[int]:
    return [int(user) if user.isdecimal() else pwd.getpwnam(user).pw_uid] if user else []


def _listen(path: str) -> socket.socket:
    """The socket that the service manager made (sd_listen_fds(3)), else one of our own for our user alone."""
    if os.environ.pop("LISTEN_PID", "") == str(os.getpid()):
        listening = socket.socket(fileno=_LISTEN_FD)
    else:
        # The name appears once it listens: who finds it may connect (a test in CI met the moment before).
        unready = f"{path}.{os.getpid()}"
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listening.bind(unready)
        listening.listen(MOST_CONNECTIONS)
        os.replace(unready, path)
    listening.set_inheritable(False)
    listening.setblocking(False)
    return listening


def main(argv: Sequence[str]) -> None:
    """Serve until told to end."""
    parser = argparse.ArgumentParser(prog="privileged_server", description="the process that holds the capabilities")
    parser.add_argument("--inherit", type=int)
    parser.add_argument("--known", type=int)
    parser.add_argument("--listen")
    parser.add_argument("--user", default="")
    options = parser.parse_args(argv)
    settings = json.load(sys.stdin)
    connection = listening = None
    if options.inherit is not None:
        connection = socket.socket(fileno=options.inherit)
        connection.set_inheritable(False)
    else:
        listening = _listen(options.listen)
    known = os.memfd_create("stallwatch-known", os.MFD_CLOEXEC) if options.known is None else options.known
    os.set_inheritable(known, False)
    give_up_network()
    wakeup, write = os.pipe()
    os.set_blocking(wakeup, False)
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    side = PrivilegedSide(settings, known, imported({verb.module for verb in (SENSOR, *VERBS.values())}))
    # Handled, not ignored: what is ignored stays so in children. Where the daemon has started us, whoever ends the
    # service tells all its processes; the daemon still needs us to let ranks go on, and ends us by closing the socket.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, side.stop)
    signal.signal(signal.SIGHUP, side.renew)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    side.serve(wakeup, connection, listening, {0, os.geteuid(), *_uids(options.user)})


if __name__ == "__main__":
    main(sys.argv[1:])
