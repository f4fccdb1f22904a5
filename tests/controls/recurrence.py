"""A real job that torchrun restarts after each hang: what the third incident says of the first two.

    python tests/controls/recurrence.py

Two jobs at once: one hangs always at the same step, the other at another step and on another rank in each life. torch's
own timeout ends each life. Exit code 0 when the third incident of each says what its pattern is consistent with.
"""

import argparse
import os
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

# Started as a script, perhaps where nothing is installed: neither root is on the path yet.
sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "monitor"))

RANKS = 4
LIVES = 3
TIMEOUT_SECONDS = 25  # of the job's collectives: long after the verdict
ENOUGH_SECONDS = 420.0
SAYS = {
    "same": "each time at step 60; consistent with data or code that this step meets",
    "rotating": "another rank each time; consistent with hardware, network or a library",
}


def rank(kind: str) -> None:
    """One rank of a job, in one of its lives."""
    import torch.distributed as dist  # noqa: TID251

    from tests.controls import common

    life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    culprit, at = (2, 60) if kind == "same" else (life, 60 + 23 * life)
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_SECONDS))
    for number in range(400):
        if number == at and culprit == common.RANK and life < LIVES:
            time.sleep(3600)
        common.step()


def main() -> int:
    from stallwatch.demo.daemon_child import DaemonChild
    from tests.controls.launching import Torchrun, search_path

    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory(prefix="stallwatch-recurrence-") as folder:
        daemon = DaemonChild(Path(folder), os.environ)
        daemon.start()
        said: dict[str, dict[str, list[str]]] = {kind: {} for kind in SAYS}
        jobs = [
            Torchrun(
                [__file__, "--rank", kind],
                {
                    "PYTHONPATH": search_path(),
                    # A store that outlives its ranks hands gloo the addresses of the life before.
                    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
                    "STALLWATCH_DIR": str(daemon.rank_directory),
                    "STALLWATCH_JOB": f"recurs-{kind}",
                },
                Path(folder) / f"{kind}.log",
                ["--standalone", f"--nproc-per-node={RANKS}", f"--max-restarts={LIVES}", "--monitor-interval=0.5"],
            )
            for kind in SAYS
        ]
        try:
            until = time.monotonic() + ENOUGH_SECONDS
            while time.monotonic() < until and any(job.exit_code() is None for job in jobs):
                time.sleep(1)
                for incident in daemon.client.incidents().incidents:
                    kind = incident.training_job.removeprefix("recurs-")
                    if incident.verdicts and kind in said:
                        facts = [fact.fact for fact in incident.verdicts[0].because if "hang of this job" in fact.fact]
                        told = f"{incident.verdicts[0].cause} {list(incident.verdicts[0].culprits)}"
                        said[kind][incident.incident_id] = [told, incident.resolution, *facts]
        finally:
            for job in jobs:
                job.stop()
            daemon.stop()
    for kind, incidents in said.items():
        for incident_id, texts in incidents.items():
            print(f"{kind:9} {incident_id}: {' | '.join(filter(None, texts))}")
    right = {kind: any(SAYS[kind] in text for texts in said[kind].values() for text in texts) for kind in SAYS}
    print(right)
    return 0 if all(right.values()) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank(sys.argv[2])
        sys.exit(0)
    sys.exit(main())
