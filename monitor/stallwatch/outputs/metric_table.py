"""Every metric that stallwatch exports, once: name, kind, labels, meaning; those of a sensor stand in its row
(model.snapshot). The reference table comes from here.

A series is absent when its value is unknown or its object is gone; it is never 0 or NaN for "not known".
The label of the training job is `training_job`, since `job` belongs to the scrape; `owner` is the user whose job it is.
"""

from collections.abc import Iterator

from stallwatch.model.gpu_metrics import GPU_LABELS
from stallwatch.model.metric import Family
from stallwatch.model.snapshot import SENSORS

_JOB = ("training_job", "owner")  # names of jobs are free to every user of a node
_RANK = (*_JOB, "rank")
_INCIDENT = (*_JOB, "incident_id")

FAMILIES: tuple[Family, ...] = (
    Family("stallwatch_build_info", "gauge", ("version", "python", "node"), "Always 1; what runs, and on which node."),
    # Ranks
    Family(
        "stallwatch_rank_info",
        "gauge",
        (*_RANK, "epoch", "local_rank", "node", "pid", "gpu_uuid"),
        "Always 1; who and where a rank is. Join on training_job, owner and rank.",
    ),
    Family(
        "stallwatch_rank_untested_version",
        "gauge",
        (*_RANK, "library", "version"),
        "Always 1; a library of the rank that is newer than any whose recorder was tried: verdicts by it are at most "
        "likely.",
        no_panel="to ask when a verdict is less sure than usual",
    ),
    Family("stallwatch_rank_step", "gauge", _RANK, "Step that the rank's training loop has reached."),
    Family("stallwatch_rank_step_seconds", "gauge", _RANK, "Median duration of the rank's recent steps."),
    Family("stallwatch_rank_beat_age_seconds", "gauge", _RANK, "Time since the rank's step was last seen to change."),
    Family(
        "stallwatch_rank_pulse_age_seconds",
        "gauge",
        _RANK,
        "Time since the hook's own thread was last seen alive; it stops when the GIL is held or the process stopped.",
    ),
    Family("stallwatch_rank_limit_seconds", "gauge", _RANK, "Age of the last step at which the rank is suspect."),
    Family("stallwatch_rank_phase", "gauge", (*_RANK, "phase"), "1 while the rank is in this phase."),
    Family(
        "stallwatch_rank_state",
        "gauge",
        (*_RANK, "state"),
        "1 for the state the rank is in: starting, stepping, phase, waiting, suspect, stopped, ending, gone, unknown.",
    ),
    Family(
        "stallwatch_rank_operations_enqueued",
        "gauge",
        (*_RANK, "recorder"),
        "Last operation numbers of the rank's process groups, summed; says changed or unchanged, nothing more.",
    ),
    Family(
        "stallwatch_rank_operations_completed",
        "gauge",
        (*_RANK, "recorder"),
        "Last completed numbers of the rank's process groups, summed; says changed or unchanged, nothing more.",
    ),
    Family(
        "stallwatch_rank_group_pending_operations",
        "gauge",
        (*_RANK, "recorder", "group"),
        "Operations of one process group that are enqueued and not completed; absent while there are none, at most 8 "
        "groups a rank. group is its description and a hash of its members, the same on every rank and in an incident; "
        "`local` and a number of the rank's own where torch does not tell.",
    ),
    Family(
        "stallwatch_rank_communication_ratio",
        "gauge",
        _RANK,
        "Share of the recent looks (64 at most, phases left out) at which the rank stood in a collective.",
    ),
    Family(
        "stallwatch_rank_slow_score_ratio",
        "gauge",
        _RANK,
        "What the rank costs its job by making its peers on this node wait in collectives: 0.1 is a job that is 10 % "
        "slower for it, as findings and verdicts say; 0 for one that makes nobody wait.",
    ),
    Family("stallwatch_job_world_size", "gauge", _JOB, "Ranks of the whole training job."),
    Family("stallwatch_job_ranks", "gauge", _JOB, "Ranks of the job here that are not gone; absent if all are."),
    # Incidents
    Family(
        "stallwatch_findings",
        "gauge",
        (*_JOB, "detector", "stage"),
        "Symptoms that a detector sees now; a suspect one has told nobody.",
        no_panel="suspicions come and go; incidents are what people act on",
    ),
    Family(
        "stallwatch_incidents_open",
        "gauge",
        (*_JOB, "cause", "severity"),
        "Open incidents; cause is empty until there is a verdict.",
        no_panel="counted from stallwatch_incident_info, which links to the incident too",
    ),
    Family(
        "stallwatch_incidents_total",
        "counter",
        (*_JOB, "cause"),
        "Incidents since the daemon started, by the cause of their first verdict.",
    ),
    Family(
        "stallwatch_verdicts_judged_total",
        "counter",
        ("cause", "judgement"),
        "Verdicts of which somebody has said since the daemon started whether they were right or wrong (`stallwatch "
        "incidents judge`).",
    ),
    Family(
        "stallwatch_stalled_gpu_seconds_total",
        "counter",
        (*_JOB, "cause"),
        "What hangs cost: time of this node's GPUs whose job stood, from when it began to stand, since the daemon "
        "started; of a rank that holds its job back the part that is lost for it.",
    ),
    Family(
        "stallwatch_incident_info",
        "gauge",
        (
            *_INCIDENT,
            *("cause", "severity", "state", "muted", "confidence", "culprit_ranks", "where", "operation", "group"),
            *("waiting", "node", "told_by", "url"),
        ),
        "Always 1; an incident with its verdict, until five minutes after its end. state is suspect, open, resolved "
        "(it moves again) or ended (it died, or was ended as it stood); severity is none while nobody is told; told_by "
        "names the chats "
        "to which this daemon writes by itself, so that Alertmanager need not; group is the process group's "
        "description and a hash of its members, the same on every node; url is the incident on the status page.",
    ),
    Family(
        "stallwatch_culprit",
        "gauge",
        (*_RANK, "incident_id", "cause", "where", "node", "pid", "gpu_uuid", "code"),
        "Always 1; a rank that the verdict of an incident names, with the line of code it stands in.",
    ),
    Family(
        "stallwatch_incident_start_timestamp_seconds",
        "gauge",
        _INCIDENT,
        "When the incident was opened (Unix time).",
    ),
    Family(
        "stallwatch_incident_deadline_timestamp_seconds",
        "gauge",
        _INCIDENT,
        "When torch's own timeout will end the job of the open incident (Unix time).",
    ),
    Family(
        "stallwatch_incident_evidence_complete",
        "gauge",
        _INCIDENT,
        "1 when all evidence of the open incident is on disk: the job can be ended without losing any.",
    ),
    # Of sensors, and of what is counted of them
    *(family for sensor in SENSORS for family in sensor.metrics),
    Family(
        "stallwatch_gpu_xid_total",
        "counter",
        (*GPU_LABELS, "xid"),
        "XIDs since the daemon started, by code; a GPU that NVML does not know is named by its PCI address.",
    ),
    # stallwatch itself
    Family(
        "stallwatch_sensor_up",
        "gauge",
        ("sensor", "required"),
        "1 when the sensor answered; one with required=false may be absent.",
    ),
    Family("stallwatch_sensor_duration_seconds", "gauge", ("sensor",), "How long the sensor's last look took."),
    Family("stallwatch_sensor_errors_total", "counter", ("sensor",), "Looks of the sensor that failed."),
    Family("stallwatch_output_up", "gauge", ("output",), "1 when the output delivers, 0 when it has a problem."),
    Family(
        "stallwatch_output_deliveries_total",
        "counter",
        ("output", "result"),
        "Messages by what became of them: delivered, repeated (delivered, and perhaps a second time: an earlier daemon "
        "ended in the midst of its attempt), retried, refused, dropped.",
    ),
    Family("stallwatch_output_queue_messages", "gauge", ("output",), "Messages that wait for delivery."),
    Family(
        "stallwatch_output_held_messages",
        "gauge",
        ("output", "owner"),
        "Messages of a user's jobs that wait because his budget of an hour is used up; absent while none do.",
    ),
    Family("stallwatch_stage_errors_total", "counter", ("stage", "name"), "Errors caught at the guard of a stage."),
    Family(
        "stallwatch_mode",
        "gauge",
        ("mode",),
        "Always 1; tell, shadow (nobody is told) or off (nor is a rank looked at): fleet.mode, or as `stallwatch "
        "mode` says.",
    ),
    Family(
        "stallwatch_fleet_other_key_nodes",
        "gauge",
        (),
        "Nodes at the meeting place that sign with another key than this one (fleet.key_file): more than 0 is a "
        "mistake, by which each side tells what it sees alone. Absent where nodes do not meet.",
    ),
    Family("stallwatch_ticks_total", "counter", (), "Looks at the node since the daemon started."),
    Family("stallwatch_tick_late_seconds", "gauge", (), "How late the daemon's last look at the node was."),
    Family(
        "stallwatch_tick_timestamp_seconds",
        "gauge",
        (),
        "When the node was last looked at (Unix time).",
        no_panel="for rules of one's own: clocks of nodes differ",
    ),
    Family("stallwatch_process_cpu_seconds_total", "counter", (), "CPU time of the daemon and its finished children."),
    Family("stallwatch_process_resident_memory_bytes", "gauge", (), "Resident memory of the daemon and its children."),
    Family("stallwatch_process_start_time_seconds", "gauge", (), "When the daemon started (Unix time)."),
)  # fmt: skip


def reference() -> Iterator[str]:
    """The table for people, as lines of Markdown."""
    yield "| metric | kind | labels | meaning |"
    yield "|---|---|---|---|"
    for family in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        no_panel = f" In no dashboard: {family.no_panel}." if family.no_panel else ""
        yield f"| `{family.name}` | {family.kind} | {labels} | {family.help}{no_panel} |"
