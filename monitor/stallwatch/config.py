"""Configuration: its keys are defined once, in config_sections.py; the example file, `config check` and the environment
names come from there.

Order: defaults, then the TOML file, then STALLWATCH_<SECTION>_<KEY>, then flags. Unknown keys are an error for
`config check` and a warning for the daemon, so that a typo never silences a node.
"""

import os
import re
import socket
import tomllib
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from stallwatch.config_sections import Config, DaemonSection
from stallwatch.encoding import json_of
from stallwatch.errors import UsageError

__all__ = [
    "INSTALLED",
    "Config",
    "current_environment",
    "environment_names",
    "example",
    "load",
    "marked",
    "unknown_keys",
    "without_secrets",
]


INSTALLED = Path("/etc/stallwatch/config.toml")  # of the units that are shipped
# Named apart because they are read by the hook too, or hold paths that people already know.
_ENVIRONMENT_ALIASES = {"STALLWATCH_DIR": ("daemon", "rank_directory")}


def _sections() -> dict[str, type[msgspec.Struct]]:
    return {field.name: field.type for field in msgspec.structs.fields(Config)}


def environment_names() -> dict[str, tuple[str, str]]:
    """Every environment variable the daemon reads, with the key it sets."""
    names = {
        f"STALLWATCH_{section}_{field.name}".upper(): (section, field.name)
        for section, kind in _sections().items()
        for field in msgspec.structs.fields(kind)
    }
    return names | _ENVIRONMENT_ALIASES


def marked(mark: Literal["secret", "secret_file"]) -> tuple[tuple[str, str], ...]:
    """Every (section, key) that config_sections.py marks so."""
    return tuple(
        (section, key)
        for section, kind in _sections().items()
        for key, meta in _metas(kind)
        if (meta.extra or {}).get(mark)
    )


def _metas(kind: type[msgspec.Struct]) -> Iterator[tuple[str, Meta]]:
    hints = get_type_hints(kind, include_extras=True)
    for field in msgspec.structs.fields(kind):
        yield field.name, next((meta for meta in get_args(hints[field.name])[1:] if isinstance(meta, Meta)), Meta())


def unknown_keys(raw: Mapping[str, Any]) -> list[str]:
    """Paths of keys that no section defines, as "slack.webhok_url"."""
    sections = _sections()
    unknown = []
    for section, body in raw.items():
        if section not in sections:
            unknown.append(section)
        elif isinstance(body, Mapping):
            known = {field.name for field in msgspec.structs.fields(sections[section])}
            unknown += [f"{section}.{key}" for key in body if key not in known]
    return unknown


def _advice(unknown: str) -> str:
    """What may have been meant by an unknown key: the nearest, or all that its section has."""
    sections = _sections()
    every = [f"{name}.{field.name}" for name, kind in sections.items() for field in msgspec.structs.fields(kind)]
    section, dot, _ = unknown.partition(".")
    if near := get_close_matches(unknown, every if dot else sections, n=1, cutoff=0.75):
        return f"Instead of {unknown}, is {near[0]} meant?"
    if section in sections and dot:
        return f"[{section}] has {', '.join(key.partition('.')[2] for key in every if key.startswith(section + dot))}."
    return f"The sections are {', '.join(sections)}."


