"""Takes secrets out of text before it is stored or leaves the node: command lines, variables, logs, source lines. By
the name before a value and by the shape of it, on the safe side.

The one definition, for the hook and for all that reads for the daemon: so standard library alone.
"""

import re
from collections.abc import Sequence

HIDDEN = "(redacted)"

_WORDS = "token(?!i[sz]|s)|secret|passw|passphrase|(?:api|access|private)[-_]?key|credential|webhook|auth(?!or)"
_NAME = rf"[\w.-]*(?:{_WORDS})[\w.-]*"
_SECRET_NAME = re.compile(rf"(?i){_WORDS}")
_PATTERNS = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"), HIDDEN),
    (re.compile(r"https://hooks\.slack\.com/\S+"), HIDDEN),
    (re.compile(r"(?<=://)[^/@\s]+(?=@)"), HIDDEN),
    (re.compile(r"(?i)([?&][^=&\s]*(?:sig|key)[^=&\s]*=)[^&\s]+"), rf"\g<1>{HIDDEN}"),
    (re.compile(r"(?i)\b((?:bearer|basic)\s+)[\w.~+/=-]{8,}"), rf"\g<1>{HIDDEN}"),
    # name=value, name: value, "name": "value", --name value
    (
        re.compile(rf"(?i)([\"']?\b{_NAME}[\"']?\s*[=:]\s*)(?:\"[^\"]*\"|'[^']*'|[^\s,;&\"']+)"),
        rf"\g<1>{HIDDEN}",
    ),
    (re.compile(rf"(?i)(--?{_NAME}\s+)(?!-)\S+"), rf"\g<1>{HIDDEN}"),
    # Tokens that carry their kind in front: Hugging Face, GitHub, Slack, AWS, OpenAI; JSON web tokens.
    (re.compile(r"\b(?:hf_|gh[oprsu]_|github_pat_|xox[abprs]-|AKIA|ASIA|sk-)[\w-]{12,}"), HIDDEN),
    (re.compile(r"\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*"), HIDDEN),
)
_ASSIGNMENT = re.compile(r"([^=\s]+)=")
_HEX_KEY = re.compile(r"\b[0-9a-f]{40}\b")


def is_secret(name: str) -> bool:
    """Whether what has such a name is a secret."""
    return _SECRET_NAME.search(name) is not None


def scrubbed(text: str) -> str:
    """Text with all that looks like a secret replaced by "(redacted)"."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def scrubbed_value(text: str) -> str:
    """The same of an argument or a variable, where 40 hex digits are a key (W&B); in a log they are a commit."""
    return _HEX_KEY.sub(HIDDEN, scrubbed(text))


def scrubbed_argv(argv: "Sequence[str]") -> "list[str]":
    """A command line without secrets: `--api-key X`, `--api-key=X`, `TOKEN=X`; `-p` of no known name stays."""
    clean: list[str] = []
    hides_next = False
    for argument in argv:
        if hides_next and not argument.startswith("-"):
            clean.append(HIDDEN)
            hides_next = False
            continue
        pair = _ASSIGNMENT.match(argument)
        if pair and is_secret(pair[1]):
            clean.append(f"{pair[1]}={HIDDEN}")
            hides_next = False
        else:
            clean.append(scrubbed_value(argument))
            hides_next = argument.startswith("-") and is_secret(argument)
    return clean
