"""What a process' environment says about its rank, for processes without a hook.

They are the hook's own rules (hook/identity.py), so that ranks with and without a hook are one job.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from stallwatch.formats.outside_text import name_of
from stallwatch.hook.identity import NAMES, world_of

_NAMES = NAMES | {"TORCHELASTIC_ERROR_FILE", "STALLWATCH_DISABLE"}


class RankNames(NamedTuple):
    """Whose rank a process is, by its environment."""

    rank: int
    local_rank: int
    world_size: int
    training_job: str
    epoch: str


def is_disabled(environment: dict[str, str]) -> bool:
    """Whether STALLWATCH_DISABLE turns us off, as the hook reads it (hook/attachment.py)."""
    return environment.get("STALLWATCH_DISABLE", "").strip().lower() not in ("", "0", "no", "false", "off")


def parse_environment(data: bytes) -> dict[str, str]:
    """Keep the names that tell a rank; everything else in an environment is none of our business. Values are as
    os.environ has them: what is no UTF-8 is in surrogates."""
    values = {}
    for entry in data.split(b"\0"):
        name, separator, value = entry.partition(b"=")
        if separator and (text := name.decode("utf-8", "replace")) in _NAMES:
            values[text] = value.decode("utf-8", "surrogateescape")
    return values


def rank_names(environment: dict[str, str], arguments: Callable[[], Sequence[str]] = tuple) -> RankNames | None:
    """Return the rank that an environment names, of a process with these `arguments`, which are asked for where a job
    takes its name from them; None when it names no rank, no size or no local rank, for then
    nothing but the variables of a shell may have been inherited."""
    world = world_of(environment, None, arguments=arguments)
    if not world.is_ranked or world.local_rank < 0 or world.rank >= world.world_size:
        return None
    return RankNames(
        rank=world.rank,
        local_rank=world.local_rank,
        world_size=world.world_size,
        training_job=_as_recorded(world.training_job),
        epoch=_as_recorded(world.epoch),
    )


def _as_recorded(text: str) -> str:
    """As the record of a hook has it, which writes "?" for what is no UTF-8: with and without a hook it is one job."""
    return name_of(text.encode("utf-8", "replace"))
