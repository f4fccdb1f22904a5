"""Takes secrets out of text before it is stored or leaves the node: argv, logs. By shape, on the safe side."""

import re

REDACTED = "(redacted)"

_WORDS = "token(?![a-z])|secret|passw(?:or)?d|passphrase|api[_-]?key|access[_-]?key|private[_-]?key|credential|webhook"
_NAME = rf"[\w.-]*(?:{_WORDS})[\w.-]*"
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # name=value, name: value, "name": "value", --name value
    (re.compile(rf"(?i)([\"']?\b{_NAME}[\"']?\s*[=:]\s*)(?:\"[^\"]*\"|'[^']*'|[^\s,;&\"']+)"), rf"\g<1>{REDACTED}"),
    (re.compile(rf"(?i)(--?{_NAME}\s+)(?!-)\S+"), rf"\g<1>{REDACTED}"),
    (re.compile(r"(?i)\b((?:bearer|basic)\s+)[\w.~+/=-]{8,}"), rf"\g<1>{REDACTED}"),
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s/@]+(@)"), rf"\g<1>{REDACTED}\g<2>"),
    (re.compile(r"https://hooks\.slack\.com/\S+"), REDACTED),
    # Tokens that carry their kind in front: Hugging Face, GitHub, Slack, AWS, OpenAI and others.
    (re.compile(r"\b(?:hf_|gh[opsu]_|github_pat_|xox[abprs]-|AKIA|ASIA|sk-)[\w-]{12,}"), REDACTED),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"), REDACTED),
)


def scrub(text: str) -> str:
    """Return `text` with everything that looks like a secret replaced by "(redacted)"."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def scrub_argv(argv: list[str]) -> str:
    """Return a command line for people: joined, scrubbed."""
    return scrub(" ".join(argv))
