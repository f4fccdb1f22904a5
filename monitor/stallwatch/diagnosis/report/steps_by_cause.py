"""Steps for GPUs, networks and nodes."""

from stallwatch.diagnosis.logs.remedies_gpu import LOST, is_lost
from stallwatch.diagnosis.report.steps_scene import Scene
from stallwatch.diagnosis.report.text import place


def gpu_kernel(scene: Scene) -> list[str]:
    return [
        f"On {scene.host} see which kernel runs: `cuda-gdb -p {scene.pid}`, then `info cuda kernels` (it pauses the "
        f"rank), or "
        f"`py-spy dump --native --pid {scene.pid}` for the host side.",
        f"Look at the code that launched it, at or before "
        f"{place(scene.process.frame) or 'the line where it waits'}: custom "
        "CUDA or Triton kernels, spin waits, indices out of range.",
        "Run that step alone with compute-sanitizer on one GPU.",
        "If the same GPU does it with other code, run `dcgmi diag -r 3` on it and take it out of service.",
    ]


def gpu_fault(scene: Scene) -> list[str]:
    lost = any(is_lost(fact.fact) for fact in scene.verdict.because)
    return [
        f"On {scene.host} read what the driver says: `dmesg -T | grep -i -E 'xid|nvrm'` and `nvidia-smi "
        f"-q{scene.gpu}`.",
        f"Take {scene.host} out of service and start the job elsewhere from its last checkpoint.",
        f"A GPU off the bus answers no reset: {LOST.remedy}."
        if lost
        else "Do what the driver's recovery action names (reset the GPU, reboot the node) before it takes jobs again.",
    ]


def fabric(scene: Scene) -> list[str]:
    return [
        f"On {scene.host} read the counters: `nvidia-smi nvlink -e`, `ibstat`, `rdma link show`, `dmesg -T | grep "
        f"-i mlx`.",
        "Restart the job with NCCL_DEBUG=WARN to see which peer and adapter fail.",
        "Leave the node or the port out until it is repaired; other transports only hide the fault.",
    ]


def comm_stuck() -> list[str]:
    return [
        "Stop the job and run `stallwatch selftest` on the same nodes: it finds the collective, GPU or link that "
        "fails.",
        "Start it again with NCCL_DEBUG=WARN (INFO for the start-up) and look for network errors of one host.",
        "With TORCH_NCCL_ENABLE_TIMING=1 the recorder also notes whose GPU never came to the collective: a kernel "
        "before it does not end there.",
        "If several communicators run at once (FSDP with TP, pipelines), serialise them for a test: order their "
        "launches by "
        "one stream, or set NCCL_LAUNCH_ORDER_IMPLICIT=1 (NCCL 2.26 or newer).",
        "Compare driver and NCCL versions on all nodes: `stallwatch doctor` knows those with known hangs.",
    ]


def slow(scene: Scene) -> list[str]:
    return [
        *(
            [f"On {scene.host} look for throttling: `nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE{scene.gpu}`."]
            if scene.process.gpu_uuid or (scene.activity and scene.activity.uses_gpu)
            else []
        ),
        f"Look for others on its cores: `top -H -p {scene.pid}`, `ps -eo pid,psr,pcpu,args --sort=-pcpu | head`.",
        "If the same node is slow with other ranks, take it out and start from the last checkpoint.",
    ]
