"""The recorder on a GPU changes nothing: no synchronisation, no broken capture, not one bit."""

import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import traincope
from tests.gpu.figures import Figures
from tests.gpu.readers import device_stalls, failed_hooks, only_rank
from traincope.engine.ranks.renamed import gather_into
from traincope.events import Kind, Phase

STEPS = 20
WIDTH = 256
CAPTURES = 200
CAPTURED_FOR_SECONDS = 0.015
"""Longer than the pause of the resolving thread, so that it polls in nearly every capture."""


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(4))).cuda()


def sharded() -> nn.Module:
    mesh = init_device_mesh("cuda", (1,), mesh_dim_names=("fsdp",))
    model = layers()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def train(model: Callable[..., Tensor], directory: Path | None, *, steps: int = STEPS) -> list[Tensor]:
    """Return the losses and, last, all parameters. Nothing is fetched from the device before the end."""
    assert isinstance(model, nn.Module)
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    data = torch.randn(8, WIDTH, device="cuda")
    kept: list[Tensor] = []
    with traincope.run(directory, budget=None) if directory else nullcontext() as run:
        for _ in range(steps):
            loss = model(data).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            kept.append(loss.detach().clone())
            if run is not None:
                run.log(loss=loss)
                run.step()
        torch.cuda.synchronize()
        if run is not None:
            run.step()
            time.sleep(0.1)
    return [*kept, *(_whole(parameter) for parameter in model.parameters())]


def _whole(parameter: Tensor) -> Tensor:
    detached = parameter.detach()
    return detached.full_tensor() if hasattr(detached, "full_tensor") else detached


def assert_bitwise_equal(tensor: list[Tensor], other: list[Tensor]) -> None:
    assert len(tensor) == len(other)
    assert all(torch.equal(a, b) for a, b in zip(tensor, other, strict=True))


@contextmanager
def forbidding_synchronisation() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def scalars(directory: Path) -> list[float]:
    records = only_rank(directory).thread("main")
    values = records["value"][records["kind"] == Kind.SCALAR]
    return [struct.unpack("@d", struct.pack("@q", int(value)))[0] for value in values]


@pytest.mark.usefixtures("nccl")
def test_the_recorder_never_synchronises(tmp_path: Path) -> None:
    """No call of the recorder waits for the device: torch would raise.

    The guard would catch an error of the recorder, so the probes are checked too. An `item()` shows that the mode
    works.
    """
    model = DistributedDataParallel(layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True)
    data = torch.randn(8, WIDTH, device="cuda")
    losses: list[Tensor] = []
    with traincope.run(tmp_path / "run", budget=None) as run:
        for step in range(STEPS):
            with forbidding_synchronisation() if step >= 3 else nullcontext():
                loss = model(data).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                run.log(loss=loss)
                losses.append(loss.detach())
                run.step()
        with forbidding_synchronisation(), pytest.raises(RuntimeError, match="synchron"):
            loss.item()
        torch.cuda.synchronize()
        run.step()
    assert failed_hooks(only_rank(tmp_path / "run")) == {}
    assert scalars(tmp_path / "run") == [loss.item() for loss in losses]


@pytest.mark.usefixtures("nccl")
def test_graphs_are_captured_while_stalls_are_being_resolved(tmp_path: Path, figures: Figures) -> None:
    """In a capture of the strictest mode, an event query of any other thread breaks the capture, unless that thread has
    relaxed its own mode.

    Before each capture a collective is queued behind a spin of about 15 ms. So its bracket is unresolved, and the
    thread keeps polling during the capture, which stays open longer than the thread's pause. `torch.cuda.graph` would
    synchronise first, so it is not used. Logging and collectives inside the capture must record nothing.
    """
    weight, x = torch.randn(WIDTH, WIDTH, device="cuda"), torch.randn(8, WIDTH, device="cuda")
    source = torch.empty(1 << 26, dtype=torch.uint8, device="cuda")
    target, side = torch.empty_like(source), torch.cuda.Stream()

    def captured(inside: Callable[[Tensor], None]) -> Tensor:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(side):
            graph.capture_begin()
            y = (x @ weight).relu()
            inside(y)
            graph.capture_end()
        y.zero_()
        graph.replay()
        torch.cuda.synchronize()
        return y.clone()

    with torch.cuda.stream(side):
        (x @ weight).relu()
    torch.cuda.synchronize()
    expected = captured(lambda _: None)
    with traincope.run(tmp_path / "run", budget=None) as run:
        run.step()  # stalls are measured from the first boundary of steps on

        def linger(y: Tensor, *, marking: bool) -> None:
            run.log(y=y.sum())
            time.sleep(CAPTURED_FOR_SECONDS)
            if marking:
                run.step()

        for number in range(CAPTURES):
            torch.cuda._sleep(30_000_000)
            gather_into(target, source, async_op=True).wait()
            run.log(loss=expected.sum())
            assert torch.equal(captured(partial(linger, marking=number % 2 == 1)), expected)
            run.step()
        time.sleep(0.2)
    rank = only_rank(tmp_path / "run")
    assert failed_hooks(rank) == {}
    assert len(device_stalls(rank)) == CAPTURES
    figures.take("CUDA graphs captured with stalls pending", measured=f"{CAPTURES}, replays equal", held_to="200")


