"""Random small trainings, which must give the same numbers bare and recorded, bit by bit.

`python -m tests.native.random_trainings [--programs N] [--seed N]` trains N programs on two ranks: bare, with the
native recorder, and with the Python hooks. It prints the seed of each program that differs, and fails then.
"""

import argparse
import copy
import gc
import hashlib
import io
import random
import secrets
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils import checkpoint

import traincope
from tests.distributed.ranks.pool import Pool
from tests.native.library import using, why_missing

WIDTH, BATCH, MAX_STEPS = 8, 4, 4
BARE, NATIVE, PYTHON = "bare", "native", "Python hooks"
WAYS = (BARE, NATIVE, PYTHON)


class Refused(Exception):
    """An exception of a training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What a training computed on one rank."""

    losses: tuple[str, ...]
    """Exact, in hexadecimal digits."""
    digest: str
    """Hash of parameters, gradients, messages, the state of the random numbers, and the exceptions in order."""
    ended_by: str
    """Type of the exception that ended the training; empty for none."""


def compared(seed: int, folder: str) -> dict[str, Numbers]:
    """Train the program of a seed in each way. `folder` is for the records, a new one per rank."""
    return {way: _trained(seed, way, f"{folder}/{way}") for way in WAYS}


def _trained(seed: int, way: str, out: str) -> Numbers:
    dist.barrier()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about the programs
        if way == BARE:
            return Training(seed).run()
        with using(native=way == NATIVE), traincope.run(out, budget=None, agent=False, level=seed % 3):
            return Training(seed).run()


