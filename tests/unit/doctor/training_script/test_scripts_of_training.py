"""Data, devices, saving and debugging in training scripts."""

import pytest

from stallwatch.doctor.check import Check
from stallwatch.doctor.surroundings import Question
from stallwatch.doctor.training_script.data import SamplerEpoch, UnevenShards, UnshardedLoader
from stallwatch.doctor.training_script.debugging import AnomalyDetection
from stallwatch.doctor.training_script.devices import GlobalRankDevice, LateDevice, LateVisibleDevices
from stallwatch.doctor.training_script.saving import ShardedSave
from tests.unit.doctor.fakes import Node

HEAD = (
    "import os, torch, torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
    "from torch.utils.data import DataLoader, Subset\nfrom torch.utils.data.distributed import DistributedSampler\n"
)
MODEL = "model = DDP(net)\n"
LOOP = "for epoch in range(9):\n    for x in loader:\n        model(x).backward()\n"
FSDP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard\n"
ENGINE = "import deepspeed\nengine, opt, _, _ = deepspeed.initialize(model=m)\n"
ZERO = (
    "import deepspeed\ncfg = {'zero_optimization': {'stage': 3}}\n"
    "engine, *_ = deepspeed.initialize(model=m, config=cfg)\n"
)
DCP = "import torch.distributed.checkpoint as dcp\n"


def found(node: Node, check: Check, text: str) -> list[tuple[str, int]]:
    script = node.write("train.py", HEAD + text)
    records = check.look(node.around(question=Question(scripts=(script,))))
    return [(one.severity, int(one.subject.rsplit(":", 1)[1]) - HEAD.count("\n")) for one in records]


