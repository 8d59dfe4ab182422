"""Forward and backward of a rank that has all layers, without a pipeline."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from traincope.engine.config import Config
from traincope.engine.model.documents import document_arguments
from traincope.engine.model.model import Loss
from traincope.engine.model.rotary import Positions
from traincope.engine.parallel.context_parallel import local_tokens


class UnpipelinedModel:
    """Runs a batch in `accumulation` parts. Gradients are summed, and reduced with the last part.

    With ZeRO stage 2 (`fsdp.stage`) FSDP reduces them after each part.
    """

    def __init__(self, model: nn.Module, config: Config, *, loss: Loss, positions: Positions) -> None:
        """`positions` are those of this rank's tokens in a sequence."""
        self.model = model
        self._loss_of = loss
        self._positions = positions
        self._accumulation = config.train.accumulation
        self._end_of_document = config.data.end_of_document
        self._keeps_parameters = config.fsdp.stage == 2

    def train(self, batch: Tensor) -> Tensor:
        """Add the gradients of the mean loss over tokens (B, S + 1) to `.grad`; return that loss."""
        total = torch.zeros((), device=batch.device)
        parts = batch.chunk(self._accumulation)
        for number, part in enumerate(parts, start=1):
            with self._reduce_gradients(number == len(parts)):
                loss = self._loss(part) / len(parts)
                loss.backward()
            total += loss.detach()
        return total

    @torch.no_grad()
    def evaluate(self, batch: Tensor) -> Tensor:
        """Mean loss over tokens (B, S + 1)."""
        losses = [self._loss(part) for part in batch.chunk(self._accumulation)]
        return torch.stack(losses).mean()

    def _loss(self, part: Tensor) -> Tensor:
        inputs, targets = local_tokens(part, self._positions)
        logits = self.model(inputs, **document_arguments(inputs, end=self._end_of_document))
        return self._loss_of(logits, targets)

    def _reduce_gradients(self, is_last: bool) -> AbstractContextManager[None]:
        if isinstance(self.model, FSDPModule) and self._keeps_parameters:
            self.model.set_reshard_after_backward(is_last)
            self.model.set_requires_all_reduce(is_last)
        elif isinstance(self.model, FSDPModule):
            self.model.set_requires_gradient_sync(is_last)
        if isinstance(self.model, DistributedDataParallel) and not is_last:
            return self.model.no_sync()
        return nullcontext()