def load(
    path: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[tuple[str, str], Any] | None = None,
    *,
    strict: bool = False,
    read: Callable[[Path], bytes] = Path.read_bytes,
    base: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[Config, list[str]]:
    """Given a TOML file, an environment and flag overrides, return the configuration and the warnings.

    Raise UsageError with the path of the bad key; unknown keys raise only when `strict`. `read` gets the file's bytes,
    for who must not wait for it; it may raise OSError. `base`: what is in force where none of them says anything,
    instead of the defaults (None: own_defaults); keys of it that no section defines any more are left out.
    """
    text = _read_text(Path(path), read) if path else ""
    raw = _read_toml(path, text) if path else {}
    unknown = unknown_keys(raw)
    if unknown and strict:
        raise UsageError(
            f"{path}: unknown key {', '.join(key + _line_of(key, text) for key in unknown)}",
            f"{' '.join(_advice(key) for key in unknown)} Compare with `stallwatch config example`.",
        )
    base = base if base is not None else own_defaults(environment or {})
    former = set(unknown_keys(base))
    merged: dict[str, dict[str, Any]] = {
        section: {key: value for key, value in body.items() if f"{section}.{key}" not in former}
        for section, body in base.items()
        if section not in former
    }
    for section, body in raw.items():
        if section in _sections():
            if not isinstance(body, Mapping):
                raise UsageError(f"{path}: {section} must be a table", f"Write [{section}] and its keys below.")
            merged.setdefault(section, {}).update({k: v for k, v in body.items() if f"{section}.{k}" not in unknown})
    for name, (section, key) in environment_names().items():
        if environment and name in environment:
            merged.setdefault(section, {})[key] = environment[name]
    for (section, key), value in (overrides or {}).items():
        if value is not None:
            merged.setdefault(section, {})[key] = value
    try:
        # strict=False reads numbers and booleans out of environment strings.
        config = msgspec.convert(merged, Config, strict=False)
    except msgspec.ValidationError as error:
        raise _refused(str(error), path, environment or {}, text) from error
    ignored = (f"{path}: unknown key {key}{_line_of(key, text)} is ignored. {_advice(key)}" for key in unknown)
    return config, [*ignored, *_silent_slack(config)]


_SECTION = re.compile(r"\s*\[\s*([\w.\"'-]+)\s*\]")
_KEY = re.compile(r"\s*([\w.\"'-]+)\s*=")


def _line_of(wanted: str, text: str) -> str:
    """ " (line 7)": where a file names this section, or this key of one; "" where that is not found."""
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        head, key = _SECTION.match(line), _KEY.match(line)
        if head:
            named = section = head[1].strip("\"'")
        elif key:
            named = ".".join(filter(None, (section, key[1].strip("\"'"))))
        else:
            continue
        if named == wanted:
            return f" (line {number})"
    return ""


_REFUSED = re.compile(r"(?P<what>.*) - at `\$\.(?P<section>\w+)\.(?P<key>\w+)`", re.DOTALL)
_TYPES = {
    "float": "a number", "int": "a whole number", "bool": "true or false", "str": "text", "array": "a list",
    "object": "a table", "null": "nothing",
}  # fmt: skip


def _refused(said: str, path: str | Path | None, environment: Mapping[str, str], text: str) -> UsageError:
    """Given what msgspec says of a value, say it of the key that a person wrote, and where he wrote it."""
    match = _REFUSED.fullmatch(said)
    if match is None:
        return UsageError(f"{path or 'configuration'}: {said}", "See `stallwatch config example`.")
    section, key = match["section"], match["key"]
    variable = next((name for name, place in environment_names().items() if place == (section, key)), "")
    written = variable in environment
    where = (
        f"{variable} ({section}.{key})"
        if written
        else f"{path or 'configuration'}: {section}.{key}{_line_of(f'{section}.{key}', text)}"
    )
    what = re.sub(r"`(\w+)`", lambda word: _TYPES.get(word[1], word[0]), match["what"])
    what = re.sub(r"\AExpected ", "takes ", what).replace(", got ", ", not ")
    if other := re.fullmatch(r"Invalid enum value (.*)", what, re.DOTALL):
        choices = get_args(get_type_hints(_sections()[section])[key])
        what = f"takes {', '.join(map(repr, choices))}, not {other[1]}"
    default = json_of(getattr(getattr(Config(), section), key)).decode()
    return UsageError(f"{where} {what}", f"By default it is {default}; see `stallwatch config example`.")


def slack_speaks(config: Config) -> bool:
    """Whether Slack is told by the daemon itself. Where there is an Alertmanager, that is the voice, and its routes may
    lead to Slack: people would hear of each incident twice."""
    return not config.alertmanager.urls or config.slack.also


def _silent_slack(config: Config) -> Iterator[str]:
    slack = config.slack
    is_set = any((slack.webhook_url, slack.webhook_url_file, slack.bot_token, slack.bot_token_file))
    if is_set and not slack_speaks(config):
        yield (
            "[slack] is silent, for [alertmanager] tells, and people hear of each incident once: "
            "remove [slack], or set slack.also = true, and both tell"
        )


def node_of(config: Config) -> str:
    """How this node is called, to people and to other nodes: `daemon.node`, else its host name."""
    return config.daemon.node or socket.gethostname()


def installed() -> str | None:
    """Return the configuration of this node's service, None where there is none that this user may read and use."""
    try:
        load(INSTALLED)
    except UsageError:
        return None
    return str(INSTALLED)


def own_defaults(environment: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Given an environment, return the defaults of a user who may not write where a service does: directories below his
    home, a name for each node, for homes are shared; a free port; and word of jobs in his terminals, which are why he
    starts a daemon. {} for root, for a service, and for who has no home."""
    home = environment.get("HOME", "")
    if _is_root() or not home or _is_writable(Path(DaemonSection().run_directory)):
        return {}
    try:
        if os.stat(home).st_uid != os.geteuid():
            return {}
    except OSError:
        return {}
    own = Path(home) / ".stallwatch" / os.uname().nodename
    return {
        "daemon": {"run_directory": str(own / "run"), "state_directory": str(own / "state")},
        "http": {"listen": "127.0.0.1:0"},
        "tell": {"terminals": True},
    }


_TWICE = re.compile(r"Cannot declare \('(\w+)',\) twice \(at line (\d+)")  # as tomllib says it


def _is_root() -> bool:
    return os.geteuid() == 0


def _is_writable(directory: Path) -> bool:
    """Whether this user may write there, or make it."""
    there = next(path for path in (directory, *directory.parents) if path.exists())
    return os.access(there, os.W_OK | os.X_OK)


def _read_text(path: Path, read: Callable[[Path], bytes]) -> str:
    try:
        return read(path).decode("utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", "Check the path and its permissions.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not TOML: {error}", "Start from `stallwatch config example`.") from error


def _read_toml(path: str | Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        if match := _TWICE.search(str(error)):
            raise UsageError(
                f"{path}: [{match[1]}] stands there twice (line {match[2]})",
                f"Keep the first [{match[1]}], and write its keys below that.",
            ) from error
        raise UsageError(f"{path}: not TOML: {error}", "Start from `stallwatch config example`.") from error


def example() -> str:
    """The example file: every key with its meaning, its variable, and its default commented out."""
    return "\n".join(_example_lines()) + "\n"


def _example_lines() -> Iterator[str]:
    yield "# stallwatch: every key with its default. Uncomment what you change; each section stands here once."
    yield "# `stallwatch config check FILE` reads it."
    for section, kind in _sections().items():
        yield ""
        yield f"[{section}]"
        defaults = kind()
        for key, meta in _metas(kind):
            yield f"# {meta.description or ''} (STALLWATCH_{section.upper()}_{key.upper()})"
            yield f"# {key} = {_toml(getattr(defaults, key))}"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json_of(value).decode()
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return str(value)


def without_secrets(config: Config) -> Config:
    """The configuration as it may be shown and kept with an incident."""
    for section, key in marked("secret"):
        body = getattr(config, section)
        if getattr(body, key):
            config = replace(config, **{section: replace(body, **{key: "<set>"})})
    return config


def current_environment() -> Mapping[str, str]:
    """The process' environment: the only place, with the hook, that reads it."""
    return os.environ
