"""Pipeline parallelism: the layers cut into stages, a batch cut into microbatches, run in an order of ours."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from traincope.engine.config import Config
from traincope.engine.mesh import Layout
from traincope.engine.model import next_token_loss
from traincope.engine.orders import ORDERS
from traincope.engine.torch_private import scheduled


def stage_layers(layers: int, *, stages: int, stage: int) -> range:
    """The layers of one stage, `layers` being a multiple of `stages`."""
    each = layers // stages
    return range(stage * each, (stage + 1) * each)


class Pipeline:
    """Runs a batch through this rank's stage, `accumulation` times `microbatches` pieces of it."""

    def __init__(self, model: nn.Module, config: Config, *, layout: Layout, device: torch.device) -> None:
        """`model` is this rank's stage, parallelised already."""
        self.model = model
        self._device = device
        self._accumulation = config.train.accumulation
        microbatches = config.parallel.microbatches
        order = ORDERS[config.parallel.schedule]
        stages = layout.size("pp")
        self._stage = _stage(model, config, layout=layout, device=device)
        self._schedule = scheduled(
            self._stage,
            orders=[order(stage, stages=stages, microbatches=microbatches) for stage in range(stages)],
            microbatches=microbatches,
            loss=_share_of_loss(microbatches * self._accumulation),
        )

    def train(self, batch: Tensor) -> Tensor:
        """Gradients of the mean loss over tokens (B, S + 1) are added to `.grad`.

        Returns that loss on the last stage, zero on the others.
        """
        return self._run(batch, self._schedule.step)

    @torch.no_grad()
    def evaluate(self, batch: Tensor) -> Tensor:
        """Mean loss over tokens (B, S + 1) on the last stage, zero on the others."""
        return self._run(batch, self._schedule.eval)

    def _run(self, batch: Tensor, schedule: Callable[..., Tensor | None]) -> Tensor:
        total = torch.zeros((), device=self._device)
        for part in batch.chunk(self._accumulation):
            losses: list[Tensor] = []
            inputs = (part[:, :-1].contiguous(),) if self._stage.is_first else ()
            targets = part[:, 1:].contiguous() if self._stage.is_last else None
            schedule(*inputs, target=targets, losses=losses, return_outputs=False)
            total += sum(loss.detach() for loss in losses)
        return total


def _share_of_loss(pieces: int) -> Callable[[Tensor, Tensor], Tensor]:
    """A microbatch's share of the mean: summed over the pieces of a batch, gradients need no scaling."""

    def share(logits: Tensor, targets: Tensor) -> Tensor:
        return next_token_loss(logits, targets) / pieces

    return share


def _stage(model: nn.Module, config: Config, *, layout: Layout, device: torch.device) -> PipelineStage:
    """Shapes are told beforehand, so torch need not run the model once to find them."""
    stage, stages = layout.coordinate("pp"), layout.size("pp")
    pieces = config.parallel.replicas * config.train.accumulation * config.parallel.microbatches
    sequences, tokens = config.train.batch // pieces, config.model.sequence // config.parallel.cp
    sharded_bf16 = config.train.precision == "bf16" and config.parallel.fsdp > 1
    dtype = torch.bfloat16 if sharded_bf16 else torch.float32

    def activations(tokens: int, channels: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(sequences, tokens, channels, dtype=dtype, device="meta", requires_grad=True)

    hidden = activations(config.stream_tokens, config.model.hidden, dtype)
    logits_dtype = torch.bfloat16 if config.train.precision == "bf16" else torch.float32
    return PipelineStage(
        model,
        stage_index=stage,
        num_stages=stages,
        device=device,
        group=layout.group("pp"),
        input_args=torch.empty(sequences, tokens, dtype=torch.int64, device="meta") if stage == 0 else hidden,
        output_args=activations(tokens, config.model.vocabulary, logits_dtype) if stage == stages - 1 else hidden,
    )
