"""Addresses that are secrets in themselves: from a file or the environment, never shown."""

from pathlib import Path
from urllib.parse import urlsplit

from stallwatch.errors import UsageError


def secret_text(key: str, text: str, file: str) -> str | None:
    """Given a key's value and its _file twin, return the secret, or None when neither is set.

    Raise UsageError, without the secret in it, when the file cannot be read.
    """
    if not file:
        return text or None
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise UsageError(f"{key}_file {file}: {reason}", "The daemon's user must be able to read it.") from error


def secret_url(key: str, url: str, file: str) -> str | None:
    """Given a key's value and its _file twin, return the URL, or None when neither is set.

    Raise UsageError, without the URL in it, when the file cannot be read or what it holds is no web address.
    """
    given = secret_text(key, url, file)
    if given is None:
        return None
    url = given
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        usable = False
    if not usable or any(character.isspace() for character in url):
        source = f"{key}_file {file}" if file else key
        raise UsageError(
            f"{source}: holds no http or https address", "It is one line, such as https://hooks.slack.com/…"
        )
    return url
