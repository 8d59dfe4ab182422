"""torchtitan's Trainer on its Llama 3: sharded (`fsdp`), with tensor parallelism (`tp`), both (`fsdp+tp`), or with a
pipeline (`pp`).

Its device is the GPU. Here it finds the CPU, and its metrics read no memory of a GPU. The tokens are random.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import IterableDataset


class Cpu:
    """torch.cpu, with a number for its device, as modules of accelerators have."""

    set_device, synchronize, is_available = torch.cpu.set_device, torch.cpu.synchronize, torch.cpu.is_available

    @staticmethod
    def current_device() -> int:
        return 0


with patch.multiple("torch._utils", _get_available_device_type=lambda: "cpu", _get_device_module=lambda _: Cpu):
    from torchtitan.components.dataloader import ParallelAwareDataloader
    from torchtitan.components.metrics import DeviceMemStats, MetricsProcessor
    from torchtitan.config import JobConfig
    from torchtitan.models.llama3 import TransformerModelArgs, get_train_spec
    from torchtitan.protocols.train_spec import register_train_spec
    from torchtitan.tools import utils
    from torchtitan.train import Trainer

STEPS, BATCH, TOKENS = 12, 4, 16
SIZES = TransformerModelArgs(dim=64, n_layers=2, n_heads=4, vocab_size=128, multiple_of=64)
DEGREES = {"fsdp": "data_parallel_shard_degree", "tp": "tensor_parallel_degree", "pp": "pipeline_parallel_degree"}

losses: list[float] = []


class NoMemory:
    device_name = "CPU"

    def get_peak_stats(self) -> DeviceMemStats:
        return DeviceMemStats(0.0, 0.0, 0.0, 0.0, 0, 0)


class Losses(MetricsProcessor):
    def __init__(self, job_config: JobConfig, *_: object) -> None:
        self.job_config, self.color, self.device_memory_monitor = job_config, utils.NoColor(), NoMemory()
        self.ntokens_since_last_log, self.data_loading_times = 0, []

    def log(self, _step: int, loss: float, *_: object, **__: object) -> None:
        losses.append(loss)

    def close(self) -> None:
        pass


class Texts(IterableDataset):
    def __init__(self, rank: int) -> None:
        self.data = torch.Generator().manual_seed(rank)

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        while True:
            text = torch.randint(SIZES.vocab_size, (TOKENS + 1,), generator=self.data)
            yield {"input": text[:-1]}, text[1:]


def loader(*, dp_rank: int, dp_world_size: int, **_: object) -> ParallelAwareDataloader:
    return ParallelAwareDataloader(Texts(dp_rank), dp_rank, dp_world_size, batch_size=BATCH)


def settings(directory: str, how: str) -> JobConfig:
    config = JobConfig()
    config.job.dump_folder = f"{directory}/dump"
    config.model.name = config.model.flavor = "tiny"
    config.training.local_batch_size, config.training.seq_len, config.training.steps = BATCH, TOKENS, STEPS
    config.training.mixed_precision_param = "float32"
    config.metrics.log_freq = 1
    config.debug.seed = 0  # otherwise torchtitan draws one
    config.activation_checkpoint.mode = "none"
    for axis in how.split("+"):
        setattr(config.parallelism, DEGREES[axis], 2)
    return config


def trainer_of(directory: str, how: str) -> Trainer:
    spec = replace(
        get_train_spec(),
        model_args={"tiny": SIZES},
        build_dataloader_fn=loader,
        build_tokenizer_fn=None,
        build_metrics_processor_fn=Losses,
    )
    register_train_spec("tiny", spec)
    trainer = Trainer(settings(directory, how))
    for module in trainer.model_parts[0].modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other
    return trainer


def main(directory: str, how: str) -> None:
    trainer = trainer_of(directory, how)
    trainer.train()
    trainer.close()
    Path(directory, f"losses-{torch.distributed.get_rank()}").write_text("\n".join(map(float.hex, losses)))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