@pytest.mark.usefixtures("nccl")
def test_a_collective_inside_a_capture_is_not_recorded(tmp_path: Path) -> None:
    """Timing events recorded in a capture would become nodes of the graph, without a readable time."""
    tensor = torch.full((1 << 20,), 3.0, device="cuda")
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    with traincope.run(tmp_path / "run", budget=None):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            dist.all_reduce(tensor)
            doubled = tensor * 2
        graph.replay()
        torch.cuda.synchronize()
        time.sleep(0.1)
    rank = only_rank(tmp_path / "run")
    assert failed_hooks(rank) == {}
    assert device_stalls(rank) == []
    assert torch.equal(doubled, torch.full_like(tensor, 6.0))


def test_reduce_overhead_training_is_bit_identical(tmp_path: Path) -> None:
    """CUDA graphs are captured in the first steps and replayed in all others, under our hooks."""

    def compiled(directory: Path | None) -> list[Tensor]:
        torch._dynamo.reset()
        return train(torch.compile(layers(), mode="reduce-overhead"), directory)

    compiled(None)
    bare, observed = compiled(None), compiled(tmp_path / "run")
    assert_bitwise_equal(bare, observed)
    assert failed_hooks(only_rank(tmp_path / "run")) == {}


@pytest.mark.usefixtures("nccl")
@pytest.mark.parametrize(
    ("wrap", "reductions"),
    [(sharded, 0), (lambda: DistributedDataParallel(layers()), STEPS)],
    ids=["FSDP2", "DDP"],
)
def test_a_training_is_bit_identical_and_recorded(
    tmp_path: Path, wrap: Callable[[], nn.Module], reductions: int
) -> None:
    """FSDP2 waits by events of its own streams, DDP inside C++: the two ways without `Work.wait`.

    DDP's buckets are reduced on autograd's thread of the device, and stall the stream once per backward.
    """
    train(wrap(), None)
    bare, observed = train(wrap(), None), train(wrap(), tmp_path / "run")
    assert_bitwise_equal(bare, observed)
    rank = only_rank(tmp_path / "run")
    assert failed_hooks(rank) == {}
    assert rank.info.probes["streams"] == "on"
    assert [stall.name for stall in device_stalls(rank)].count("all_reduce") == reductions
    (ledger,) = traincope.analyze(traincope.open_run(tmp_path / "run")).ledger.ranks
    total = sum(values for values in ledger.terms.values() if values is not None)
    assert np.array_equal(total, ledger.wall_ns)


def test_memory_equals_the_allocators_counters(tmp_path: Path) -> None:
    """Read between two steps without allocations since, so both readings are of the same moment."""
    keys = {
        "allocated": "allocated_bytes.all.current",
        "reserved": "reserved_bytes.all.current",
        "peak allocated": "allocated_bytes.all.peak",
    }
    model, memory_stats = layers(), []
    optimizer = torch.optim.AdamW(model.parameters())
    with traincope.run(tmp_path / "run", budget=None) as run:
        for size in (8, 64, 512):
            model(torch.randn(size, WIDTH, device="cuda")).sum().backward()
            optimizer.step()
            run.step()
            stats = torch.cuda.memory_stats()
            memory_stats.append({name: stats[key] for name, key in keys.items()})
    rank = only_rank(tmp_path / "run")
    records = rank.thread("main")
    between = records[(records["kind"] == Kind.MEMORY) & (records["phase"] == Phase.NONE)]
    named = [(rank.name(int(record["name"])), int(record["value"])) for record in between]
    readings = [(name, value) for name, value in named if name in keys]
    rounds = [dict(readings[at : at + len(keys)]) for at in range(0, len(readings), len(keys))]
    assert rounds[-len(memory_stats) :] == memory_stats


def test_a_training_on_the_cpu_creates_no_gpu_context(tmp_path: Path) -> None:
    """A training that never uses the GPU must not pay hundreds of MiB there. Runs in a process of its own."""
    code = (
        "import sys, torch, traincope\n"
        "with traincope.run(sys.argv[1]) as run:\n"
        "    torch.nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()\n"
        "    run.step()\n"
        "print(torch.cuda.is_initialized())\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    root = Path(traincope.__file__).parents[1]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, cwd=root)
    assert printed.stdout.split() == ["False"]