@dataclass(slots=True)
class Training:
    """The program of a seed. All ranks draw the same; their batches differ."""

    seed: int
    draw: random.Random = field(init=False)
    seen: "hashlib._Hash" = field(default_factory=lambda: hashlib.sha256())
    losses: list[str] = field(default_factory=list)
    pending: list[tuple[Any, torch.Tensor]] = field(default_factory=list)
    """Works that are waited for later, and their tensors."""
    is_compiled: bool = False

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)

    def run(self) -> Numbers:
        torch.manual_seed(self.seed)
        draw, ended_by = self.draw, ""
        model, synchronised = self._wrapped(self._model())
        optimizer = draw.choice([torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad])(model.parameters(), lr=0.05)
        accumulated, evaluates = draw.choice([1, 1, 2, 3]), draw.random() < 0.3
        between = draw.sample(ACTIONS, draw.randint(0, 4))
        raises_at = draw.randrange(MAX_STEPS) if draw.random() < 0.2 else None
        is_caught, elsewhere = draw.random() < 0.5, draw.random() < 0.25
        generator = torch.Generator().manual_seed(self.seed + 1 + dist.get_rank())
        try:
            with _busy_thread() if elsewhere else nullcontext():
                for step in range(draw.randint(1, MAX_STEPS)):
                    for part in range(accumulated):
                        with synchronised(part == accumulated - 1):
                            loss = model(torch.randn(BATCH, WIDTH, generator=generator)).square().mean()
                            loss.backward()
                        self.losses.append(float(loss.detach()).hex())
                    self._look_at(model)
                    for action in between:
                        action(self)
                    if step == raises_at:
                        self._raise(is_caught=is_caught)
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=draw.random() < 0.5)
                    if evaluates:
                        self._evaluate(model)
        except Refused as error:
            ended_by = type(error).__name__
        self._wait()
        self._look_at(model)
        self.seen.update(torch.get_rng_state().numpy().tobytes())
        return Numbers(losses=tuple(self.losses), digest=self.seen.hexdigest(), ended_by=ended_by)

    def _model(self) -> nn.Sequential:
        draw = self.draw
        layers = [draw.choice(LAYERS)() for _ in range(draw.randint(1, 4))]
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *layers)
        for layer in model:
            if draw.random() < 0.2:
                layer.register_forward_hook(lambda _module, _args, result: result * 2)
        if draw.random() < 0.15:
            self.is_compiled = True
            model[0].compile(backend=draw.choice(["eager", "aot_eager"]))
        return model

    def _wrapped(self, model: nn.Sequential) -> tuple[nn.Module, Callable[[bool], AbstractContextManager[object]]]:
        """Return the model to train, and the context of a backward, given whether its gradients are synchronised."""
        how = self.draw.choice(["alone", "ddp", "ddp", "fsdp"])
        if how == "ddp":
            ddp = DistributedDataParallel(
                model,
                bucket_cap_mb=25 if self.is_compiled else self.draw.choice([1e-5, 25]),  # DDP refuses the small ones
                find_unused_parameters=self.draw.random() < 0.3,
                gradient_as_bucket_view=self.draw.random() < 0.5,
                broadcast_buffers=self.draw.random() < 0.5,
            )
            return ddp, lambda last: nullcontext() if last else ddp.no_sync()
        if how == "fsdp":
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            for layer in model:
                if self.draw.random() < 0.5:
                    fully_shard(layer, mesh=mesh)
            return fully_shard(model, mesh=mesh), lambda _last: nullcontext()
        return model, lambda _last: nullcontext()

    def _raise(self, *, is_caught: bool) -> None:
        """Raise below a module's call and inside a collective's arguments, on all ranks alike."""

        def refuse(*_: object) -> None:
            raise Refused

        layer = nn.Linear(WIDTH, WIDTH)
        layer.register_forward_pre_hook(refuse)
        try:
            layer(torch.ones(WIDTH))
        except Refused:
            self.seen.update(b"refused")
            if not is_caught:
                raise
        try:
            dist.all_reduce("no tensor")  # type: ignore[arg-type]
        except (TypeError, ValueError, AttributeError) as error:
            self.seen.update(type(error).__name__.encode())

    def _evaluate(self, model: nn.Module) -> None:
        model.eval()
        with torch.no_grad():
            self.losses.append(float(model(torch.ones(BATCH, WIDTH)).sum()).hex())
        model.train()

    def _look_at(self, model: nn.Module) -> None:
        for parameter in model.parameters():
            for tensor in (parameter, parameter.grad):
                if tensor is not None:
                    local = tensor.detach()
                    local = local.to_local() if hasattr(local, "to_local") else local
                    self.look(local)

    def look(self, tensor: torch.Tensor) -> None:
        """Add a tensor to the digest."""
        self.seen.update(tensor.contiguous().numpy().tobytes())

    def values(self, number: int = WIDTH) -> torch.Tensor:
        """Values that differ between ranks and from call to call."""
        return torch.full((number,), self.draw.random()) * (1 + dist.get_rank())

    def _wait(self) -> None:
        for work, tensor in self.pending:
            work.wait()
            self.look(tensor)
        self.pending.clear()


# -- what a training does between its steps ---------------------------------------------------------


def reduce(training: Training) -> None:
    values = training.values()
    dist.all_reduce(values)
    training.look(values)


def reduce_without_waiting(training: Training) -> None:
    values = training.values()
    training.pending.append((dist.all_reduce(values, async_op=True), values))
    if training.draw.random() < 0.5:
        training._wait()


def gather(training: Training) -> None:
    values = training.values()
    gathered = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, values)
    whole = torch.empty(WIDTH * dist.get_world_size())
    dist.all_gather_into_tensor(whole, values)
    for tensor in (*gathered, whole):
        training.look(tensor)


def broadcast(training: Training) -> None:
    values = training.values()
    dist.broadcast(values, src=dist.get_world_size() - 1)
    training.look(values)


def send_objects(training: Training) -> None:
    answers: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(answers, {"loss": training.losses[-1]})
    training.seen.update(repr(answers).encode())


def pass_on(training: Training) -> None:
    """Messages in a ring, in one batch or one after the other."""
    rank, size = dist.get_rank(), dist.get_world_size()
    given, got = training.values(), torch.empty(WIDTH)
    if training.draw.random() < 0.5:
        messages = [dist.P2POp(dist.isend, given, (rank + 1) % size), dist.P2POp(dist.irecv, got, (rank - 1) % size)]
        works = dist.batch_isend_irecv(messages)
    else:
        works = [dist.isend(given, (rank + 1) % size), dist.irecv(got, (rank - 1) % size)]
    for work in works:
        work.wait()
    training.look(got)


