"""Models that DDP or FSDP wraps, used by one rank alone."""

import pytest

from stallwatch.doctor.check_result import FindingRecord
from stallwatch.doctor.surroundings import Question
from stallwatch.doctor.training_script.divergence import RankConditionalCollective
from tests.unit.doctor.fakes import Node

HEAD = (
    "import torch, torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard\nrank = dist.get_rank()\n"
)
NET = "model = Net()\nmodel = DDP(model)\n"
SHARDED = "model = Net()\nfor layer in model.layers: fully_shard(layer)\nfully_shard(model)\n"


def found(node: Node, text: str) -> tuple[FindingRecord, ...]:
    script = node.write("train.py", HEAD + text)
    return RankConditionalCollective().look(node.around(question=Question(scripts=(script,))))


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (NET + "if rank == 0:\n    model(x).sum().backward()\n", 4, "the backward pass of a DDP model"),
        (NET + "if rank == 0:\n    y = model(x)\n    loss = crit(y, t) / 4\n    loss.backward()\n", 6, "backward"),
        (NET + "loss = model(x).sum()\nif rank == 0:\n    scaler.scale(loss).backward()\n", 5, "backward"),
        (NET + "def step(m, x):\n    loss = m(x).sum()\n    loss.backward()\nif not rank:\n    step(model, x)\n",
         7, "step()"),
        ("model = torch.compile(DDP(net))\nfor x in y:\n    if rank: continue\n    model(x).mean().backward()\n",
         4, "DDP"),
        ("class T:\n    def __init__(self):\n        self.m = DDP(net)\n    def f(self, x):\n"
         "        if self.rank == 0:\n            self.m(x).sum().backward()\n", 6, "DDP"),
        ("model = FSDP(net)\nif rank == 0:\n    model.eval()\n    print(model(x))\n", 4, "the forward pass of an FSDP"),
        ("model = FSDP(net)\ndef evaluate(m): return m(x).mean()\nif rank == 0:\n    evaluate(model)\n",
         4, "evaluate()"),
        ("model = FSDP(net)\nif rank == 0:\n    with torch.no_grad():\n        model.generate(x)\n", 4, "forward"),
        (SHARDED + "if dist.get_rank() == 0:\n    out = model(x)\n", 5, "forward"),
    ],
)  # fmt: skip
def test_a_wrapped_model_that_some_ranks_alone_use_is_found(node: Node, text: str, line: int, words: str) -> None:
    (one,) = found(node, text)
    assert one.subject.endswith(f":{line + HEAD.count(chr(10))}")
    assert words in one.seen


@pytest.mark.parametrize(
    "text",
    [
        NET + "if rank == 0:\n    with torch.no_grad():\n        loss = model(x).sum()\n    print(loss.item())\n",
        NET + "if rank == 0:\n    model.module(x).sum().backward()\n",
        NET + "raw = model.module\nif rank == 0:\n    raw(x).sum().backward()\n",
        NET + "raw = model.module if ddp else model\nif rank == 0:\n    raw(x).sum().backward()\n",
        NET + "loss = model(x).sum()\nloss.backward()\nif rank == 0:\n    print(loss)\n",
        NET + "if rank == 0:\n    probe = Probe()\n    probe(model(x).detach()).sum().backward()\n",
        NET + "if rank == 0:\n    with model.no_sync():\n        model(x).sum().backward()\n",
        NET + "if rank == 0:\n    model(x).sum().backward()\nelse:\n    model(z).sum().backward()\n",
        NET + "ema = copy(net)\nif rank == 0:\n    ema(x).sum().backward()\n",
        NET + "model = model.module\nif rank == 0:\n    model(x).sum().backward()\n",
        "model = DDP(net, process_group=stage)\nif rank < 2:\n    model(x).sum().backward()\n",
        "model = FSDP(net, stage)\nif rank < 2:\n    model(x)\n",
        "model = FSDP(net, device_mesh=mesh)\nif pp_rank == 0:\n    model(x)\n",
        "model = Net()\nfully_shard(model, mesh=mesh['dp'])\nif pp_rank == 0:\n    model(x)\n",
        "model = FSDP(net)\nwith FSDP.summon_full_params(model):\n    if rank == 0:\n        model.generate(x)\n",
        "model = FSDP(net, sharding_strategy=ShardingStrategy.NO_SHARD)\nif rank == 0:\n    model(x)\n",
        "model = FSDP(net)\nif rank == 0:\n    print(model, sum(p.numel() for p in model.parameters()))\n",
        "model = FSDP(net)\ndef evaluate(m): return m(x)\nfull = Net()\n"
        "if rank == 0:\n    evaluate(full)\nevaluate(model)\n",
        SHARDED + "def test(model):\n    return model(x)\nfull = Net()\nif rank == 0:\n    test(full)\n",
        "if rank == 0:\n    unknown(x).sum().backward()\n",
    ],
)  # fmt: skip
def test_what_one_rank_may_do_alone_is_silent(node: Node, text: str) -> None:
    assert found(node, text) == ()
