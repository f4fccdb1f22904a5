"""One job that stands: which rank, since when, where in its code, and who waits for it."""

from grafana_foundation_sdk.builders import dashboard as board
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as model

from dashboards import parts
from dashboards.fleet import NODE
from dashboards.parts import graph, listing, query

_JOB = 'training_job=~"$training_job"'
_RANK = _JOB + ', rank=~"$rank"'
# GPUs of the chosen ranks, with the rank as a label. Two ranks may share a GPU: then the lower one names it.
_LEGEND = "{{training_job}} rank {{rank}}"
_OF_RANK = (
    " * on (gpu_uuid) group_left (training_job, owner, rank)"
    " topk by (gpu_uuid) (1, max by (gpu_uuid, training_job, owner, rank)"
    f' (stallwatch_rank_info{{{_RANK}, gpu_uuid!=""}}))'
)


def collective_stalls() -> board.Dashboard:
    made = parts.dashboard(
        "stallwatch-stalls",
        "Collective stalls",
        "One training job: which rank holds it up, where, and what the others do meanwhile.",
        parts.variable("training_job", "Job", "stallwatch_job_world_size", "training_job"),
        parts.variable("rank", "Rank", "stallwatch_rank_info", "rank", _JOB),
    ).annotation(parts.incidents_annotation(_JOB + ', severity!="none"'))
    busy_against_power = graph(
        "Is a GPU computing, or only spinning in a collective?",
        "Busy (left) counts NCCL's spinning as work, so a waiting GPU reads 100 %; power (right) tells. Busy at low "
        "power while others draw more is a small kernel that does not end.",
        "percentunit",
        query(f"stallwatch_gpu_utilization_ratio{_OF_RANK}", "{{training_job}} rank {{rank}} busy"),
        query(f"stallwatch_gpu_power_watts{_OF_RANK}", "{{training_job}} rank {{rank}} power", "B"),
    ).override_by_regexp(
        "/power/",
        [
            model.DynamicConfigValue(id_val="unit", value="watt"),
            model.DynamicConfigValue(id_val="custom.axisPlacement", value="right"),
            model.DynamicConfigValue(id_val="custom.lineStyle", value={"fill": "dash", "dash": [6, 4]}),
        ],
    )
    for panel in (
        listing(
            "Who waits for whom?",
            "Open incidents of the job, and one that ended with it lately: the waiting ranks, the operation they wait "
            "in, and the rank they wait for.",
            [
                query(
                    "max by (training_job, owner, waiting, operation, group, culprit_ranks, cause, where, confidence, "
                    "severity, state, incident_id, node, url) "
                    f'(stallwatch_incident_info{{{_JOB}, state=~"open|ended"}})',
                    now=True,
                )
            ],
            {
                "waiting": "waiting ranks",
                "operation": "in",
                "group": "of group",
                "culprit_ranks": "for rank",
                "cause": "cause",
                "where": "where",
                "confidence": "confidence",
                "severity": "severity",
                "state": "state",
                "training_job": "job",
                "owner": "owner",
                "node": "node",
                "incident_id": "incident",
                "url": "status page",
            },
            height=5,
            links={
                "node": ("Node", NODE + "&var-node=${__value.text}"),
                "url": ("Open the incident", "${__value.text}"),
            },
            none="Nobody waits for long",
        ),
        listing(
            "In which line of code does the culprit stand?",
            "Each rank that an open verdict names, with its process and GPU.",
            [query(f"stallwatch_culprit{{{_JOB}}}", now=True)],
            {
                "training_job": "job",
                "rank": "rank",
                "code": "code",
                "where": "where",
                "cause": "cause",
                "node": "node",
                "pid": "pid",
                "gpu_uuid": "GPU",
            },
            width=16,
            height=6,
            links={"node": ("Node", NODE + "&var-node=${__value.text}")},
            none="No rank is named",
        ),
        listing(
            "How long is there to look?",
            "When torch's own timeout ends the job, and whether the evidence is already on disk (1: safe to kill).",
            [
                query(f"stallwatch_incident_deadline_timestamp_seconds{{{_JOB}}} - time()", now=True),
                query(f"stallwatch_incident_evidence_complete{{{_JOB}}}", ref="B", now=True),
                query(f"time() - stallwatch_incident_start_timestamp_seconds{{{_JOB}}}", ref="C", now=True),
            ],
            {
                "training_job": "job",
                "incident_id": "incident",
                "Value #A": "torch ends it in",
                "Value #B": "evidence complete",
                "Value #C": "open for",
            },
            width=8,
            height=6,
            units={"Value #A": "s", "Value #C": "s"},
            none="No open incident",
        ),
        parts.states(
            "What does each rank do?",
            "State by rank. In a stall the outlier is the band that differs from the others.",
            _RANK,
            "training_job, owner, rank",
            "{{training_job}} {{rank}}",
        ),
        graph(
            "Which rank has not stepped for how long?",
            "Time since the step changed, by rank; dashed is the limit at which a rank becomes suspect.",
            "s",
            query(
                f"max by (training_job, owner, rank) (stallwatch_rank_beat_age_seconds{{{_RANK}}})",
                _LEGEND,
            ),
            query(
                f"max by (training_job, owner) (stallwatch_rank_limit_seconds{{{_RANK}}})",
                "{{training_job}} limit",
                "B",
            ),
        ).override_by_regexp(
            "/ limit$/",
            [
                model.DynamicConfigValue(id_val="custom.lineStyle", value={"fill": "dash", "dash": [8, 6]}),
                model.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": "red"}),
            ],
        ),
        graph(
            "Which rank's hook has stopped too?",
            "Age of the hook's own pulse. It goes on while the main thread is stuck, and stops when the GIL is held or "
            "the process is stopped.",
            "s",
            query(
                f"max by (training_job, owner, rank) (stallwatch_rank_pulse_age_seconds{{{_RANK}}})",
                _LEGEND,
            ),
        ),
        graph(
            "Which rank is behind?",
            "Steps behind the job's furthest rank.",
            "short",
            query(
                f"max by (training_job, owner) (stallwatch_rank_step{{{_JOB}}})"
                " - on (training_job, owner) group_right ()"
                f" max by (training_job, owner, rank) (stallwatch_rank_step{{{_RANK}}})",
                _LEGEND,
            ),
        ).axis_placement(common_model.AxisPlacement.LEFT),
        graph(
            "How long does a step take?",
            "Median duration of recent steps, by rank.",
            "s",
            query(
                f"max by (training_job, owner, rank) (stallwatch_rank_step_seconds{{{_RANK}}})",
                _LEGEND,
            ),
        ),
        graph(
            "Who has an operation pending, and who has none?",
            "Operations enqueued and not completed. In a stall the rank without any is the one the others wait for.",
            "short",
            query(
                "sum by (training_job, owner, rank) (clamp_min("
                f"stallwatch_rank_operations_enqueued{{{_RANK}}}"
                f" - stallwatch_rank_operations_completed{{{_RANK}}}, 0))",
                _LEGEND,
            ),
        ),
        graph(
            "In which process group does it wait?",
            "Pending operations by group; the number of a group is local to its rank, unlike the name on the incident.",
            "short",
            query(
                "sum by (training_job, owner, rank, recorder, group) "
                f"(stallwatch_rank_group_pending_operations{{{_RANK}}})",
                "{{training_job}} rank {{rank}} {{recorder}} group {{group}}",
            ),
        ),
        graph(
            "Which rank do the others wait for while the job moves?",
            "What a rank costs its job by making its peers on its node wait: 10 % is a job that is 10 % slower for it.",
            "percentunit",
            query(
                f"max by (training_job, owner, rank) (stallwatch_rank_slow_score_ratio{{{_RANK}}})",
                _LEGEND,
            ),
        ),
        graph(
            "How much of its time does a rank communicate?",
            "Share of the recent looks at which it stood in a collective.",
            "percentunit",
            query(
                f"max by (training_job, owner, rank) (stallwatch_rank_communication_ratio{{{_RANK}}})",
                _LEGEND,
            ),
        ),
        busy_against_power,
        listing(
            "In which phase is who?",
            "Ranks inside `with beat.phase(…)`: a checkpoint or an evaluation has a longer limit than a step.",
            [query(f"stallwatch_rank_phase{{{_RANK}}}", now=True)],
            {"rank": "rank", "phase": "phase", "training_job": "job"},
            width=12,
            height=8,
            none="Every rank is between phases",
        ),
    ):
        made = made.with_panel(panel)
    return made
