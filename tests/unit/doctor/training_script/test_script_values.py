"""Findings follow what names stand for, not what they are called."""

import pytest

from stallwatch.doctor.check import Check
from stallwatch.doctor.surroundings import Question
from stallwatch.doctor.training_script.data import SamplerEpoch, UnevenShards
from stallwatch.doctor.training_script.devices import FewerGpusThanDevices, GlobalRankDevice
from stallwatch.doctor.training_script.divergence import RankConditionalCollective, SwallowedCollective
from stallwatch.doctor.training_script.saving import ShardedSave
from tests.unit.doctor.fakes import Node

HEAD = (
    "import os, torch, torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
    "from torch.utils.data import DataLoader, Subset\nfrom torch.utils.data.distributed import DistributedSampler\n"
)


def found(node: Node, check: Check, text: str) -> list[int]:
    script = node.write("train.py", HEAD + text)
    records = check.look(node.around(question=Question(scripts=(script,))))
    return [int(one.subject.rsplit(":", 1)[1]) - HEAD.count("\n") for one in records if one.severity != "info"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("me = dist.get_rank()\nif me == 0:\n    dist.barrier()\n", 3),
        ("whoami = int(os.environ['RANK'])\nif not whoami:\n    dist.barrier()\n", 3),
        ("i = int(os.getenv('SLURM_PROCID', '0'))\nif i > 0:\n    dist.barrier()\n", 3),
        ("class T:\n    def __init__(self):\n        self.idx = dist.get_rank()\n    def log(self):\n"
         "        if self.idx == 0:\n            dist.all_reduce(self.x)\n", 6),
        ("def chief():\n    return dist.get_rank() == 0\nif chief():\n    dist.barrier()\n", 4),
        ("def is_writer(r):\n    return r == 0\nif is_writer(dist.get_rank()):\n    dist.barrier()\n", 4),
        ("def setup():\n    dist.init_process_group('nccl')\n    return dist.get_rank(), dist.get_world_size()\n"
         "p, n = setup()\nif p == 0:\n    dist.barrier()\n", 6),
        ("def setup():\n    return dist.get_rank(), 3\ndef main():\n    p, n = setup()\n    log = p == 0\n    if log:\n"
         "        dist.all_gather(a, b)\n", 7),
        ("def report(idx, x):\n    if idx == 0:\n        dist.reduce(x, 0)\nreport(dist.get_rank(), y)\n", 3),
        ("def run(gpu, args):\n    if gpu == 0:\n        dist.barrier()\ntorch.multiprocessing.spawn(run, args=(a,))\n",
         3),
        ("boss = lambda: dist.get_rank() == 0\nif boss():\n    dist.barrier()\n", 3),
        ("ctx = {}\nchatty = int(os.environ.get('LOCAL_RANK', 0)) == 0\nif chatty and step % 5 == 0:\n"
         "    dist.broadcast(x, 0)\n", 4),
        ("class R:\n    @property\n    def lead(self):\n        return dist.get_rank() == 0\n    def f(self):\n"
         "        if self.lead:\n            dist.barrier()\n", 7),
        ("from accelerate import Accelerator\nacc = Accelerator()\nn = acc.process_index\nif n == 0:\n"
         "    acc.wait_for_everyone()\n", 5),
        ("from torch import distributed as td\nr0 = td.get_rank() == 0\nif r0:\n    td.barrier()\n", 4),
        ("q = dist.get_rank() if dist.is_initialized() else 0\nif q != 0:\n    dist.barrier()\n", 3),
        ("if (z := dist.get_rank()) == 0:\n    dist.barrier()\n", 2),
        ("me = dist.get_rank()\nfor x in y:\n    if me:\n        continue\n    dist.all_reduce(x)\n", 5),
        ("def only(f):\n    def inner(*a):\n        if dist.get_rank() == 0:\n            return f(*a)\n"
         "    return inner\n@only\ndef save():\n    dist.barrier()\n", 8),
        ("trainer = make()\nif trainer.is_global_zero:\n    trainer.strategy.barrier()\n", 3),
    ],
)  # fmt: skip
def test_a_rank_by_any_name_is_one(node: Node, text: str, line: int) -> None:
    assert found(node, RankConditionalCollective(), text) == [line]


