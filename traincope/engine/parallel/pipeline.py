"""Pipeline parallelism: layers in stages, a batch in microbatches, run in an order of `plan.orders`.

If an order splits backward, torch gives the first stage nothing to do in I and everything in W, because no stage waits
for its input's gradient.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from traincope.engine.config import Config
from traincope.engine.model.documents import document_arguments
from traincope.engine.model.model import Loss
from traincope.engine.parallel.context_parallel import local_positions, local_tokens
from traincope.engine.precision.formats import FORMATS
from traincope.engine.ranks.mesh import Layout
from traincope.engine.ranks.torch_private import Schedule
from traincope.plan.pipeline.orders import SCHEDULES, orders


def stages_of(config: Config, *, layout: Layout) -> tuple[int, ...]:
    """Stages of this rank, lowest first."""
    parallel = config.parallel
    return SCHEDULES[parallel.order_name].placement(layout.coordinate("pp"), parallel.pipeline)


class Pipeline:
    """Runs a batch through this rank's stages in `accumulation` times `microbatches` pieces."""

    def __init__(
        self, modules: Mapping[int, nn.Module], config: Config, *, loss: Loss, layout: Layout, device: torch.device
    ) -> None:
        """`modules` are this rank's stages by number, lowest first, already parallelised."""
        self._device = device
        self._positions = local_positions(config, layout=layout)
        self._accumulation = config.train.accumulation
        self._end_of_document = config.data.end_of_document
        microbatches = config.parallel.microbatches
        self._stages = [
            _stage(module, config, stage=stage, layout=layout, device=device) for stage, module in modules.items()
        ]
        self._schedule = Schedule(
            self._stages,
            orders=orders(config.parallel.order_name, config.parallel.pipeline),
            microbatches=microbatches,
            loss=_share_of_loss(loss, pieces=microbatches * self._accumulation),
        )

    def train(self, batch: Tensor) -> Tensor:
        """Add the gradients of the mean loss over tokens (B, S + 1) to `.grad`.

        Returns that loss on the last stage, zero on the others.
        """
        return self._run(batch, self._schedule.step)

    @torch.no_grad()
    def evaluate(self, batch: Tensor) -> Tensor:
        """Mean loss over tokens (B, S + 1) on the last stage, zero on the others."""
        return self._run(batch, self._schedule.eval)

    def _run(self, batch: Tensor, schedule: Callable[..., None]) -> Tensor:
        total = torch.zeros((), device=self._device)
        for part in batch.chunk(self._accumulation):
            losses: list[Tensor] = []
            inputs, targets = local_tokens(part, self._positions)
            first = (inputs,) if self._stages[0].is_first else ()
            arguments = document_arguments(inputs, end=self._end_of_document)
            schedule(*first, target=targets if self._stages[-1].is_last else None, losses=losses, **arguments)
            total += sum(loss.detach() for loss in losses)
        return total


def _share_of_loss(loss: Loss, *, pieces: int) -> Loss:
    """Loss of a microbatch as a share of the mean.

    Summed over the pieces of a batch, the gradients need no scaling.
    """

    def share(logits: Tensor, targets: Tensor) -> Tensor:
        return loss(logits, targets) / pieces

    return share


def _stage(module: nn.Module, config: Config, *, stage: int, layout: Layout, device: torch.device) -> PipelineStage:
    """Build a stage with given shapes, so that torch need not run the model once to infer them."""
    stages = config.parallel.pipeline.stages
    pieces = config.parallel.replicas * config.train.accumulation * config.parallel.microbatches
    sequences, tokens = config.train.batch // pieces, config.model.sequence // config.parallel.cp
    compute = FORMATS[config.train.precision].compute
    stream = compute if layout.sharded else torch.float32

    def activations(tokens: int, channels: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(sequences, tokens, channels, dtype=dtype, device="meta", requires_grad=True)

    hidden = activations(config.stream_tokens, config.model.hidden, stream)
    return PipelineStage(
        module,
        stage_index=stage,
        num_stages=stages,
        device=device,
        group=layout.group("pp"),
        input_args=torch.empty(sequences, tokens, dtype=torch.int64, device="meta") if stage == 0 else hidden,
        output_args=activations(tokens, config.model.vocabulary, compute) if stage == stages - 1 else hidden,
    )
