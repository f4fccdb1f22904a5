"""POSTs messages, one after the other. Runs as a child, so that no name server and no server that answers a byte a
minute can hold the daemon: `python -m stallwatch.outputs.poster KIND`, Requests of that kind on standard input, an
PostAnswer to each on standard output. Ends with its input, and when nothing has come for a while."""

import contextlib
import hashlib
import hmac
import io
import socket
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from stallwatch.encoding import json_of
from stallwatch.node.capabilities import drop_unless_root
from stallwatch.node.framing import answer_requests, as_child

SIGNATURE = "Stallwatch-Signature"
KEEP_SECONDS = 60.0  # without a message, then it ends


class PostRequest(msgspec.Struct, frozen=True):
    """What the posting child is asked: where to, and the body."""

    kind: Literal["slack", "slack_bot", "slack_reactions", "json"]
    url: str  # a secret: never in arguments, errors or logs. Of slack_bot: the API's address
    body: msgspec.Raw
    seconds: float  # for each step of the exchange; the parent kills us when the whole takes too long
    bearer: str = ""
    content_type: str = "application/json"  # of json
    signing_key: str = ""  # of json: a secret that the receiver has too
    thread: str = ""  # of slack_bot: "channel/ts" of the message that it answers


class PostAnswer(msgspec.Struct, frozen=True):
    """What came of it."""

    status: int | None  # None: no answer came
    detail: str
    retry_after: str | None = None
    thread: str = ""
    perhaps_delivered: bool = False  # no answer came, and the message may have been on its way


# https://docs.slack.dev/reference/methods/chat.postMessage: another attempt with the same message fails too.
_SPOILED = frozenset(
    {"invalid_blocks", "invalid_blocks_format", "invalid_attachments", "msg_too_long", "no_text", "msg_blocks_too_long"}
)
# What goes wrong before the first byte of a message leaves.
_BEFORE_SENDING = (ConnectionRefusedError, socket.gaierror, ssl.SSLError)
_MOST_REACTIONS = 200
_MOST_DETAIL = 300  # characters of a server's own words that are worth keeping


def post(request: PostRequest) -> PostAnswer:
    """Post one request; every failure is an answer."""
    try:
        with _redirects_refused():
            return _KINDS[request.kind](request)
    except Exception as error:  # noqa: BLE001  the guard of this child: whatever happened becomes an answer
        reason = getattr(error, "reason", None) or error
        words = f"{type(error).__name__}: {reason}".replace(request.url, "<url>")
        for secret in filter(None, (request.bearer, request.signing_key)):
            words = words.replace(secret, "<secret>")
        return PostAnswer(None, words[:_MOST_DETAIL], perhaps_delivered=not isinstance(reason, _BEFORE_SENDING))


@contextlib.contextmanager
def _redirects_refused() -> Iterator[None]:
    """urllib would ask the other address with a GET, without the message and with our token, and call its page of 200 a
    delivery. In the class itself, for Slack's client makes its own openers."""
    handler, name = urllib.request.HTTPRedirectHandler, "redirect_request"
    following = getattr(handler, name)
    setattr(handler, name, _refuse_redirect)
    try:
        yield
    finally:
        setattr(handler, name, following)


def _refuse_redirect(_: object, request: Any, file: Any, code: int, message: str, headers: Any, url: str) -> None:
    place = urlsplit(url)
    words = f"redirects to {place.scheme}://{place.netloc.rpartition('@')[2]}, which is not followed"
    raise urllib.error.HTTPError(request.full_url, code, message, headers, io.BytesIO(words.encode()))


def _to_slack(request: PostRequest) -> PostAnswer:
    from slack_sdk.webhook import WebhookClient

    # Retries are ours: they outlive this process.
    client = WebhookClient(request.url, timeout=max(1, int(request.seconds)), retry_handlers=[])
    response = client.send_dict(msgspec.json.decode(request.body))
    headers = {name.lower(): value for name, value in dict(response.headers).items()}
    return PostAnswer(response.status_code, response.body[:_MOST_DETAIL], headers.get("retry-after"))


