"""What a request may bring: small JSON of a known shape, or a refusal that says what would have done."""

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import Request

from stallwatch.model.incident import Judgement, Mode

_LARGEST_BYTES = 64 << 10
_LONGEST_SECONDS = 366 * 86400

T = TypeVar("T")
_Name = Annotated[str, Meta(max_length=1000)]


class Acknowledgement(msgspec.Struct, frozen=True):
    """Who is on it."""

    by: _Name = ""  # heard only from whom we know to be allowed to say so


class CaptureRequest(msgspec.Struct, frozen=True):
    """Of which job evidence is wanted; of all without one."""

    training_job: _Name | None = None
    owner: _Name | None = None


class MuteRequest(msgspec.Struct, frozen=True):
    """Which job is muted, and for how long."""

    training_job: _Name
    seconds: Annotated[float, Meta(ge=0, le=_LONGEST_SECONDS)]
    owner: _Name | None = None
    by: _Name = ""


class ModeRequest(msgspec.Struct, frozen=True):
    """Which mode holds, and for how long."""

    mode: Mode
    seconds: Annotated[float, Meta(ge=0, le=_LONGEST_SECONDS)]
    by: _Name = ""


class MaintenanceRequest(msgspec.Struct, frozen=True):
    """Which node is worked on, and for how long."""

    seconds: Annotated[float, Meta(ge=0, le=_LONGEST_SECONDS)]
    node: Annotated[str, Meta(max_length=253)] = ""
    why: Annotated[str, Meta(max_length=200)] = ""
    by: _Name = ""


class JudgeRequest(msgspec.Struct, frozen=True):
    """Whether a verdict was right, by whoever knows."""

    incident_id: _Name
    judgement: Judgement
    by: _Name = ""


class BadBody(Exception):
    """A body that cannot be read, with an example of one that can."""

    def __init__(self, status: int, error: str, example: str) -> None:
        super().__init__(error)
        self.status = status
        self.help = f"For instance {example}."


async def read_body(request: Request, shape: type[T], example: str) -> T:
    """Return the request's JSON as `shape`; no body is an empty object. Raise BadBody, which shows `example`."""
    collected = bytearray()
    async for chunk in request.stream():
        collected += chunk
        if len(collected) > _LARGEST_BYTES:
            raise BadBody(413, f"the body has more than {_LARGEST_BYTES} bytes", example)
    try:
        return msgspec.json.decode(bytes(collected) or b"{}", type=shape)
    except RecursionError as error:
        raise BadBody(400, "the body is nested too deeply", example) from error
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise BadBody(400, f"the body is not what belongs here: {error}", example) from error