@pytest.mark.parametrize(
    ("check", "text", "line"),
    [
        (UnshardedLoader(), MODEL + "loader = DataLoader(data, batch_size=8, shuffle=True)\n" + LOOP, 2),
        (UnshardedLoader(), MODEL + "data = ImageFolder('x')\nloader = DataLoader(data, 8)\n" + LOOP, 3),
        (UnshardedLoader(), MODEL + "def make(d):\n    return DataLoader(dataset=d, shuffle=True)\n" + LOOP, 3),
        (UnshardedLoader(), MODEL + "loader = torch.utils.data.DataLoader(Texts(), batch_size=4)\n" + LOOP, 2),
        (UnshardedLoader(), ENGINE + "loader = DataLoader(Texts(), shuffle=True)\n", 3),
        (SamplerEpoch(), "s = DistributedSampler(data)\nloader = DataLoader(data, sampler=s)\n" + LOOP, 1),
        (SamplerEpoch(), "loader = DataLoader(data, sampler=DistributedSampler(data, shuffle=True))\n" + LOOP, 1),
        (SamplerEpoch(), "s = torch.utils.data.distributed.DistributedSampler(data)\n" + LOOP, 1),
        (UnevenShards(), MODEL + "loader = DataLoader(files[rank::world_size], batch_size=8)\n" + LOOP, 2),
        (
            UnevenShards(),
            MODEL + "mine = list(range(rank, len(data), world_size))\nloader = DataLoader(Subset(data, mine))\n" + LOOP,
            3,
        ),
        (UnevenShards(), MODEL + "d = data.shard(num_shards=world, index=rank)\nloader = DataLoader(d, 4)\n" + LOOP, 3),
        (LateDevice(), "import deepspeed\ndeepspeed.init_distributed()\ntorch.cuda.set_device(local_rank)\n", 3),
        (LateDevice(), "dist.init_process_group('nccl')\ndist.barrier()\ntorch.cuda.set_device(local_rank)\n", 3),
        (
            LateDevice(),
            "def setup():\n    dist.init_process_group('nccl')\n    m = net.cuda()\n"
            "    torch.cuda.set_device(local_rank)\n",
            4,
        ),
        (GlobalRankDevice(), "rank = dist.get_rank()\ntorch.cuda.set_device(rank)\n", 2),
        (GlobalRankDevice(), "torch.cuda.set_device(int(os.environ['RANK']))\n", 1),
        (GlobalRankDevice(), "rank = int(os.environ['SLURM_PROCID'])\nmodel = net.to(f'cuda:{rank}')\n", 2),
        (GlobalRankDevice(), "r = int(os.environ['RANK'])\ndevice = torch.device(f'cuda:{r}')\n", 2),
        (GlobalRankDevice(), "rank = dist.get_rank()\nmodel = DDP(net.cuda(), device_ids=[rank])\n", 2),
        (LateVisibleDevices(), "os.environ['CUDA_VISIBLE_DEVICES'] = '0,1'\n", 1),
        (LateVisibleDevices(), "def f(rank):\n    os.environ['CUDA_VISIBLE_DEVICES'] = str(rank)\n", 2),
        (LateVisibleDevices(), "os.environ.update({'CUDA_VISIBLE_DEVICES': '1'})\n", 1),
        (AnomalyDetection(), "torch.autograd.set_detect_anomaly(True)\n", 1),
        (AnomalyDetection(), "with torch.autograd.detect_anomaly():\n    train()\n", 1),
        (AnomalyDetection(), "import lightning as L\nt = L.Trainer(detect_anomaly=True)\n", 2),
        (ShardedSave(), FSDP + "model = FSDP(net)\nif rank == 0:\n    torch.save(model.state_dict(), 'x')\n", 4),
        (ShardedSave(), FSDP + "fully_shard(model)\nif dist.get_rank() == 0:\n    s = model.state_dict()\n", 4),
        (ShardedSave(), ENGINE + "if rank == 0:\n    engine.save_checkpoint('out')\n", 4),
        (
            ShardedSave(),
            ENGINE + "def save(rank):\n    if rank != 0:\n        return\n    engine.save_checkpoint('o')\n",
            6,
        ),
        (ShardedSave(), ZERO + "if rank == 0:\n    torch.save(engine.module.state_dict(), 'm')\n", 5),
        (ShardedSave(), ZERO + "if dist.get_rank() == 0:\n    engine.module.save_pretrained('out')\n", 5),
        (
            ShardedSave(),
            "import deepspeed\ne = deepspeed.initialize(model=m, config={'zero_optimization': {'stage': 3}})[0]\n"
            "if rank == 0:\n    e.module.save_pretrained('out')\n",
            4,
        ),
        (UnevenShards(), MODEL + "for f in files[rank::world_size]:\n    model(load(f)).sum().backward()\n", 2),
        (
            UnevenShards(),
            MODEL + "r, w = dist.get_rank(), dist.get_world_size()\nfiles = sorted(os.listdir(d))[r::w]\n"
            "for i, f in enumerate(files):\n    for x in torch.load(f):\n        model(x).sum().backward()\n",
            4,
        ),
        (ShardedSave(), DCP + "if rank == 0:\n    dcp.save({}, checkpoint_id='x')\n", 3),
        (ShardedSave(), "if trainer.is_global_zero:\n    trainer.save_checkpoint('x')\n", 2),
        (ShardedSave(), "if accelerator.is_main_process:\n    accelerator.save_state('x')\n", 2),
    ],
)
def test_what_is_wrong_is_found_with_its_line(node: Node, check: Check, text: str, line: int) -> None:
    ((severity, at),) = found(node, check, text)
    assert severity in ("warning", "error")
    assert at == line


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (UnshardedLoader(), "loader = DataLoader(data, shuffle=True)\n" + LOOP),
        (UnshardedLoader(), MODEL + "loader = DataLoader(data, shuffle=s is None, sampler=s)\n"),
        (UnshardedLoader(), MODEL + "loader = DataLoader(data, **options)\n"),
        (UnshardedLoader(), MODEL + "val_loader = DataLoader(data, batch_size=8)\n"),
        (UnshardedLoader(), MODEL + "data = Shards(rank, world_size)\nloader = DataLoader(data, 8)\n"),
        (UnshardedLoader(), MODEL + "from torch.utils.data import IterableDataset\nloader = DataLoader(data, 8)\n"),
        (
            UnshardedLoader(),
            MODEL + "from torch.distributed.device_mesh import init_device_mesh\nl = DataLoader(D(), 8)\n",
        ),
        (SamplerEpoch(), "s = DistributedSampler(data)\nfor epoch in range(2):\n    s.set_epoch(epoch)\n"),
        (SamplerEpoch(), "s = DistributedSampler(data, shuffle=False)\n" + LOOP),
        (SamplerEpoch(), "val_sampler = DistributedSampler(data)\n" + LOOP),
        (SamplerEpoch(), "s = DistributedSampler(data)\nfor x in loader:\n    pass\n"),
        (UnevenShards(), MODEL + "loader = DataLoader(files[rank::world_size], drop_last=True)\n" + LOOP),
        (UnevenShards(), MODEL + "loader = DataLoader(data, sampler=DistributedSampler(data))\n" + LOOP),
        (
            UnevenShards(),
            MODEL + "n = len(f) // world_size * world_size\nloader = DataLoader(f[:n][rank::world_size])\n" + LOOP,
        ),
        (UnevenShards(), MODEL + "loader = DataLoader(files[rank::world_size])\nit = iter(loader)\n"),
        (UnevenShards(), MODEL + "for f in files[rank::world_size]:\n    print(model(load(f)))\n"),
        (
            UnevenShards(),
            MODEL + "assert len(f) % world_size == 0\nfor x in f[rank::world_size]:\n    model(x).backward()\n",
        ),
        (
            UnevenShards(),
            MODEL + "n = len(f) // world_size * world_size\n"
            "for x in f[:n][rank::world_size]:\n    model(x).backward()\n",
        ),
        (
            UnevenShards(),
            MODEL + "mine = f[rank::world_size]\nmine.extend(f[:pad])\nfor x in mine:\n    model(x).backward()\n",
        ),
        (
            UnevenShards(),
            MODEL + "for i, x in enumerate(f[rank::world_size]):\n    if i == n: break\n    model(x).backward()\n",
        ),
        (UnevenShards(), MODEL + "for x, _ in zip(f[rank::world_size], range(n)):\n    model(x).backward()\n"),
        (ShardedSave(), ZERO.replace("3", "2") + "if rank == 0:\n    torch.save(engine.module.state_dict(), 'm')\n"),
        (ShardedSave(), ZERO + "if rank == 0:\n    engine.module.save_pretrained('o', state_dict=full)\n"),
        (
            ShardedSave(),
            ZERO + "with deepspeed.zero.GatheredParameters(ps):\n    if rank == 0:\n"
            "        torch.save(engine.module.state_dict(), 'm')\n",
        ),
        (
            ShardedSave(),
            "import deepspeed\ncfg = {'zero_optimization': {'stage': 3}}\ncfg['zero_optimization']['stage'] = stage\n"
            "e, *_ = deepspeed.initialize(model=m, config=cfg)\nif rank == 0:\n    e.module.save_pretrained('o')\n",
        ),
        (LateDevice(), "torch.cuda.set_device(local_rank)\ndist.init_process_group('nccl')\n"),
        (LateDevice(), "dist.init_process_group('nccl', device_id=d)\ntorch.cuda.set_device(local_rank)\n"),
        (LateDevice(), "dist.init_process_group('gloo')\ntorch.cuda.set_device(local_rank)\n"),
        (GlobalRankDevice(), "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n"),
        (GlobalRankDevice(), "rank = dist.get_rank()\ntorch.cuda.set_device(rank % torch.cuda.device_count())\n"),
        (GlobalRankDevice(), "def worker(rank, n):\n    torch.cuda.set_device(rank)\n"),
        (GlobalRankDevice(), "rank = dist.get_rank()\nprint(rank)\nx.to('cuda')\n"),
        (LateVisibleDevices(), "print(os.environ['CUDA_VISIBLE_DEVICES'])\n"),
        (LateVisibleDevices(), "env = {'CUDA_VISIBLE_DEVICES': '0'}\nsubprocess.run(c, env=env)\n"),
        (AnomalyDetection(), "torch.autograd.set_detect_anomaly(args.debug)\n"),
        (AnomalyDetection(), "torch.autograd.set_detect_anomaly(False)\n"),
        (AnomalyDetection(), "if args.debug:\n    torch.autograd.set_detect_anomaly(True)\n"),
        (ShardedSave(), MODEL + "if rank == 0:\n    torch.save(model.module.state_dict(), 'x')\n"),
        (
            ShardedSave(),
            FSDP + "model = FSDP(net)\nstate = model.state_dict()\nif rank == 0:\n    torch.save(state, 'x')\n",
        ),
        (ShardedSave(), ENGINE + "engine.save_checkpoint('out')\nif rank == 0:\n    print('saved')\n"),
        (ShardedSave(), "if rank == 0:\n    manager.save_checkpoint('x')\n"),
        (ShardedSave(), DCP + "dcp.save({}, checkpoint_id='x')\n"),
    ],
)
def test_what_is_right_is_silent(node: Node, check: Check, text: str) -> None:
    assert [one for one in found(node, check, text) if one[0] != "info"] == []


def test_a_device_chosen_right_after_the_group_is_only_mentioned(node: Node) -> None:
    text = "dist.init_process_group('nccl')\ntorch.cuda.set_device(local_rank)\n"
    assert found(node, LateDevice(), text) == [("info", 2)]
