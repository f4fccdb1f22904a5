import pytest

from stallwatch.doctor.check_result import FindingRecord
from stallwatch.doctor.surroundings import Question
from stallwatch.doctor.training_script.divergence import RankConditionalCollective, SwallowedCollective
from tests.unit.doctor.fakes import Node

IMPORTS = "import os, torch, torch.distributed as dist\n"


def conditional(node: Node, text: str) -> tuple[FindingRecord, ...]:
    script = node.write("train.py", IMPORTS + text)
    return RankConditionalCollective().look(node.around(question=Question(scripts=(script,))))


def swallowed(node: Node, text: str) -> tuple[FindingRecord, ...]:
    script = node.write("train.py", IMPORTS + text)
    return SwallowedCollective().look(node.around(question=Question(scripts=(script,))))


def lines(found: tuple[FindingRecord, ...]) -> list[int]:
    return [int(one.subject.rsplit(":", 1)[1]) for one in found]


@pytest.mark.parametrize(
    "text",
    [
        "if dist.get_rank() == 0:\n    dist.barrier()\n",
        "rank = dist.get_rank()\nif rank != 0: dist.all_gather_object(box, x)\n",
        "if not local_rank:\n    torch.distributed.broadcast(x, 0)\n",
        "if int(os.environ['RANK']) == 0 and step % 10 == 0:\n    dist.all_reduce(loss)\n",
        "if os.environ['RANK'] == '0':\n    dist.barrier()\n",
        "r = dist.get_rank()\nmain = r == 0\nif main:\n    dist.barrier()\n",
        "if is_main_process():\n    dist.gather(x, parts)\n",
        "if args.local_rank in (-1, 0):\n    dist.barrier()\n",
        "if rank == 0: print(1)\nelse: dist.barrier()\n",
        "def f(rank):\n    if rank > 0:\n        return\n    dist.barrier()\n",
        "for x in y:\n    if rank == 0:\n        continue\n    dist.all_reduce(x)\n",
        "loss = dist.all_reduce(x) if rank == 0 else None\n",
        "rank == 0 and dist.barrier()\n",
        "if rank < 2:\n    dist.barrier()\n",
        "match rank:\n    case 0:\n        dist.barrier()\n    case _:\n        print(1)\n",
        "match rank:\n    case 0:\n        print(1)\n    case _:\n        dist.barrier()\n",
        "if rank == world_size - 1:\n    dist.broadcast(x, rank)\n",
        "if rank == 0:\n    with torch.no_grad():\n        for x in y:\n            dist.reduce(x, 0)\n",
        "from torch.distributed import all_reduce\nif rank == 0:\n    all_reduce(x)\n",
        "import deepspeed.comm as comm\nif comm.get_rank() == 0:\n    comm.barrier()\n",
        "@rank_zero_only\ndef save():\n    dist.barrier()\n",
        "import lightning as L\nclass M(L.LightningModule):\n    def f(self):\n"
        "        if self.trainer.is_global_zero:\n            self.all_gather(self.x)\n",
        "if accelerator.is_main_process:\n    accelerator.wait_for_everyone()\n",
        "if fabric.global_rank == 0:\n    fabric.barrier()\n",
        "class A:\n    def f(self):\n        if self.rank == 0:\n            dist.new_group([0, 1])\n",
        "match 1:\n    case 1:\n        if rank == 0:\n            dist.barrier()\n",
        "if rank == 0:\n    dist.broadcast(x, 0)\n    dist.barrier()\nelse:\n    dist.broadcast(x, 0)\n",
        "if rank == 0:\n    dist.barrier(group=dist.group.WORLD)\n",
    ],
)
def test_a_collective_that_only_some_ranks_come_to_is_found(node: Node, text: str) -> None:
    (found,) = conditional(node, text)
    assert found.severity == "error"


def test_the_line_of_the_call_and_of_the_condition_are_told(node: Node) -> None:
    (found,) = conditional(node, "if rank == 0:\n    print(1)\n    dist.barrier()\n")
    assert found.subject.endswith("train.py:4")
    assert found.seen == "barrier is called by rank 0 alone (condition in line 2)."


def test_a_collective_in_a_function_of_the_script_is_followed(node: Node) -> None:
    text = (
        "def mean(x):\n    dist.all_reduce(x)\n    return x\ndef evaluate(m):\n    return mean(m(1))\n"
        "class T:\n    def sync(self):\n        dist.barrier()\n    def run(self):\n        if self.rank == 0:\n"
        "            self.sync()\nif rank == 0:\n    evaluate(model)\n"
    )
    found = conditional(node, text)
    assert lines(found) == [14, 12]
    assert "evaluate(), which calls all_reduce" in found[0].seen


