"""Redis or Valkey as meeting place. What must be atomic is a script, which runs whole on the server's own clock.

Keys of one job hold its name as hash tag, so that they are of one slot; all begin with "stallwatch:", which is all that
the user's ACL must allow (deploy/docs/fleet.md).
"""

import contextlib
import inspect
import itertools
import secrets
import ssl
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from stallwatch.fleet import redis_scripts as scripts
from stallwatch.fleet.place import (
    CLAIM_SECONDS,
    DESERTED_SECONDS,
    GREETED_SECONDS,
    KEPT_SECONDS,
    LEFT_SECONDS,
    LIFE_SECONDS,
    MOST_ALIKE,
    MOST_BYTES,
    MOST_GUESTS,
    MOST_ORDERS,
    Board,
    Dated,
    Guest,
    Key,
    Kind,
    Life,
    PlaceProblem,
    Published,
    Standing,
    Turn,
    Turned,
)

PREFIX: Final = "stallwatch:"
_NODES: Final = f"{PREFIX}{{:nodes}}:"
_SECONDS: Final = 6.0  # for each step of an exchange with the server: one that is busy for 4 s is slow, not away
_PROBE_SECONDS: Final = 60  # a server may take _SECONDS for each answer
_ORDINAL_SECONDS: Final = 7 * 86400  # an ordinal that comes again would be told as what was told before
_CLOSED_SECONDS: Final = 600
_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379


