"""What needs a GPU: situations that are no hang, and hangs. Started as `on_gpus.py NAME` with CONTROL_BACKEND=nccl."""

import contextlib
import os
import threading
import time

import torch  # noqa: TID251
import torch.distributed as dist  # noqa: TID251
from torch import Tensor, nn  # noqa: TID251
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: TID251
from torch.distributed.fsdp import fully_shard  # noqa: TID251

from tests.controls.common import DEVICE, QUIET_SECONDS, RANK, WARM_UP, WORLD, beat, hang, main, situation, step, train

_STUCK = threading.Event()
_WIDTH = 1024
NEVER_CYCLES = 1 << 62
GIBIBYTE = 1 << 30


def _model() -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.GELU()) for _ in range(4))).to(DEVICE)


def _learn(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(8, _WIDTH, device=DEVICE)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
    time.sleep(0.03)
    beat.step()


def _sharded() -> tuple[nn.Module, torch.optim.Optimizer]:
    mesh = init_device_mesh("cuda", (WORLD,))
    model = _model()
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters())


def _mesh() -> DeviceMesh:
    return init_device_mesh("cuda", (WORLD // 2, 2), mesh_dim_names=("dp", "tp"))


def _mesh_step(mesh: DeviceMesh) -> None:
    for name in ("tp", "dp"):
        dist.all_reduce(torch.ones(4096, device=DEVICE), group=mesh.get_group(name))
    torch.cuda.synchronize()
    time.sleep(0.03)
    beat.step()


def _pipeline_step() -> None:
    """One micro-batch forward and its gradient back, from stage to stage."""
    block = torch.zeros(4096, device=DEVICE)
    if RANK > 0:
        dist.recv(block, RANK - 1)
    time.sleep(0.01)
    if RANK < WORLD - 1:
        dist.send(block, RANK + 1)
        dist.recv(block, RANK + 1)
    time.sleep(0.01)
    if RANK > 0:
        dist.send(block, RANK - 1)
    torch.cuda.synchronize()
    beat.step()


@situation
def sharded_training_and_a_full_checkpoint() -> None:
    """FSDP2; rank 0 collects every parameter and writes for a while, the others wait in a barrier."""
    model, optimizer = _sharded()
    for _ in range(WARM_UP):
        _learn(model, optimizer)
    state = {name: value.full_tensor().cpu() for name, value in model.state_dict().items()}
    until = time.monotonic() + QUIET_SECONDS
    while RANK == 0 and time.monotonic() < until:
        with open(os.devnull, "wb") as file:
            torch.save(state, file)
    dist.barrier()
    for _ in range(60):
        _learn(model, optimizer)


@situation
def one_rank_compiles() -> None:
    """Rank 1 alone compiles a model in mid-training: another shape came."""
    train(WARM_UP)
    if RANK == 1:
        model = torch.compile(_model(), dynamic=False)
        until, size = time.monotonic() + QUIET_SECONDS, 1
        while time.monotonic() < until:
            model(torch.randn(size, _WIDTH, device=DEVICE)).sum().item()
            size += 1
            if size > 6:  # torch gives up after eight shapes
                torch.compiler.reset()
                size = 1
    train(60)


@situation
def steps_are_a_replayed_graph() -> None:
    """The collective is part of a CUDA graph, which the recorder saw once."""
    train(10)
    gradient = torch.ones(4096, device=DEVICE)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            dist.all_reduce(gradient)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(gradient)
        gradient.div_(WORLD)
    until = torch.tensor([time.time() + QUIET_SECONDS + 10], device=DEVICE, dtype=torch.float64)
    dist.broadcast(until, 0)
    number, last = 0, torch.zeros(1, device=DEVICE)
    while True:
        graph.replay()
        torch.cuda.synchronize()
        time.sleep(0.04)
        beat.step()
        number += 1
        if number % 50 == 0:
            last.fill_(float(time.time() > until.item()))
            dist.all_reduce(last)
            if last.item():
                break
    graph.reset()


@situation
def one_rank_evaluates_on_its_gpu() -> None:
    """Rank 0 evaluates, its GPU computes; the others wait in a barrier."""
    train(WARM_UP)
    model, until = _model(), time.monotonic() + QUIET_SECONDS
    while RANK == 0 and time.monotonic() < until:
        with torch.no_grad():
            for _ in range(50):
                model(torch.randn(4096, _WIDTH, device=DEVICE))
        torch.cuda.synchronize()
    dist.barrier()
    train(60)


@situation
def long_kernels() -> None:
    """Every step is three seconds of one kernel: the host stands in one synchronisation after another."""
    train(20)
    until = torch.tensor([time.time() + QUIET_SECONDS], device=DEVICE, dtype=torch.float64)
    dist.broadcast(until, 0)
    for _ in range(int(QUIET_SECONDS / 3)):
        torch.cuda._sleep(5_000_000_000)  # about 3 s at 1.7 GHz
        step()
    train(20)


@situation
def memory_runs_out_and_all_try_again() -> None:
    """Every rank catches an out-of-memory error, empties its cache and goes on with half the batch."""
    train(WARM_UP)
    with contextlib.suppress(torch.OutOfMemoryError):
        torch.empty(1 << 44, device=DEVICE)
    torch.cuda.empty_cache()
    time.sleep(QUIET_SECONDS / 3)
    train(60)


@situation
def a_mesh_trains() -> None:
    """Two dimensions of a device mesh, each with its groups; then a long evaluation of all."""
    mesh = _mesh()
    for _ in range(WARM_UP):
        _mesh_step(mesh)
    time.sleep(QUIET_SECONDS)
    for _ in range(60):
        _mesh_step(mesh)


@hang(causes=("not_entered",), culprits=(2,), where=("lock",))
def sharded_rank_stands() -> None:
    """FSDP2: rank 2 stands at a lock before its forward pass; the others wait in an all-gather."""
    model, optimizer = _sharded()
    for number in range(10**6):
        if RANK == 2 and number == WARM_UP:
            _STUCK.wait()  # here
        _learn(model, optimizer)


@hang(causes=("data_exhausted", "collective_mismatch", "not_entered"), culprits=(1,))
def sharded_rank_runs_out_of_data() -> None:
    """FSDP2: rank 1 has a batch less and goes on to the validation loss."""
    model, optimizer = _sharded()
    for _ in range(WARM_UP - (RANK == 1)):
        _learn(model, optimizer)
    loss = torch.ones(1, device=DEVICE)
    dist.all_reduce(loss)
    loss.item()


@hang(causes=("not_entered",), culprits=(3,), where=("user_code", "busy_loop"))
def mesh_rank_computes_for_ever() -> None:
    """A mesh: rank 3 never comes back from a loop of its own, its tp peer and then everybody waits."""
    mesh = _mesh()
    for number in range(10**6):
        while RANK == 3 and number == WARM_UP:
            sum(range(1000))  # here
        _mesh_step(mesh)


@hang(causes=("collective_mismatch", "not_entered"), culprits=(2,))
def mesh_rank_leaves_one_out() -> None:
    """A mesh: rank 2 skips its tensor-parallel reduction once, after an overflow of its loss."""
    mesh = _mesh()
    for number in range(10**6):
        if RANK == 2 and number == WARM_UP:
            dist.all_reduce(torch.ones(4096, device=DEVICE), group=mesh.get_group("dp"))
            continue
        if number == WARM_UP + 20:
            dist.barrier()  # its tp peer is one reduction behind, and does not come
        _mesh_step(mesh)


@hang(causes=("not_entered", "p2p_unmatched"), culprits=(1,), where=("lock",))
def pipeline_stage_stands() -> None:
    """A pipeline: stage 1 stands at a lock, its neighbours wait in their receives, and theirs behind them."""
    for number in range(10**6):
        if RANK == 1 and number == WARM_UP:
            _STUCK.wait()  # here
        _pipeline_step()


@hang(causes=("p2p_unmatched", "not_entered"), culprits=(2,))
def pipeline_stage_keeps_its_gradient() -> None:
    """A pipeline: stage 2 does not send its gradient back once and waits for the next micro-batch."""
    for number in range(10**6):
        if RANK == 2 and number == WARM_UP:
            block = torch.zeros(4096, device=DEVICE)
            dist.recv(block, 1)
            dist.send(block, 3)
            dist.recv(block, 3)
            torch.cuda.synchronize()
            beat.step()
            continue
        _pipeline_step()


@hang(causes=("gpu_kernel_stuck", "not_entered"), culprits=(1,), where=("gpu_sync",))
def kernel_never_ends_and_its_host_waits() -> None:
    """Rank 1's own kernel never ends; its host waits for the result before the collective."""
    train(WARM_UP)
    if RANK == 1:
        torch.cuda._sleep(NEVER_CYCLES)
        torch.ones(1, device=DEVICE).item()  # here
    train(60)


@hang(causes=("gpu_kernel_stuck", "not_entered"), culprits=(1,))
def kernel_never_ends_before_the_collective() -> None:
    """Rank 1's own kernel never ends; its collective is queued behind, and every host waits in the same line."""
    train(WARM_UP)
    if RANK == 1:
        torch.cuda._sleep(NEVER_CYCLES)
    train(60)


@hang(causes=("rank_raised", "rank_exited", "gpu_fault"), culprits=(2,))
def index_out_of_range_on_the_gpu() -> None:
    """Rank 2's embedding gets a token that is not in its table: a device-side assertion."""
    train(WARM_UP)
    if RANK == 2:
        table = nn.Embedding(16, 8, device=DEVICE)
        table(torch.tensor([400], device=DEVICE)).sum().item()
    train(600)


@hang(causes=("rank_raised", "rank_exited"), culprits=(1,))
def memory_runs_out_on_one() -> None:
    """Rank 1 runs out of GPU memory, uncaught."""
    train(WARM_UP)
    if RANK == 1:
        torch.empty(1 << 44, device=DEVICE)
    train(600)


@hang(causes=("not_entered", "collective_mismatch", "data_exhausted", "rank_raised"), culprits=(1,))
def memory_runs_out_and_one_skips() -> None:
    """Rank 1 catches its out-of-memory error and leaves the step's collective out; then the metrics come."""
    train(WARM_UP)
    for number in range(60):
        try:
            if RANK == 1 and number == 20:
                torch.empty(1 << 44, device=DEVICE)
            step()
        except torch.OutOfMemoryError as error:
            print(f"skipped: {error}")
    loss = torch.ones(3, device=DEVICE)
    dist.all_reduce(loss)
    loss.sum().item()


@hang(causes=("collective_mismatch", "not_entered"), culprits=(0,))
def one_rank_collects_the_shards_alone() -> None:
    """FSDP2: only rank 0 asks for the full state, which needs everybody."""
    model, optimizer = _sharded()
    for _ in range(WARM_UP):
        _learn(model, optimizer)
    if RANK == 0:
        parts: list[Tensor] = [value.full_tensor() for value in model.state_dict().values()]
        print(sum(part.numel() for part in parts))
    for _ in range(60):
        _learn(model, optimizer)


@hang(causes=("collective_mismatch", "data_exhausted"), culprits=(1,))
def one_rank_s_batch_has_images() -> None:
    """Only rank 1 has images, and reduces what the others do not know of, in the group of all."""
    for number in range(WARM_UP + 60):
        if RANK == 1 and number == WARM_UP:
            dist.all_reduce(torch.ones(8, device=DEVICE))
        step()


@hang(causes=("collective_mismatch",), culprits=(2,))
def one_rank_reduces_in_half_precision() -> None:
    """Rank 2 was started without a flag: its gradients have another type."""
    train(WARM_UP)
    for _ in range(60):
        dist.all_reduce(torch.ones(1 << 22, device=DEVICE, dtype=torch.half if RANK == 2 else torch.float))
        step()


@hang(causes=("collective_mismatch",), culprits=(3,))
def parameters_in_another_order() -> None:
    """A set of names has another order in each process: rank 3 reduces the bias before the weight."""
    train(WARM_UP)
    for _ in range(60):
        for size in (64, 1 << 22) if RANK == 3 else (1 << 22, 64):
            dist.all_reduce(torch.ones(size, device=DEVICE))
        step()


main()
