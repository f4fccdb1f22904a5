"""What can be configured: every section with its keys, each with its meaning, its default and its bounds."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from stallwatch.model.snapshot import SENSORS


def _key(description: str, **bounds: Any) -> Meta:
    """A key with its meaning; `bounds`: gt, ge, lt, le."""
    meta: Meta = Meta(description=description, **bounds)
    return meta


def _secret(description: str) -> Meta:
    """A key whose value is shown to nobody and not kept with an incident."""
    return Meta(description=description, extra={"secret": True})


def _secret_file(description: str) -> Meta:
    """A key that names a file with a secret, which its part reads once, when it is made."""
    return Meta(description=description, extra={"secret_file": True})


class DaemonSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the daemon reads and writes, and how it lives."""

    rank_directory: Annotated[str, _key("Where hooks write their records; empty: as the hook chooses.")] = ""
    state_directory: Annotated[str, _key("Incidents, spool and daemon state.")] = "/var/lib/stallwatch"
    run_directory: Annotated[str, _key("Control socket and page token.")] = "/run/stallwatch/daemon"
    privileged_socket: Annotated[
        str,
        _key(
            "Where the privileged side listens that is a unit of its own; empty: the daemon starts one "
            "with the rights that it was given, and keeps none."
        ),
    ] = ""
    node: Annotated[
        str, _key("How this node is called, to people and other nodes; no two of a fleet alike; empty: its host name.")
    ] = ""
    tick_seconds: Annotated[float, _key("Time between two looks at the node.", gt=0, le=60)] = 1.0
    minimum_world_size: Annotated[int, _key("Jobs with fewer ranks are shown but never told.", ge=1)] = 2


class HttpSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The status page, metrics and API: where they listen and who may ask."""

    listen: Annotated[str, _key("host:port of metrics, status page and API; empty: no TCP at all.")] = "127.0.0.1:9477"
    token_file: Annotated[
        str, _secret_file("File with the bearer token of page and API; empty: made in run_directory.")
    ] = ""
    external_url: Annotated[str, _key("How people reach the page, for links in alerts.")] = ""
    socket_group: Annotated[str, _key("Group that may use the control socket; empty: the daemon's own.")] = ""
    socket_for_everybody: Annotated[
        bool, _key("Every user may use the control socket: members of the group see all jobs, others their own.")
    ] = False
    proxy_token_file: Annotated[
        str,
        _secret_file(
            "File with the bearer token of a proxy that has asked people to log in (a secret, another one "
            "than the page's): it says who asks, and he sees what he would on the control socket."
        ),
    ] = ""
    proxy_user_header: Annotated[str, _key("Header in which that proxy says who asks.")] = "X-Forwarded-User"


# A switch for each sensor that the table gives one.
_SWITCHES: Any = msgspec.defstruct(
    "SensorSwitches",
    [(spec.name, Annotated[bool, _key(spec.switch)], True) for spec in SENSORS if spec.switch],
    frozen=True,
    forbid_unknown_fields=True,
)


class SensorsSection(_SWITCHES, frozen=True, forbid_unknown_fields=True):  # type: ignore[misc, call-arg]
    """Which sources are read on this node, and how long they may take."""

    deadline_seconds: Annotated[float, _key("How long one look at the node may take.", gt=0, le=60)] = 0.5
    discover_seconds: Annotated[float, _key("Time between two searches for ranks that have no hook.", gt=0)] = 5.0
    keep_ended_seconds: Annotated[
        float, _key("How long a rank that ended stays visible before its record is removed.", gt=0)
    ] = 120.0


class StallSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a rank that stands still is suspected of a hang."""

    enabled: Annotated[bool, _key("Watch for ranks whose step stands still.")] = True
    floor_seconds: Annotated[float, _key("No limit is ever shorter.", gt=0)] = 5.0
    second_look_seconds: Annotated[float, _key("From suspicion to the second look that makes a verdict.", gt=0)] = 2.0
    unlearned_seconds: Annotated[float, _key("Limit before enough steps were seen to learn one.", gt=0)] = 60.0
    quiet_seconds: Annotated[
        float, _key("A job without hooks is looked at when no rank works for this long, or one alone for twice.", gt=0)
    ] = 30.0
    critical_after_seconds: Annotated[float, _key("A warning that still stands becomes critical after this.", gt=0)] = (
        60.0
    )
    start_seconds: Annotated[
        float, _key("A job whose ranks have not begun to step is looked at (nobody is told) after this.", gt=0)
    ] = 5.0
    left_behind_seconds: Annotated[
        float, _key("A rank that stands still while others of its job move is looked at after this.", gt=0)
    ] = 30.0


class SlowSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a rank that holds a moving job back is a finding."""

    enabled: Annotated[bool, _key("Watch for ranks that hold a moving job back.")] = True
    cost_share: Annotated[
        float, _key("A rank is slow when each step takes this much longer for it: 0.1 is 10 % of a step.", gt=0, lt=10)
    ] = 0.1


class DriftSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the calls of a moving job's ranks are compared."""

    every_seconds: Annotated[
        float,
        _key("Time between two samples that compare what the ranks of a moving job call; 0: none are taken.", ge=0),
    ] = 300.0
    seconds: Annotated[float, _key("Deadline of one sample.", gt=0, le=300)] = 30.0


class TellSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """After how much time people are told of what may yet end by itself."""

    waiting_share: Annotated[
        float, _key("What demonstrably moves is told when this share of the job's own time-out has passed.", gt=0, le=1)
    ] = 0.8
    waiting_seconds: Annotated[
        float, _key("The same where the job's time-out is not known: told after this.", gt=0)
    ] = 900.0
    sleep_seconds: Annotated[
        float, _key("A rank that sleeps or backs off between retries is told after this.", ge=0)
    ] = 120.0
    compute_seconds: Annotated[
        float, _key("A rank that computes at the same lines (a garbage collection, an index) is told after this.", ge=0)
    ] = 120.0
    first_use_seconds: Annotated[
        float, _key("The first use of a communicator, which connects its ranks, is told after this.", ge=0)
    ] = 60.0
    storage_seconds: Annotated[float, _key("A read or write of files that does not flow is told after this.", ge=0)] = (
        120.0
    )
    network_seconds: Annotated[float, _key("A wait for the network that does not flow is told after this.", ge=0)] = (
        120.0
    )
    data_seconds: Annotated[float, _key("A data loader that does not deliver is told after this.", ge=0)] = 120.0
    compile_seconds: Annotated[float, _key("A compiler at work is told after this.", ge=0)] = 600.0
    import_seconds: Annotated[float, _key("An import that lasts is told after this.", ge=0)] = 600.0
    tracker_seconds: Annotated[
        float, _key("An experiment tracker that finishes its upload is told after this.", ge=0)
    ] = 600.0
    child_seconds: Annotated[
        float, _key("A program that a rank started and waits for (a copy, a converter) is told after this.", ge=0)
    ] = 120.0
    timeout_seconds: Annotated[float, _key("A wait with a time-out of its own is told after this.", ge=0)] = 120.0
    lock_seconds: Annotated[
        float, _key("A wait for a lock that a program beside the job holds is told after this.", ge=0)
    ] = 120.0
    request_seconds: Annotated[
        float, _key("A rank that waits for requests, as a server does, is told after this; without a hook never.")
    ] = 120.0
    idle_seconds: Annotated[
        float, _key("A job of which every rank stands outside of communication (a rollout) is told after this.", ge=0)
    ] = 3600.0
    undecided_seconds: Annotated[
        float, _key("A job that stands still for reasons unknown is told as a warning after this.")
    ] = 300.0
    start_share: Annotated[
        float, _key("A job that has never stepped is told when this share of its own time-out has passed.", gt=0, le=1)
    ] = 0.5
    start_seconds: Annotated[
        float,
        _key(
            "The same where the job's time-out is not known: half of NCCL's default of ten minutes. A rank that "
            "computes or serves before it joins, and ranks that all wait to join, are told at waiting_share of "
            "that default.",
            gt=0,
        ),
    ] = 300.0
    unbegun_seconds: Annotated[
        float,
        _key(
            "A job that has never stepped, whose ranks wait for nobody knows whom, or for one that serves (RPC), is "
            "told as a warning once none of them has done any work for this (a thread that waits may spin): starts "
            "last up to an hour. Not where they wait to join (start_seconds). Twice this where some of its ranks, or "
            "what they read and write, are not seen.",
            gt=0,
        ),
    ] = 5400.0
    settle_seconds: Annotated[
        float, _key("A guess, and what stands inside a phase, must be seen so for this long before it is told.")
    ] = 40.0
    stopped_seconds: Annotated[
        float, _key("A rank held by a stop signal is told after this: who moves a job lets go of it again.", ge=0)
    ] = 5.0
    ending_seconds: Annotated[
        float, _key("Time that a job gets to end after SIGTERM or a first exit 0, before it is told.")
    ] = 30.0
    terminals: Annotated[bool, _key("Tell about jobs that run in somebody's terminal session or a debugger, too.")] = (
        False
    )


class CaptureSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How evidence is taken of ranks under suspicion, and how long each part may take."""

    py_spy: Annotated[str, _key("py-spy's executable, its whole path; empty: the one of our own installation.")] = ""
    stack_seconds: Annotated[float, _key("Deadline of one stack capture.", gt=0)] = 5.0
    dump_seconds: Annotated[float, _key("How long a rank may take to answer a dump request.", gt=0)] = 8.0
    pause_for_stacks: Annotated[
        bool, _key("After the look that pauses nothing, take one that pauses the rank for milliseconds.")
    ] = True
    recorder_stacks: Annotated[
        bool, _key("From the third look at a job that stands, ask for call sites (holds the GIL for seconds).")
    ] = True
    nccl_ras: Annotated[
        Literal["auto", "always", "off"],
        _key(
            "NCCL's RAS: auto (asked from 2.29.2 on; 2.28.9 while no rank is missing: else it may crash), always, off."
        ),
    ] = "auto"
    seconds: Annotated[float, _key("Deadline of a whole look; what is missing then is said.", gt=0)] = 25.0
    ranks_of_root: Annotated[
        bool,
        _key(
            "Look into ranks that run as root too, where the service itself does not: for containers whose "
            "root is the node's. Their hooks tell of them all the same."
        ),
    ] = False


class DiagnosisSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the child that reads the evidence and judges may use."""

    seconds: Annotated[float, _key("Deadline of the child that reads the evidence and judges.", gt=0)] = 60.0
    memory_bytes: Annotated[int, _key("Memory limit of that child.", ge=64 << 20)] = 2 << 30


class IncidentSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many incidents are kept on disk, and for how long."""

    keep_bytes: Annotated[int, _key("Oldest bundles go when all take more than this.", ge=0)] = 2 << 30
    keep_seconds: Annotated[float, _key("Bundles older than this go.", gt=0)] = 30 * 86400.0
    timeline_seconds: Annotated[
        float, _key("How much of the time before an incident its timeline holds.", gt=0, le=3600)
    ] = 60.0
    archive: Annotated[
        str,
        _key(
            "Where bundles are kept beyond this node: a directory, or an address that fsspec knows: "
            "s3://bucket/stallwatch; empty: nowhere. Needs the package fsspec, for S3 s3fs."
        ),
    ] = ""
    archive_options_file: Annotated[
        str, _key("JSON file with the storage's options (key, secret, endpoint_url: a secret).")
    ] = ""
    archive_keep_days: Annotated[int, _key("Archived bundles older than this go; 0: none do.", ge=0)] = 90
    maximum_looks: Annotated[int, _key("Looks at one incident; the last is repeated no more.", ge=2)] = 12


class SlackSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where Slack gets incidents, and which."""

    webhook_url_file: Annotated[str, _secret_file("File that holds the incoming-webhook URL (a secret).")] = ""
    webhook_url: Annotated[str, _secret("The URL itself; prefer the file or STALLWATCH_SLACK_WEBHOOK_URL.")] = ""
    minimum_severity: Annotated[Literal["warning", "critical"], _key("Tell from this on: warning or critical.")] = (
        "warning"
    )
    attempt_seconds: Annotated[
        float, _key("Deadline of one attempt; failed ones are repeated later.", gt=0, le=120)
    ] = 15.0

    bot_token_file: Annotated[
        str, _secret_file("File with a bot token (a secret): one thread an incident, instead of a webhook.")
    ] = ""
    bot_token: Annotated[str, _secret("The token itself; prefer the file or STALLWATCH_SLACK_BOT_TOKEN.")] = ""
    channel: Annotated[str, _key("Where the bot writes: a channel's id or name.")] = ""
    channels: Annotated[
        str,
        _key(
            "Other channels by job or owner, the first that fits: llama-*=#llama, owner:anna=#anna. "
            "A digest goes to `channel`."
        ),
    ] = ""
    api_url: Annotated[str, _key("Slack's API, for a GovSlack of your own.")] = "https://slack.com/api/"
    messages_per_hour: Annotated[
        int, _key("Of each user; more than these wait and arrive as one digest.", ge=1, le=1000)
    ] = 20
    also: Annotated[
        bool,
        _key(
            "Tell Slack although alertmanager.urls is set. Without it Slack hears of incidents by Alertmanager's "
            "routes alone, so that people are told once."
        ),
    ] = False


class WebhookSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where each step of an incident is posted as a CloudEvent."""

    url_file: Annotated[
        str, _secret_file("File with an address that gets each step of an incident as CloudEvents 1.0 (a secret).")
    ] = ""
    url: Annotated[str, _secret("The address itself; prefer the file or STALLWATCH_WEBHOOK_URL.")] = ""
    signing_key_file: Annotated[
        str, _secret_file("File with a key by which each message is signed (HMAC-SHA256); empty: none is.")
    ] = ""
    minimum_severity: Annotated[Literal["warning", "critical"], _key("Tell from this on: warning or critical.")] = (
        "warning"
    )
    attempt_seconds: Annotated[
        float, _key("Deadline of one attempt; failed ones are repeated later.", gt=0, le=120)
    ] = 15.0


class AlertmanagerSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which Alertmanagers get each incident as an alert."""

    urls: Annotated[
        str,
        _secret(
            "Alertmanagers that get each incident as one alert with sentence, line, steps and deadline; "
            "of a cluster all, with commas between them: http://am1:9093, http://am2:9093."
        ),
    ] = ""
    cluster: Annotated[str, _key("Value of the label cluster; empty: none.")] = ""
    minimum_severity: Annotated[Literal["warning", "critical"], _key("Tell from this on: warning or critical.")] = (
        "warning"
    )


class DeadmanSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who is asked regularly while the daemon lives, so that its silence is noticed."""

    url_file: Annotated[
        str, _secret_file("File with an address that is asked while the daemon's loop lives; its silence alerts.")
    ] = ""
    url: Annotated[str, _secret("The address itself; prefer the file or STALLWATCH_DEADMAN_URL.")] = ""
    every_seconds: Annotated[float, _key("Time between two signs of life.", ge=1)] = 60.0


class FleetSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How several nodes are told of as one, and whether people are told at all."""

    mode: Annotated[
        Literal["tell", "shadow", "off"],
        _key(
            "tell: people are told; shadow: all is watched and judged, and nobody is told; off: no rank "
            "is looked at and nobody is told. `stallwatch mode` sets it for a time on all nodes."
        ),
    ] = "tell"
    url: Annotated[
        str,
        _key(
            "Where the nodes of a job meet, so that one verdict is told by one of them: redis://host:6379, "
            "rediss:// (TLS), redis+sentinel://h1:26379,h2:26379/name, file:///shared/folder; empty: each judges alone."
        ),
    ] = ""
    username: Annotated[str, _key("Redis user, whose rights end at keys that begin with stallwatch:.")] = ""
    password_file: Annotated[str, _key("File with that user's password (a secret).")] = ""
    ca_file: Annotated[str, _key("Certificates that a rediss server's must lead to; empty: the system's.")] = ""
    key_file: Annotated[
        str, _key("File with the secret, the same on all nodes, by which nodes know each other's word.")
    ] = ""
    detail: Annotated[
        Literal["none", "functions", "lines"],
        _key(
            "What of a job's code other nodes may see: functions (with the ends of paths), lines too (and "
            "messages of exceptions), or none."
        ),
    ] = "functions"


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole configuration; a missing section has its defaults."""

    daemon: DaemonSection = DaemonSection()
    http: HttpSection = HttpSection()
    sensors: SensorsSection = SensorsSection()
    stall: StallSection = StallSection()
    slow: SlowSection = SlowSection()
    drift: DriftSection = DriftSection()
    tell: TellSection = TellSection()
    capture: CaptureSection = CaptureSection()
    diagnosis: DiagnosisSection = DiagnosisSection()
    incidents: IncidentSection = IncidentSection()
    slack: SlackSection = SlackSection()
    webhook: WebhookSection = WebhookSection()
    alertmanager: AlertmanagerSection = AlertmanagerSection()
    deadman: DeadmanSection = DeadmanSection()
    fleet: FleetSection = FleetSection()