class RedisPlace:
    """A meeting place in Redis or Valkey."""

    def __init__(self, client: Any, shown: str, key: str = "") -> None:
        """`shown`: its address as sentences name it; `key`: by which the key that is signed with is known."""
        self._client = client
        self._shown = shown
        self._key = key
        self._prefix = f"{PREFIX}{key}:" if key else PREFIX
        self._orders = self._of_job(":fleet")  # no job's name has a colon
        self._scripts = {
            name: client.register_script(text)
            for name, text in (
                ("join", scripts.JOIN), ("put", scripts.PUT), ("ages", scripts.AGES), ("look", scripts.LOOK),
                ("claim", scripts.CLAIM), ("renew", scripts.RENEW), ("mark", scripts.MARK), ("close", scripts.CLOSE),
                ("post", scripts.POST), ("posted", scripts.POSTED), ("turn", scripts.TURN), ("report", scripts.REPORT),
                ("greet", scripts.GREET),
            )
        }  # fmt: skip

    def check(self) -> None:
        """Claim one key twice. Raise PlaceProblem where the second claim succeeds, as behind proxies
        that split writes."""
        with self._problems():
            key = f"{PREFIX}probe:{secrets.token_hex(8)}"  # its own: other nodes may try at the same moment
            first = self._client.set(key, b"1", nx=True, ex=_PROBE_SECONDS)
            again = self._client.set(key, b"2", nx=True, ex=_PROBE_SECONDS)
            self._client.delete(key)
            if not first or again:
                raise PlaceProblem(
                    f"{self._shown}: a key that exists could be claimed again",
                    "It must be one server, or one with replicas behind Sentinel, and no proxy that splits writes.",
                )
            # Now, not in the first exchange of an incident: a script that the server lacks costs it three answers.
            known = self._client.script_exists(*(script.sha for script in self._scripts.values()))
            with self._client.pipeline(transaction=False) as pipe:
                for script in itertools.compress(self._scripts.values(), (not one for one in known)):
                    pipe.script_load(script.script)
                pipe.execute()

    def join(self, job: str, node: str, past: int = 0, life: Life | None = None) -> int:
        """The server runs one script, so that all nodes get the same ordinal; the next where the incident is over,
        deserted or a job's before."""
        given = (node, int(DESERTED_SECONDS), KEPT_SECONDS, _ORDINAL_SECONDS, past)
        of_life = ("", 0) if life is None else (life.seconds + LIFE_SECONDS, int(life.begun))
        return int(self._run("join", self._of_job(job), *given, *of_life, int(LEFT_SECONDS)))

    def put(self, key: Key, node: str, summary: bytes) -> None:
        """Set this node's field of the incident's hash, and count it on the board."""
        self._run("put", self._of(key), node, summary, KEPT_SECONDS)

    def summaries(self, key: Key) -> dict[str, bytes]:
        """Read the hash in pieces: one answer of many megabytes would hold up the server for all others."""
        found: dict[str, bytes] = {}
        with self._problems():
            # In pieces: one answer of many megabytes would hold up the server for all others.
            for node, summary in self._client.hscan_iter(f"{self._of(key)}summaries", count=64):
                found[node.decode("utf-8", "replace")] = summary[: MOST_BYTES + 1]  # more is not believed
        return found

    def dated_summaries(self, key: Key) -> Dated:
        """By the server's own clock, which noted each put: one that is younger after the reading was put meanwhile."""
        before, summaries, after = self._ages(key), self.summaries(key), self._ages(key)
        ages = {node: age for node, age in after.items() if before.get(node, float("inf")) <= age}
        return Dated(summaries, ages)

    def _ages(self, key: Key) -> dict[str, float]:
        now, (*parts,) = self._run("ages", self._of(key))
        each = zip(parts[::2], parts[1::2], strict=True)
        return {node.decode("utf-8", "replace"): max(float(now) - float(at), 0.0) for node, at in each}

    def look(self, key: Key, node: str, *, whole: bool) -> Board:
        """One script notes this node and returns the board; `whole` costs no more here."""
        return _board(self._run("look", self._of(key), node))

    def turn(self, key: Key, node: str, turn: Turn) -> Turned:
        """One script, so that one answer is waited for."""
        asked = (turn.told, turn.generation, turn.summary, int(turn.claims), turn.report, int(turn.closes))
        limits = (int(CLAIM_SECONDS * 1e3), KEPT_SECONDS, _CLOSED_SECONDS)
        given = (key.ordinal, node, *asked, turn.known_report, *limits)
        told_noted, generation, report_noted, seen, report = self._run("turn", self._of_job(key.job), *given)
        return Turned(bool(told_noted), int(generation), bool(report_noted), _board(seen), report)

    def claim(self, key: Key, node: str) -> int:
        """One script gives the claim to who asks first, for CLAIM_SECONDS."""
        return int(self._run("claim", self._of(key), node, int(CLAIM_SECONDS * 1e3), KEPT_SECONDS))

    def renew(self, key: Key, node: str, generation: int) -> bool:
        """One script prolongs the claim if its generation is still the last."""
        return bool(self._run("renew", self._of(key), node, generation, int(CLAIM_SECONDS * 1e3)))

    def mark(self, key: Key, generation: int, kind: Kind, data: bytes) -> bool:
        """One script writes unless a later generation holds the claim."""
        return bool(self._run("mark", self._of(key), generation, kind, data, KEPT_SECONDS))

    def report(self, key: Key) -> Published:
        """By the server's own clock, which noted when it was written."""
        now, (revision, data, at) = self._run("report", self._of(key))
        return Published(int(revision or 0), bytes(data or b""), float(now) - float(at or now))

    def close(self, key: Key) -> None:
        """One script marks the incident as over; its keys run out by themselves."""
        self._run("close", self._of_job(key.job), key.ordinal, "", 0, _CLOSED_SECONDS)

    def leave(self, key: Key, node: str) -> None:
        """One script removes this node; the last one closes the incident."""
        self._run("close", self._of_job(key.job), key.ordinal, node, int(LEFT_SECONDS), _CLOSED_SECONDS)

    def post(self, name: str, data: bytes, seconds: float, *, anew: bool) -> None:
        """One script sets it with its expiry. Raise PlaceProblem where there are too many."""
        given = (name, data, int(anew), max(int(seconds), 1), MOST_ORDERS, secrets.token_hex(6))
        if not self._run("post", self._orders, *given):
            raise PlaceProblem(f"{self._shown}: {MOST_ORDERS} mutes and the like stand there", "Some must end first.")

    def posted(self, known: str) -> tuple[str, list[Standing] | None]:
        """One script returns the orders unless the revision is the known one."""
        revision, *parts = self._run("posted", self._orders, known)
        if revision.decode() == known and known:
            return known, None
        each = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
        return revision.decode(), [Standing(name.decode(), data, float(left)) for name, data, left in each]

    def greet(self, node: str, word: bytes, about: str = "") -> list[Guest]:
        """One script notes it under its key, and returns who is under each."""
        limits = (int(GREETED_SECONDS), MOST_GUESTS, MOST_ALIKE)
        parts = self._run("greet", _NODES, self._key, node, word, *limits, about or node)
        each = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
        return [Guest(name.decode("utf-8", "replace"), of.decode("utf-8", "replace"), said) for of, name, said in each]

    def hang_up(self) -> None:
        """Close the connection; the next call connects anew."""
        self._client.close()
        self._client.connection_pool.disconnect()

    def _of_job(self, job: str) -> str:
        return f"{self._prefix}{{{job}}}:"

    def _of(self, key: Key) -> str:
        return f"{self._of_job(key.job)}{key.ordinal}:"

    def _run(self, name: str, *arguments: str | float | bytes) -> Any:
        with self._problems():
            return self._scripts[name](args=arguments)

    @contextlib.contextmanager
    def _problems(self) -> Iterator[None]:
        try:
            yield
        except redis.exceptions.ResponseError as error:
            advice = _advice(str(error), "It must be Redis 5 or later, or Valkey.")
            said = str(error).partition(" script: ")[0].rstrip(".")  # after it which of ours, by its sum
            raise PlaceProblem(f"{self._shown}: {said}", advice) from error
        except (redis.exceptions.RedisError, OSError) as error:
            advice = _advice(str(error), "Is the server up, and may this node reach it?")
            if self._shown.startswith("rediss") and isinstance(error, redis.exceptions.TimeoutError):
                advice += " One that does not speak TLS at this port says nothing either: then redis://."
            raise PlaceProblem(f"{self._shown}: {error}", advice) from error