def _as_bot(request: PostRequest) -> PostAnswer:
    """Post a message, or an answer in its thread; then the first message shows how things stand now ("root"). Where
    there is no thread, as of a job that another's message has named, people need the whole of it."""
    from slack_sdk import WebClient
    from slack_sdk.errors import SlackApiError

    client = WebClient(request.bearer, base_url=request.url, timeout=max(1, int(request.seconds)), retry_handlers=[])
    body = msgspec.json.decode(request.body, type=dict[str, Any])
    root = body.pop("root", None)
    channel, _, first = request.thread.partition("/")
    if first:
        body |= {"channel": channel, "thread_ts": first}
    elif root:
        body = {"channel": body["channel"], **root}
    try:
        response = client.chat_postMessage(**body)
    except SlackApiError as error:
        return _bot_refusal(error)
    if first and root:
        with contextlib.suppress(SlackApiError):  # the answer is there; its frame may stay as it was
            client.chat_update(channel=channel, ts=first, **root)
    return PostAnswer(200, "ok", thread=f"{response['channel']}/{response['ts']}")


def _reactions(request: PostRequest) -> PostAnswer:
    """The reactions to a message, as "name:user name:user" without skin tones."""
    from slack_sdk import WebClient
    from slack_sdk.errors import SlackApiError

    client = WebClient(request.bearer, base_url=request.url, timeout=max(1, int(request.seconds)), retry_handlers=[])
    channel, _, ts = request.thread.partition("/")
    try:
        message: dict[str, Any] = client.reactions_get(channel=channel, timestamp=ts, full=True).get("message", {})
    except SlackApiError as error:
        return _bot_refusal(error)
    found = [
        f"{reaction['name'].partition('::')[0]}:{user}"
        for reaction in message.get("reactions", ())
        for user in reaction["users"]
    ]
    return PostAnswer(200, " ".join(found[:_MOST_REACTIONS]))


def _bot_refusal(error: Any) -> PostAnswer:
    """An HTTP status for Slack's own words; what is wrong with the set-up can be mended while the message waits."""
    reason, status = str(error.response.get("error", "")), int(error.response.status_code)
    if status == 200:
        status = 400 if reason in _SPOILED else 503
    return PostAnswer(status, reason[:_MOST_DETAIL], error.response.headers.get("Retry-After"))


def signature(body: bytes, key: str, at: int) -> str:
    """What a receiver compares: HMAC-SHA256 of the moment (Unix time), a dot and the body. The moment is in it, so that
    an old message cannot be sent again."""
    digest = hmac.new(key.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


def _as_json(request: PostRequest) -> PostAnswer:
    if not request.url.startswith(("http://", "https://")):
        return PostAnswer(400, "the URL is neither http nor https")
    headers = {"Content-Type": request.content_type, "User-Agent": "stallwatch"}
    if request.signing_key:
        headers[SIGNATURE] = signature(bytes(request.body), request.signing_key, int(time.time()))
    if request.bearer:
        headers["Authorization"] = f"Bearer {request.bearer}"
    outgoing = urllib.request.Request(request.url, bytes(request.body), headers, method="POST")  # noqa: S310
    try:
        with urllib.request.urlopen(outgoing, timeout=request.seconds) as response:  # noqa: S310
            return PostAnswer(response.status, response.read(_MOST_DETAIL).decode("utf-8", "replace"))
    except urllib.error.HTTPError as error:
        detail = error.read(_MOST_DETAIL).decode("utf-8", "replace")
        return PostAnswer(error.code, detail, error.headers.get("retry-after"))


_KINDS = {"slack": _to_slack, "slack_bot": _as_bot, "slack_reactions": _reactions, "json": _as_json}


def main() -> None:
    """Post the requests of standard input, one after the other."""
    drop_unless_root()
    if sys.argv[1:] and sys.argv[1].startswith("slack"):
        import slack_sdk.webhook  # noqa: F401  while there is nothing to send yet
    answer_requests(lambda request: json_of(post(msgspec.json.decode(request, type=PostRequest))), KEEP_SECONDS)


if __name__ == "__main__":
    as_child(main)
