"""POSTs one message and exits. Runs as a child, so that no name server and no server that answers a byte a minute
can hold the daemon: `python -m stallwatch.outputs.poster`, a Request on standard input, an Answer on standard output.
"""

import sys
from typing import Literal

import msgspec


class Request(msgspec.Struct, frozen=True):
    kind: Literal["slack", "json"]
    url: str  # a secret: never in arguments, errors or logs
    body: msgspec.Raw
    seconds: float  # for each step of the exchange; the parent kills us when the whole takes too long
    bearer: str = ""


class Answer(msgspec.Struct, frozen=True):
    status: int | None  # None: no answer came
    detail: str
    retry_after: str | None = None


_MOST_DETAIL = 300  # characters of a server's own words that are worth keeping


def post(request: Request) -> Answer:
    try:
        return _to_slack(request) if request.kind == "slack" else _as_json(request)
    except Exception as error:  # noqa: BLE001  the guard of this child: whatever happened becomes an answer
        reason = getattr(error, "reason", None) or error
        return Answer(None, f"{type(error).__name__}: {reason}".replace(request.url, "<url>")[:_MOST_DETAIL])


def _to_slack(request: Request) -> Answer:
    from slack_sdk.webhook import WebhookClient

    # Retries are ours: they outlive this process.
    client = WebhookClient(request.url, timeout=max(1, int(request.seconds)), retry_handlers=[])
    response = client.send_dict(msgspec.json.decode(request.body))
    headers = {name.lower(): value for name, value in dict(response.headers).items()}
    return Answer(response.status_code, response.body[:_MOST_DETAIL], headers.get("retry-after"))


def _as_json(request: Request) -> Answer:
    import urllib.error
    import urllib.request

    if not request.url.startswith(("http://", "https://")):
        return Answer(400, "the URL is neither http nor https")
    headers = {"Content-Type": "application/json", "User-Agent": "stallwatch"}
    if request.bearer:
        headers["Authorization"] = f"Bearer {request.bearer}"
    outgoing = urllib.request.Request(request.url, bytes(request.body), headers, method="POST")  # noqa: S310
    try:
        with urllib.request.urlopen(outgoing, timeout=request.seconds) as response:  # noqa: S310
            return Answer(response.status, response.read(_MOST_DETAIL).decode("utf-8", "replace"))
    except urllib.error.HTTPError as error:
        detail = error.read(_MOST_DETAIL).decode("utf-8", "replace")
        return Answer(error.code, detail, error.headers.get("retry-after"))


def main() -> None:
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    sys.stdout.buffer.write(msgspec.json.encode(post(request)))


if __name__ == "__main__":
    main()