@pytest.mark.parametrize(
    "text",
    [
        "rank = 16\nif rank == 0:\n    dist.barrier()\n",  # of a low-rank adapter
        "lora_rank = 8\nif lora_rank > 0:\n    dist.barrier()\n",
        "i = count()\nif i == 0:\n    dist.barrier()\n",
        "def run(step, args):\n    if step == 0:\n        dist.barrier()\nfor s in range(9):\n    run(s, a)\n",
        "me = dist.get_rank()\nif me == 0:\n    download()\ndist.barrier()\n",
        "def timed(f):\n    def inner(*a):\n        x = f(*a)\n        if dist.get_rank() == 0:\n            print(1)\n"
        "        return x\n    return inner\n@timed\ndef sync():\n    dist.barrier()\n",
        "def main(r):\n    r = load(r)\n    if r == 0:\n        dist.barrier()\n",
        "def f():\n    r = dist.get_rank()\ndef g():\n    r = len(data)\n    if r == 0:\n        dist.barrier()\n",
        "def ready():\n    return dist.is_initialized()\nif ready():\n    dist.barrier()\n",
        "n = dist.get_world_size()\nif n > 1:\n    dist.barrier()\n",
        "me = dist.get_rank()\nif me == 0:\n    dist.send(x, 1)\nelse:\n    dist.recv(x, 0)\n",
    ],
)
def test_what_is_no_rank_is_none_by_any_name(node: Node, text: str) -> None:
    assert found(node, RankConditionalCollective(), text) == []


TRAIN = "    for x in dl:\n        m(x).backward()\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("s = DistributedSampler(d)\nfor ep in range(5):\n" + TRAIN, 1),
        ("s = DistributedSampler(d)\nfor _ in range(args.n):\n" + TRAIN, 1),
        ("s = DistributedSampler(d)\ne = 0\nwhile e < 5:\n" + TRAIN + "    e += 1\n", 1),
        ("def one(dl):\n" + TRAIN + "s = DistributedSampler(d)\nfor k in tqdm(range(3)):\n    one(dl)\n", 4),
        ("from itertools import count\ns = DistributedSampler(d)\nfor k in count():\n" + TRAIN, 2),
        ("s = DistributedSampler(d)\nrounds = range(10)\nfor k in rounds:\n    for i, x in enumerate(tqdm(dl)):\n"
         "        scaler.scale(m(x)).backward()\n", 1),
        ("class T:\n    def fit(self):\n        for k in range(self.n):\n            self.one()\n    def one(self):\n"
         "        for x in self.dl:\n            self.back(x)\n    def back(self, x):\n        m(x).backward()\n"
         "s = DistributedSampler(d, shuffle=True)\n", 10),
        ("s = DistributedSampler(d)\n# s.set_epoch(ep)\nfor ep in range(5):\n" + TRAIN, 1),
        ("s = DistributedSampler(d)\nfor ep in range(5):\n    s.set_epoch(0)\n" + TRAIN, 1),
        ("s = DistributedSampler(d)\nv = DistributedSampler(e, shuffle=False)\nfor k in range(5):\n    v.set_epoch(k)\n"
         + TRAIN, 1),
        ("interval = 3\ns = DistributedSampler(interval_data)\nfor ep in range(5):\n" + TRAIN, 2),
    ],
)  # fmt: skip
def test_a_sampler_that_never_hears_of_epochs_is_found_by_what_loops_do(node: Node, text: str, line: int) -> None:
    assert found(node, SamplerEpoch(), text) == [line]


@pytest.mark.parametrize(
    "text",
    [
        "s = DistributedSampler(d)\nfor ep in range(5):\n    dl.sampler.set_epoch(ep)\n" + TRAIN,
        "s = DistributedSampler(d)\nfor ep in range(5):\n    s.set_epoch(epoch=ep)\n" + TRAIN,
        "s = DistributedSampler(d)\nfor ep in range(1):\n" + TRAIN,
        "s = DistributedSampler(d)\nfor x in dl:\n    for k in range(4):\n        m(x).backward()\n",
        "s = DistributedSampler(d)\nfor k in range(100):\n    for j in range(4):\n        m(next(it)).backward()\n",
        "s = DistributedSampler(d)\nfor ep in range(5):\n    for x in dl:\n        evaluate(x)\n",
        "s = DistributedSampler(d, shuffle=False)\nfor ep in range(5):\n" + TRAIN,
        "eval_s = DistributedSampler(d)\nfor ep in range(5):\n" + TRAIN,
    ],
)
def test_a_sampler_that_hears_of_them_or_needs_not_is_silent(node: Node, text: str) -> None:
    assert found(node, SamplerEpoch(), text) == []