def _board(seen: Any) -> Board:
    holder, (puts, generation, told, revision, closed), member = seen
    return Board(
        puts=int(puts or 0),
        holder=holder.decode("utf-8", "replace"),
        generation=int(generation or 0),
        told=told or b"",
        report_revision=int(revision or 0),
        closed=bool(closed),
        member=bool(member),
    )


# By what servers say, without the codes that redis-py takes off.
_ADVICE: Final = (
    ("wrong version number", "It does not speak TLS at this port: redis://, or the port at which it does."),
    ("record layer failure", "It does not speak TLS at this port: redis://, or the port at which it does."),
    ("certificate", "Its certificate must lead to one of fleet.ca_file, and name the host of fleet.url."),
    ("closed by server", "Is it one that speaks TLS alone? Then rediss://."),
    ("reset by peer", "Is it one that speaks TLS alone? Then rediss://."),
    ("maxmemory", "It is full: give it more memory, or an eviction policy; keys of ours expire within an hour."),
    ("replica", "It takes no writes: name the primary, or its Sentinels (redis+sentinel://), or see to its replicas."),
    ("permission", f"The user needs +@all -@dangerous -@admin on ~{PREFIX}*."),
    ("password", "See fleet.username and fleet.password_file."),
    ("auth", "See fleet.username and fleet.password_file."),
)


def _advice(said: str, otherwise: str) -> str:
    return next((advice for word, advice in _ADVICE if word in said.lower()), otherwise)


def _says_nothing_more() -> dict[str, Any]:
    """Options by which a connection begins with who we are, and not with what our library is called and what it would
    be told of: three answers more to wait for, 10 s of a server that takes 3.5 s for each."""
    names_itself_by_driver = "driver_info" in inspect.signature(redis.Redis.__init__).parameters
    options: dict[str, Any] = (
        {"driver_info": None} if names_itself_by_driver else {"lib_name": None, "lib_version": None}
    )
    with contextlib.suppress(ImportError):  # of a redis-py that asks to be told of maintenance
        from redis.maint_notifications import MaintNotificationsConfig

        options["maint_notifications_config"] = MaintNotificationsConfig(enabled=False)
    return options


_SAYS_NOTHING_MORE: Final = _says_nothing_more()


def connect(url: str, username: str, password: str | None, ca_file: str, key: str = "") -> RedisPlace:
    """Given `redis://host:port/db`, `rediss://…` (TLS) or `redis+sentinel://host:port,host:port/name/db`, who we are
    and which key we sign with, return the place. It connects when it is first used. Raise PlaceProblem for an address
    that cannot be one."""
    parts = urlsplit(url)
    tls = parts.scheme.startswith("rediss")
    options: dict[str, Any] = {
        "username": username or None,
        "password": password,
        "socket_timeout": _SECONDS,
        "socket_connect_timeout": _SECONDS,
        "retry": Retry(NoBackoff(), 0),  # who asks asks again in a second
        **_SAYS_NOTHING_MORE,
    }
    if tls:
        options |= {"ssl": True, "ssl_cert_reqs": "required", "ssl_ca_certs": ca_file or None}
        options |= {"ssl_min_version": ssl.TLSVersion.TLSv1_2}
    path = [part for part in parts.path.split("/") if part]
    try:
        if parts.scheme.endswith("+sentinel"):
            if not path:
                raise ValueError("the primary's name is missing")
            nodes = [_host_and_port(node, _SENTINEL_PORT) for node in parts.netloc.split(",")]
            sentinel_options = {name: options[name] for name in options if name not in ("username", "password")}
            sentinel: Any = Sentinel(nodes, sentinel_kwargs=sentinel_options, **options)
            return RedisPlace(sentinel.master_for(path[0], db=int(path[1]) if len(path) > 1 else 0), url, key)
        host, port = _host_and_port(parts.netloc, _PORT)
        return RedisPlace(redis.Redis(host, port, int(path[0]) if path else 0, **options), url, key)
    except ValueError as error:
        raise PlaceProblem(
            f"fleet.url {url}: {error}", "Such as redis+sentinel://s1:26379,s2:26379/mymaster/0."
        ) from error


def _host_and_port(netloc: str, port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{netloc}")
    if not parts.hostname:
        raise ValueError("it names no host")
    return parts.hostname, parts.port or port
