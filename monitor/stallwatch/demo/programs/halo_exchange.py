"""Each rank passes its edge to the next one in a batch of P2P; one rank expects an edge that nobody sends."""

import torch
import torch.distributed as dist
from torch import Tensor

from stallwatch.demo.training import BATCH, FEATURES, Training, run


def exchange(training: Training, edge: Tensor, halos: int) -> None:
    """Send the edge onwards and receive `halos` edges from behind, all in one batch."""
    onwards = (training.rank + 1) % training.world_size
    behind = (training.rank - 1) % training.world_size
    received = [torch.empty_like(edge) for _ in range(halos)]
    batch = [dist.P2POp(dist.isend, edge, onwards)]
    batch += [dist.P2POp(dist.irecv, halo, behind) for halo in received]
    for work in dist.batch_isend_irecv(batch):
        work.wait()


def train(training: Training) -> None:
    """Exchange edges and learn; in the step that strikes this rank expects two."""
    edge = torch.randn(BATCH, FEATURES, device=training.device)
    for step in training.steps():
        exchange(training, edge, halos=2 if training.strikes(step) else 1)
        training.learn(training.batch())


if __name__ == "__main__":
    run(train)