def reduce_functionally(training: Training) -> None:
    training.look(functional.all_reduce(training.values(), "sum", dist.group.WORLD) * 1)


def make_group(training: Training) -> None:
    group = dist.new_group(backend="gloo")
    values = training.values()
    dist.all_reduce(values, group=group)
    training.look(values)
    dist.destroy_process_group(group)


def meet(_: Training) -> None:
    dist.barrier()


def recompute(training: Training) -> None:
    layer, values = nn.Linear(WIDTH, WIDTH), torch.ones(WIDTH, requires_grad=True)
    result = checkpoint.checkpoint(layer, values, use_reentrant=training.draw.random() < 0.5)
    result.sum().backward()
    training.look(values.grad)


def differentiate_twice(training: Training) -> None:
    values = training.values().requires_grad_()
    (first,) = torch.autograd.grad(values.pow(3).sum(), values, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), values)
    training.look(second)


def copy_and_save(training: Training) -> None:
    layer, file = nn.Linear(WIDTH, WIDTH), io.BytesIO()
    torch.save(copy.deepcopy(layer).state_dict(), file)
    file.seek(0)
    training.look(torch.load(file)["weight"])


def collect_garbage(_: Training) -> None:
    gc.collect()


def load_data(training: Training) -> None:
    batches = torch.utils.data.DataLoader(range(6), batch_size=2, shuffle=True)
    for batch in batches:
        training.look(batch)


ACTIONS = (
    reduce,
    reduce_without_waiting,
    gather,
    broadcast,
    send_objects,
    pass_on,
    reduce_functionally,
    make_group,
    meet,
    recompute,
    differentiate_twice,
    copy_and_save,
    collect_garbage,
    load_data,
)
LAYERS: tuple[Callable[[], nn.Module], ...] = (
    lambda: nn.Linear(WIDTH, WIDTH),
    lambda: nn.LayerNorm(WIDTH),
    lambda: nn.BatchNorm1d(WIDTH),
    lambda: nn.Dropout(0.3),
    nn.GELU,
    lambda: nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH)),
    lambda: nn.Sequential(nn.Unflatten(1, (1, WIDTH)), nn.Conv1d(1, 1, 3, padding=1), nn.Flatten()),
    lambda: nn.Sequential(nn.Unflatten(1, (1, WIDTH)), nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.0), nn.Flatten()),
)


@contextmanager
def _busy_thread() -> Iterator[None]:
    """Compute with torch on another thread."""
    ended = threading.Event()

    def compute() -> None:
        while not ended.wait(0.001):
            torch.ones(WIDTH, WIDTH) @ torch.ones(WIDTH, WIDTH)

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


# -- the command -------------------------------------------------------------------------------------


def differences(pool: Pool, seed: int, folder: str) -> list[str]:
    """Describe in which ways a program's numbers differ from the bare ones, on which rank."""
    ranks = pool.run(compared, seed, folder)
    shutil.rmtree(folder, ignore_errors=True)
    return [
        f"seed {seed}, rank {rank}, {way}: {numbers} for {each[BARE]}"
        for rank, each in enumerate(ranks)
        for way, numbers in each.items()
        if numbers != each[BARE]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=1_000)
    parser.add_argument("--seed", type=int, help="seed of the first program; a random one by default")
    options = parser.parse_args()
    if why_missing():
        print(f"the native recorder is not here: {why_missing()}", file=sys.stderr)
        return 2
    first = secrets.randbelow(1_000_000_000) if options.seed is None else options.seed
    pool, different = Pool(2), 0
    with tempfile.TemporaryDirectory(prefix="random-trainings-") as folder:
        for number, seed in enumerate(range(first, first + options.programs)):
            if number and not number % 100:
                print(f"{number} programs", flush=True)
            for line in differences(pool, seed, f"{folder}/{seed}"):
                print(line)
                different += 1
    pool.stop()
    print(f"{options.programs} programs from seed {first} on: {different} differences")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
