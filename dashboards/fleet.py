"""The whole cluster at a glance: which job stands, where, and does stallwatch itself work."""

from grafana_foundation_sdk.builders import dashboard as board

from dashboards import parts
from dashboards.parts import graph, listing, number, query

_LEGEND = "{{training_job}} {{owner}}"
_JUDGED = "stallwatch_verdicts_judged_total"
_RIGHT = f'{_JUDGED}{{judgement="right"}}'
STALLS = "/d/stallwatch-stalls/collective-stalls?${datasource:queryparam}&${__url_time_range}"
NODE = "/d/stallwatch-node/node?${datasource:queryparam}&${__url_time_range}"
_JOB = 'training_job=~"$training_job"'


def fleet() -> board.Dashboard:
    made = parts.dashboard(
        "stallwatch-fleet",
        "Fleet",
        "Every training job that stallwatch's daemons watch, and the daemons themselves.",
        parts.variable("training_job", "Job", "stallwatch_job_world_size", "training_job"),
    ).annotation(parts.incidents_annotation(_JOB + ', severity!="none"'))
    for panel in (
        number(
            "Does any job stand still?",
            "Open incidents that somebody was told about.",
            "short",
            f'count(stallwatch_incident_info{{{_JOB}, state="open", severity!="none", muted="false"}}) or vector(0)',
            bad_from=1,
            width=6,
            link=STALLS,
        ),
        number(
            "How many ranks do not move?",
            "Ranks that are suspect or stopped. A rank that is gone is no stall: the table below has those that a "
            "verdict names.",
            "short",
            f'count(stallwatch_rank_state{{{_JOB}, state=~"suspect|stopped"}}) or vector(0)',
            bad_from=1,
            width=6,
        ),
        number(
            "How many ranks are watched?",
            "Ranks that a daemon sees, of all jobs.",
            "short",
            f"sum(stallwatch_job_ranks{{{_JOB}}}) or vector(0)",
            width=6,
        ),
        number(
            "Do all daemons answer?",
            "Share of the scraped daemons that answer Prometheus.",
            "percentunit",
            'avg(up{job="stallwatch"})',
            good_from=1,
            width=6,
            none="no daemon",
        ),
        listing(
            "Which jobs stand or have died, and which rank is to blame?",
            "Open incidents, and those that ended with their job in the last five minutes. The cause is the verdict of "
            "the node's daemon; culprit ranks are empty where nobody is.",
            [
                query(
                    "max by (training_job, owner, cause, culprit_ranks, where, operation, waiting, confidence, "
                    "severity, state, muted, incident_id, node, url) "
                    f'(stallwatch_incident_info{{{_JOB}, state=~"open|ended"}})',
                    now=True,
                )
            ],
            {
                "training_job": "job",
                "owner": "owner",
                "cause": "cause",
                "culprit_ranks": "culprit",
                "where": "where",
                "operation": "operation",
                "waiting": "waiting",
                "confidence": "confidence",
                "severity": "severity",
                "state": "state",
                "muted": "muted",
                "node": "node",
                "incident_id": "incident",
                "url": "status page",
            },
            links={
                "training_job": ("Collective stalls", STALLS + "&var-training_job=${__value.text}"),
                "node": ("Node", NODE + "&var-node=${__value.text}"),
                "url": ("Open the incident", "${__value.text}"),
            },
            none="No open incident",
        ),
        graph(
            "Which job has not made a step for how long?",
            "Longest time without a step over the job's ranks. A checkpoint or an evaluation is a hill, a stall does "
            "not come down again.",
            "s",
            query(
                f"max by (training_job, owner) (stallwatch_rank_beat_age_seconds{{{_JOB}}})",
                _LEGEND,
            ),
        ),
        graph(
            "How fast does each job step?",
            "Median over ranks of the median duration of their recent steps.",
            "s",
            query(
                f"quantile by (training_job, owner) (0.5, stallwatch_rank_step_seconds{{{_JOB}}})",
                _LEGEND,
            ),
        ),
        graph(
            "What has gone wrong lately, by cause?",
            "Incidents in an hour, by the cause of their first verdict.",
            "short",
            query(
                "sum by (training_job, owner, cause)"
                f" ({parts.happened(f'stallwatch_incidents_total{{{_JOB}}}', '1h')})",
                "{{training_job}} {{cause}}",
            ),
            width=8,
        ),
        graph(
            "What do hangs cost?",
            "GPU hours lost in the last day, by job and cause: the GPUs of a job that stood, for as long as it stood.",
            "h",
            query(
                "sum by (training_job, cause) "
                f"({parts.happened(f'stallwatch_stalled_gpu_seconds_total{{{_JOB}}}', '1d')}) / 3600",
                "{{training_job}} {{cause}}",
            ),
            width=8,
        ),
        graph(
            "How often are verdicts right?",
            "Of the verdicts of a month that somebody has judged (`stallwatch incidents judge ID right|wrong`).",
            "percentunit",
            query(
                f"sum({parts.happened(_RIGHT, '30d')}) / sum({parts.happened(_JUDGED, '30d')})",
                "right",
            ),
            width=8,
        ),
        graph(
            "Is the whole job there?",
            "Ranks that daemons see as a share of the job's world size. Below 1: nodes without a daemon, or ranks that "
            "never started or are gone.",
            "percentunit",
            query(
                f"sum by (training_job, owner) (stallwatch_job_ranks{{{_JOB}}})"
                f" / max by (training_job, owner) (stallwatch_job_world_size{{{_JOB}}})",
                _LEGEND,
            ),
            width=8,
        ),
        graph(
            "Which hardware complains?",
            "XIDs in ten minutes, by node and code.",
            "short",
            query(
                f"sum by (instance, xid) ({parts.happened('stallwatch_gpu_xid_total', '10m')})",
                "{{instance}} XID {{xid}}",
            ),
            width=8,
        ),
        graph(
            "Do alerts arrive?",
            "Messages by what became of them; what waits is a queue that does not empty.",
            "short",
            query("sum by (output, result) (stallwatch_output_deliveries_total)", "{{output}} {{result}}"),
            query("sum by (output) (stallwatch_output_queue_messages)", "{{output}} waiting", "B"),
            query("sum by (output, owner) (stallwatch_output_held_messages)", "{{output}} held of {{owner}}", "C"),
            width=8,
        ),
        graph(
            "What does stallwatch cost?",
            "CPU of each daemon, its children included, in cores.",
            "short",
            query("rate(stallwatch_process_cpu_seconds_total[1m])", "{{instance}}"),
            width=8,
        ),
        listing(
            "Which daemon is blind or dumb?",
            "Required sensors that do not answer and outputs that do not deliver, by node.",
            [
                query(
                    '(stallwatch_sensor_up{required="true"} == 0) or (stallwatch_output_up == 0)'
                    " or (changes(stallwatch_ticks_total[2m]) == 0)",
                    now=True,
                )
            ],
            {"instance": "node", "sensor": "sensor", "output": "output"},
            width=8,
            height=8,
            none="All see and speak",
        ),
    ):
        made = made.with_panel(panel)
    return made
