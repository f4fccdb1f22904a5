"""One node: its ranks, its GPUs, and the daemon that watches them."""

from grafana_foundation_sdk.builders import dashboard as board

from dashboards import parts
from dashboards.parts import graph, listing, query

_NODE = 'node=~"$node"'
# Most series carry the scrape's instance alone; the variable follows the node's choice.
_INSTANCE = 'instance=~"$instance"'


def node() -> board.Dashboard:
    made = parts.dashboard(
        "stallwatch-node",
        "Node",
        "One node: its ranks, its GPUs, and stallwatch's own daemon there.",
        parts.variable("node", "Node", "stallwatch_build_info", "node"),
        parts.variable("instance", "Daemon", "stallwatch_build_info", "instance", _NODE),
    ).annotation(parts.incidents_annotation('node=~"$node", severity!="none"'))
    for panel in (
        listing(
            "Which ranks run here, and on which GPU?",
            "Ranks that the node's daemon sees.",
            [query(f"stallwatch_rank_info{{{_NODE}}}", now=True)],
            {
                "training_job": "job",
                "owner": "owner",
                "rank": "rank",
                "local_rank": "local rank",
                "pid": "pid",
                "gpu_uuid": "GPU",
                "node": "node",
                "epoch": "epoch",
            },
            width=12,
        ),
        listing(
            "Which GPUs are here, and do they answer?",
            "1: the GPU answers NVML. Serial and PCI address are what a repair ticket asks for.",
            [
                query(f"stallwatch_gpu_up{{{_INSTANCE}}}", now=True),
                query(f"stallwatch_gpu_info{{{_INSTANCE}}}", ref="B", now=True),
                query(f"stallwatch_gpu_recovery_action{{{_INSTANCE}}}", ref="C", now=True),
            ],
            {
                "gpu": "GPU",
                "name": "name",
                "serial": "serial",
                "pci_bus_id": "PCI",
                "gpu_uuid": "UUID",
                "Value #A": "answers",
                "Value #C": "recovery action",
            },
            width=12,
            none="No GPU, or NVML does not answer",
        ),
        parts.states(
            "What does each rank here do?",
            "State by rank of this node.",
            _INSTANCE,
            "training_job, owner, rank",
            "{{training_job}} {{rank}}",
            height=7,
        ),
        graph(
            "Are the GPUs busy?",
            "Share of time in which a kernel ran; a collective that waits counts as busy.",
            "percentunit",
            query(f"stallwatch_gpu_utilization_ratio{{{_INSTANCE}}}", "GPU {{gpu}}"),
        ),
        graph(
            "Do they draw the power of work?",
            "Power by GPU, and the limit in force.",
            "watt",
            query(f"stallwatch_gpu_power_watts{{{_INSTANCE}}}", "GPU {{gpu}}"),
            query(f"min(stallwatch_gpu_power_limit_watts{{{_INSTANCE}}})", "limit", "B"),
        ),
        graph(
            "Is one too hot?",
            "Temperature of the chip.",
            "celsius",
            query(f"stallwatch_gpu_temperature_celsius{{{_INSTANCE}}}", "GPU {{gpu}}"),
            width=8,
        ),
        graph(
            "Is one slowed down, and why?",
            "Share of time with lowered clocks, by reason: thermal and hw_slowdown are trouble, a power cap is usual.",
            "percentunit",
            query(f"rate(stallwatch_gpu_slowed_seconds_total{{{_INSTANCE}}}[1m])", "GPU {{gpu}} {{reason}}"),
            query(f"stallwatch_gpu_slowed{{{_INSTANCE}}} > 0", "GPU {{gpu}} {{reason}} now", "B"),
            width=8,
        ),
        graph(
            "How fast do they run?",
            "Clock of the streaming multiprocessors.",
            "hertz",
            query(f"stallwatch_gpu_sm_clock_hertz{{{_INSTANCE}}}", "GPU {{gpu}}"),
            width=8,
        ),
        graph(
            "Is memory full?",
            "Used share of each GPU's memory.",
            "percentunit",
            query(
                f"stallwatch_gpu_memory_used_bytes{{{_INSTANCE}}} / stallwatch_gpu_memory_total_bytes{{{_INSTANCE}}}",
                "GPU {{gpu}}",
            ),
            width=8,
        ),
        graph(
            "Has the hardware failed?",
            "XIDs by code and uncorrected memory errors since the daemon or the driver started.",
            "short",
            query(f"stallwatch_gpu_xid_total{{{_INSTANCE}}}", "GPU {{gpu}} XID {{xid}}"),
            query(f"stallwatch_gpu_ecc_uncorrected_total{{{_INSTANCE}}} > 0", "GPU {{gpu}} uncorrected ECC", "B"),
            width=8,
        ),
        graph(
            "Are its links clean?",
            "NVLink errors and PCIe replays in five minutes.",
            "short",
            query(
                f"increase(stallwatch_gpu_nvlink_errors_total{{{_INSTANCE}}}[5m])",
                "GPU {{gpu}} NVLink {{kind}}",
            ),
            query(f"increase(stallwatch_gpu_pcie_replays_total{{{_INSTANCE}}}[5m])", "GPU {{gpu}} PCIe", "B"),
            width=8,
        ),
        graph(
            "Do stallwatch's sensors answer, and how fast?",
            "Duration of each sensor's last look.",
            "s",
            query(f"stallwatch_sensor_duration_seconds{{{_INSTANCE}}}", "{{sensor}}"),
            width=8,
        ),
        graph(
            "What fails in stallwatch itself?",
            "Errors of sensors and of its stages in five minutes.",
            "short",
            query(f"increase(stallwatch_sensor_errors_total{{{_INSTANCE}}}[5m])", "sensor {{sensor}}"),
            query(parts.happened(f"stallwatch_stage_errors_total{{{_INSTANCE}}}", "5m"), "{{stage}} {{name}}", "B"),
            width=8,
        ),
        graph(
            "Does its loop keep time?",
            "How late the last look was.",
            "s",
            query(f"stallwatch_tick_late_seconds{{{_INSTANCE}}}", "late"),
            width=8,
        ),
        graph(
            "What does it cost here?",
            "CPU of the daemon and its children, in cores.",
            "short",
            query(f"rate(stallwatch_process_cpu_seconds_total{{{_INSTANCE}}}[1m])", "CPU"),
            width=8,
        ),
        graph(
            "How much memory does it hold?",
            "Resident memory of the daemon.",
            "bytes",
            query(f"stallwatch_process_resident_memory_bytes{{{_INSTANCE}}}", "{{instance}}"),
            width=8,
        ),
        listing(
            "Which version runs, since when?",
            "The daemon's build and start.",
            [
                query(f"stallwatch_build_info{{{_INSTANCE}}}", now=True),
                query(f"time() - stallwatch_process_start_time_seconds{{{_INSTANCE}}}", ref="B", now=True),
            ],
            {"instance": "daemon", "version": "version", "python": "Python", "Value #B": "up for"},
            width=8,
            height=8,
            units={"Value #B": "s"},
        ),
    ):
        made = made.with_panel(panel)
    return made
