"""Forward and backward where a rank has every layer: no pipeline."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from traincope.engine.config import Config
from traincope.engine.context_parallel import own_tokens
from traincope.engine.documents import told_of_documents
from traincope.engine.model import next_token_loss
from traincope.engine.rotary import Positions


class WholeModel:
    """Runs a batch in `accumulation` parts whose gradients are summed, and reduced with the last (FSDP: see there)."""

    def __init__(self, model: nn.Module, config: Config, *, positions: Positions) -> None:
        """`positions` are this rank's in a sequence."""
        self.model = model
        self._positions = positions
        self._accumulation = config.train.accumulation
        self._end_of_document = config.data.end_of_document
        self._keeps_parameters = config.fsdp.stage == 2

    def train(self, batch: Tensor) -> Tensor:
        """Gradients of the mean loss over tokens (B, S + 1) are added to `.grad`; returns that loss."""
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
        inputs, targets = own_tokens(part, self._positions)
        logits = self.model(inputs, **told_of_documents(inputs, end=self._end_of_document))
        return next_token_loss(logits, targets)

    def _reduce_gradients(self, wanted: bool) -> AbstractContextManager[None]:
        if isinstance(self.model, FSDPModule) and self._keeps_parameters:
            self.model.set_reshard_after_backward(wanted)
            self.model.set_requires_all_reduce(wanted)
        elif isinstance(self.model, FSDPModule):
            self.model.set_requires_gradient_sync(wanted)
        if isinstance(self.model, DistributedDataParallel) and not wanted:
            return self.model.no_sync()
        return nullcontext()