@pytest.mark.parametrize(
    "text",
    [
        "if rank == 0:\n    print(loss)\ndist.barrier()\n",
        "if rank == 0:\n    dist.broadcast(x, 0)\nelse:\n    dist.broadcast(x, 0)\n",
        "if rank == 0:\n    dist.barrier()\nif rank != 0:\n    dist.barrier()\n",
        "if rank != 0:\n    dist.barrier()\nprepare()\nif not rank:\n    dist.barrier()\n",
        "def f(rank):\n    if rank != 0:\n        dist.barrier()\n        return load()\n    x = make()\n"
        "    dist.barrier()\n",
        "class First:\n    def __enter__(self):\n        if rank: dist.barrier()\n    def __exit__(self, *e):\n"
        "        if rank == 0: dist.barrier()\n",
        "if rank == 0:\n    dist.send(x, 1)\nelse:\n    dist.recv(x, 0)\n",
        "if rank < 4:\n    dist.all_reduce(x, group=half)\n",
        "if rank in members:\n    dist.barrier(group)\n",
        "if local_rank != -1:\n    dist.barrier()\n",
        "if rank >= 0:\n    dist.barrier()\n",
        "if rank < world_size:\n    dist.barrier()\n",
        "if world_size > 1:\n    dist.barrier()\n",
        "if dist.is_initialized():\n    dist.barrier()\n",
        "if step % 100 == 0 or rank == 0:\n    dist.barrier()\n",
        "if rank == 0 and not os.path.exists(p):\n    raise FileNotFoundError(p)\ndist.barrier()\n",
        "def a():\n    dist.broadcast(x, 0)\ndef b():\n    dist.broadcast(x, 0)\nif rank == 0: a()\nelse: b()\n",
        "def log(*a):\n    if rank != 0: return\n    print(*a)\nlog(1)\ndist.barrier()\n",
        "if rank == 0:\n    def f():\n        dist.barrier()\n",
        "if args.rank_first == 0:\n    dist.barrier()\n",
        "if matrix_rank(a) == 0:\n    dist.barrier()\n",
        "if __name__ == '__main__':\n    dist.barrier()\n",
        "queue.reduce(x) if rank == 0 else None\n",
    ],
)
def test_what_every_rank_comes_to_or_what_is_no_collective_is_silent(node: Node, text: str) -> None:
    assert conditional(node, text) == ()


DDP = "from torch.nn.parallel import DistributedDataParallel as DDP\nmodel = DDP(net)\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("try:\n    x = load()\n    dist.all_reduce(x)\nexcept Exception:\n    pass\n", 4),
        ("for b in y:\n    try:\n        x = f(b)\n        dist.barrier()\n    except:\n        continue\n", 5),
        ("try:\n    save()\n    dist.barrier()\nexcept (OSError, ValueError) as e:\n    log.error(e)\n", 4),
        ("try:\n    save()\nexcept OSError:\n    print('no')\nelse:\n    dist.barrier()\n", 7),
        ("ok = True\ntry:\n    save()\nexcept OSError:\n    ok = False\nif ok:\n    dist.barrier()\n", 8),
        ("try:\n    save()\nexcept OSError:\n    dist.barrier()\n", 5),
        ("def main():\n    work()\n    dist.barrier()\ntry:\n    main()\nexcept Exception as e:\n    print(e)\n", 6),
        (f"{DDP}try:\n    loss.backward()\nexcept RuntimeError:\n    continue_ = 1\n", 5),
        ("try:\n    step()\n    dist.barrier()\nexcept RuntimeError as e:\n    if 'memory' in str(e):\n        clear()"
         "\n    else:\n        raise\n", 4),
        ("for b in y:\n    try:\n        dist.all_reduce(b)\n    except OSError as e:\n        if 'memory' in str(e):"
         "\n            continue\n        raise\n", 4),
        (f"{DDP}def step(b):\n    try:\n        loss = model(b)\n        loss.backward()\n    except OSError as e:\n"
         "        if is_oom(e):\n            with lock:\n                if b.small:\n                    return None\n"
         "        log.error(e)\n        raise e\n", 7),
        ("try:\n    step()\n    dist.barrier()\nexcept Exception:\n    os.sys.exit\n    exit(0)\n", 4),
        ("try:\n    step()\n    dist.all_reduce(x, group=None)\nexcept Exception:\n    return_ = None\n", 4),
    ],
)  # fmt: skip
def test_a_collective_that_an_exception_skips_is_found(node: Node, text: str, line: int) -> None:
    found = swallowed(node, text)
    assert lines(found) == [line]
    assert found[0].severity == "warning"


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    x = load()\n    dist.all_reduce(x)\nexcept Exception:\n    log()\n    raise\n",
        "try:\n    x = load()\n    dist.all_reduce(x)\nexcept Exception:\n    os._exit(1)\n",
        "for b in y:\n    try:\n        dist.all_reduce(b)\n    except RuntimeError as e:\n        if rank == 0:\n"
        "            for one in hooks:\n                if one.broken:\n                    continue\n"
        "                one()\n        raise\n",
        "for b in y:\n    try:\n        dist.all_reduce(b)\n    except OSError as e:\n        if world_size == 1:\n"
        "            continue\n        raise\n",
        "def main():\n    try:\n        x = load()\n        dist.all_reduce(x)\n    except RuntimeError as e:\n"
        "        if 'memory' in str(e):\n            return 3\n        raise\n",
        "try:\n    x = load()\n    dist.all_reduce(x)\nfinally:\n    close()\n",
        "try:\n    x = load()\nexcept Exception:\n    x = None\ndist.barrier()\n",
        "try:\n    dist.barrier()\nexcept Exception:\n    pass\ndist.destroy_process_group()\n",
        "try:\n    dist.all_gather_into_tensor(o, x)\nexcept RuntimeError:\n    dist.all_gather(p, x)\n",
        "try:\n    import apex\nexcept ImportError:\n    dist.barrier()\n",
        "try:\n    b = next(it)\n    dist.all_reduce(b)\nexcept StopIteration:\n    pass\n",
        "ok = 1\ntry:\n    save()\nexcept OSError:\n    ok = 0\nok = agree(ok)\nif ok:\n    dist.barrier()\n",
        "try:\n    loss.backward()\nexcept RuntimeError:\n    pass\n",
        "try:\n    save()\nexcept OSError:\n    sys.exit(1)\nelse:\n    dist.barrier()\n",
        "def main():\n    work()\n    dist.barrier()\ntry:\n    main()\nexcept Exception:\n    raise SystemExit(1)\n",
    ],
)
def test_an_exception_that_ends_the_rank_or_skips_nothing_is_silent(node: Node, text: str) -> None:
    assert swallowed(node, text) == ()
