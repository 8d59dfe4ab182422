"""Six steps of DDP on gloo ranks, in a program that knows nothing of traincope.

    training.py FOLDER [RANKS [COMPANY]]

Each rank writes its losses, exactly, to FOLDER/RANK. RANKS: `launched` (by the environment), `spawned` or `forked` (two
processes that this one starts, which meet at $SPAWN_PORT), `prepared` (forked after this process has made a model and
its optimizer), `alone`. COMPANY: another tool, or a process, that comes into the training.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

STEPS, RANKS, MIDDLE = 6, 2, 3
KEPT: list[nn.Module] = []
"""Models that live until their process ends. DDP holds its group, and torch 2.13 destroys a gloo group with Python's
lock held: if a thread of the group has just completed a collective, and needs the lock to let go of it, both wait for
ever.
"""


def main(folder: str, ranks: str = "launched", company: str = "") -> None:
    if ranks == "launched":
        train(folder, company)
    elif ranks == "alone":
        train(folder, company, in_group=False)
    else:
        if ranks == "prepared":
            torch.optim.SGD(model_of().parameters(), lr=0.1)
        arguments, method = (folder, company, os.environ["SPAWN_PORT"]), "spawn" if ranks == "spawned" else "fork"
        torch.multiprocessing.start_processes(started, args=arguments, nprocs=RANKS, start_method=method)


def started(rank: int, folder: str, company: str, port: str) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    train(folder, company)


def model_of() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 1))


def train(folder: str, company: str = "", *, in_group: bool = True) -> None:
    if in_group:
        join()
    rank = dist.get_rank() if in_group else 0
    model = model_of()
    if in_group:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    losses = []
    with alongside(company, model) as tool:
        for step, batch in enumerate(DataLoader(torch.randn(4 * STEPS, 8), batch_size=4, **loading(company))):
            if step == MIDDLE:
                in_the_middle(company, folder, model)
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            tool()
    KEPT.append(model)
    if in_group:
        dist.destroy_process_group()
    Path(folder, str(rank)).write_text(" ".join(loss.hex() for loss in losses))


def join() -> None:
    """Join by the variables of torchrun, or by those of a SLURM task."""
    if "RANK" not in os.environ:
        os.environ |= {"RANK": os.environ["SLURM_PROCID"], "WORLD_SIZE": os.environ["SLURM_NTASKS"]}
    dist.init_process_group("gloo")


def loading(company: str) -> dict[str, object]:
    workers = company.partition("workers by ")[2]
    return {"num_workers": 1, "multiprocessing_context": workers} if workers else {}


@contextmanager
def alongside(company: str, model: nn.Module) -> Iterator[Callable[[], object]]:
    """Another tool around the training. Yields what it calls at the end of each step."""
    if company == "torch.profiler":
        schedule = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1)
        traced: list[int] = []
        with torch.profiler.profile(
            schedule=schedule, on_trace_ready=lambda profile: traced.append(len(profile.key_averages()))
        ) as profile:
            yield profile.step
        assert len(traced) == 1
        assert traced[0] > 10
    elif company == "TraceML":
        import traceml_ai

        traceml_ai.init(on_missing_aggregator="raise")
        with ExitStack() as steps:

            def next_step() -> None:
                steps.close()
                steps.enter_context(traceml_ai.trace_step(model))

            next_step()
            yield next_step
    else:
        yield lambda: None


def in_the_middle(company: str, folder: str, model: nn.Module) -> None:
    """An event between two steps."""
    if company == "fork":
        child = os.fork()
        if child == 0:
            model_of()(torch.ones(1, 8)).sum().backward()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    elif company == "evaluation":
        Path(folder, "evaluation").mkdir(exist_ok=True)
        subprocess.run([sys.executable, __file__, str(Path(folder, "evaluation")), "alone"], check=True)
    elif company == "background checkpoint":
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        state, process = {"model": model.state_dict()}, AsyncCheckpointerType.PROCESS
        checkpoint.async_save(state, checkpoint_id=Path(folder, "saved"), async_checkpointer_type=process).result()


if __name__ == "__main__":
    if "at start" in sys.argv[3:]:
        os.execv(sys.executable, [sys.executable, *sys.argv[:3]])
    main(*sys.argv[1:])