LOOP = "for x in dl:\n    m(x).backward()\n"
MODEL = "m = DDP(net)\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a, b = dist.get_rank(), dist.get_world_size()\ndl = DataLoader(files[a::b])\n", 3),
        ("r = int(os.environ['RANK'])\nw = int(os.environ['WORLD_SIZE'])\nmine = Subset(d, range(r, len(d), w))\n"
         "dl = DataLoader(mine)\n", 5),
        ("def part(items, i, k):\n    return items[i::k]\ndl = DataLoader(part(d, dist.get_rank(), n))\n", 4),
    ],
)  # fmt: skip
def test_uneven_parts_are_found_by_any_name(node: Node, text: str, line: int) -> None:
    assert found(node, UnevenShards(), MODEL + text + LOOP) == [line]


@pytest.mark.parametrize(
    "text",
    [
        "a, b = dist.get_rank(), dist.get_world_size()\nk = len(files) // b * b\ndl = DataLoader(files[:k][a::b])\n",
        "dl = DataLoader(files[::2])\n",
        "a = 0\ndl = DataLoader(files[a::b])\n",
    ],
)
def test_even_parts_are_silent_by_any_name(node: Node, text: str) -> None:
    assert found(node, UnevenShards(), MODEL + text + LOOP) == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("try:\n    dist.all_reduce(x)\nexcept:\n    pass\n", 2),
        ("for x in y:\n    try:\n        dist.barrier()\n    except Exception as e:\n        print(e)\n", 3),
        ("import contextlib\nwith contextlib.suppress(Exception):\n    dist.broadcast(x, 0)\n", 3),
        ("def sync(x):\n    try:\n        dist.all_reduce(x)\n    except RuntimeError:\n        return None\n", 3),
        ("try:\n    dist.barrier()\nexcept dist.DistBackendError:\n    logger.warning('again')\nrun()\n", 2),
    ],
)  # fmt: skip
def test_a_collective_whose_failure_nobody_sees_is_found(node: Node, text: str, line: int) -> None:
    assert found(node, SwallowedCollective(), text) == [line]


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    dist.init_process_group('nccl')\nexcept Exception:\n    print('alone')\n",
        "try:\n    train()\nfinally:\n    try:\n        dist.barrier()\n    except Exception:\n        pass\n",
        "try:\n    dist.barrier()\nexcept Exception:\n    log()\n    raise\n",
        "try:\n    dist.barrier()\nexcept Exception:\n    os._exit(1)\n",
        "import contextlib\nwith contextlib.suppress(FileNotFoundError):\n    os.remove(p)\ndist.barrier()\n",
    ],
)
def test_a_collective_whose_failure_ends_the_rank_or_harms_nobody_is_silent(node: Node, text: str) -> None:
    assert found(node, SwallowedCollective(), text) == []


def test_other_checks_follow_values_too(node: Node) -> None:
    text = "def who():\n    return dist.get_rank()\nn = who()\ntorch.cuda.set_device(n)\n"
    assert found(node, GlobalRankDevice(), text) == [4]
    text = (
        "from torch.distributed.fsdp import fully_shard\nfully_shard(model)\nme = dist.get_rank()\nif not me:\n"
        "    s = model.state_dict()\n"
    )
    assert found(node, ShardedSave(), text) == [5]


TWO = "os.environ['CUDA_VISIBLE_DEVICES'] = '0,1'\n"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("import lightning as L\n" + TWO + "t = L.Trainer(devices=4, strategy='ddp')\n", [3]),
        ("from lightning.fabric import Fabric\n" + TWO + "f = Fabric(devices=[0, 1, 2])\n", [3]),
        (TWO + "torch.multiprocessing.spawn(run, args=(), nprocs=8)\n", [2]),
        (TWO + "from accelerate import notebook_launcher\nnotebook_launcher(f, num_processes=4)\n", [3]),
        ("import lightning as L\n" + TWO + "t = L.Trainer(devices=2)\n", []),
        ("import lightning as L\n" + TWO + "t = L.Trainer(devices='auto')\n", []),
        ("import lightning as L\nos.environ['CUDA_VISIBLE_DEVICES'] = gpus\nt = L.Trainer(devices=4)\n", []),
        ("import lightning as L\nt = L.Trainer(devices=4)\n", []),
    ],
)
def test_a_script_that_starts_more_ranks_than_it_names_gpus_is_found(node: Node, text: str, lines: list[int]) -> None:
    assert found(node, FewerGpusThanDevices(), text) == lines
