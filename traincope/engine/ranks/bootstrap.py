"""Start of a worker process: torchrun's environment variables and the process group."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from traincope.errors import TrainingError
from traincope.store.job.launcher import FIRST_ATTEMPT_VARIABLE

COLLECTIVE_TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEnvironment:
    """Environment variables that torchrun sets for each worker."""

    rank: int
    local_rank: int
    world_size: int
    master_address: str
    master_port: int
    attempt: int
    """Number of restarts of the job before this attempt."""
    earlier_attempts: int
    """Attempts of the same run that earlier launches left."""
    agent_has_store: bool
    """torchrun's agent already serves the store. Otherwise rank 0 serves it."""

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> "WorkerEnvironment":
        """Read the environment. Raises TrainingError outside torchrun."""
        try:
            return cls(
                rank=int(environ["RANK"]),
                local_rank=int(environ["LOCAL_RANK"]),
                world_size=int(environ["WORLD_SIZE"]),
                master_address=environ["MASTER_ADDR"],
                master_port=int(environ["MASTER_PORT"]),
                attempt=int(environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
                earlier_attempts=int(environ.get(FIRST_ATTEMPT_VARIABLE, "0")),
                agent_has_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            )
        except KeyError as error:
            raise TrainingError(
                f"{error.args[0]} is not set; start workers through `traincope train` or torchrun"
            ) from error
        except ValueError as error:
            raise TrainingError(
                f"torchrun's variables are not numbers ({error}); start workers through `traincope train` or torchrun"
            ) from error


def join(environment: WorkerEnvironment) -> torch.device:
    """Create the default process group, NCCL on GPUs and gloo without, and return this rank's device.

    torchrun keeps its own store over a restart, and gloo would read the addresses of the previous attempt's ranks. So
    keys in that store are prefixed by the attempt. A store that rank 0 serves is new in each attempt, and there a host
    that joined later may number attempts otherwise.
    """
    device = _device(environment.local_rank)
    store = dist.TCPStore(  # type: ignore[attr-defined]  # public, but not in torch's __all__
        environment.master_address,
        environment.master_port,
        environment.world_size,
        is_master=environment.rank == 0 and not environment.agent_has_store,
    )
    prefix = f"attempt/{environment.attempt}" if environment.agent_has_store else "attempt"
    dist.init_process_group(
        "gloo" if device.type == "cpu" else "nccl",
        store=dist.PrefixStore(prefix, store),  # type: ignore[attr-defined]  # as above
        rank=environment.rank,
        world_size=environment.world_size,
        timeout=COLLECTIVE_TIMEOUT,
        device_id=None if device.type == "cpu" else device,
    )
    return device


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise TrainingError(
            f"local rank {local_rank} has no GPU: there are {torch.cuda.device_count()}; launch fewer ranks a node, or "
            "hide the GPUs with CUDA_VISIBLE_DEVICES= to train on the CPU"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
