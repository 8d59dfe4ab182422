"""The training loop as a generator: the caller decides what happens between steps.

trainer = Trainer(config, device=device)
for result in trainer.steps():
    print(result.step, result.loss)
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from traincope.engine.batches import held_out_batches, training_batches
from traincope.engine.config import Config
from traincope.engine.corpus import read_corpus
from traincope.engine.model.documents import squared_lengths
from traincope.engine.model.expert_load import ExpertLoad, expert_loads
from traincope.engine.model.initialise import initialise
from traincope.engine.model.model import GPT, Loss, next_token_loss
from traincope.engine.optimizer.bad_steps import BadStep, BadSteps
from traincope.engine.optimizer.clipping import clip, gradient_norm, scale_gradients
from traincope.engine.optimizer.optimizer import place_optimizer, set_learning_rate
from traincope.engine.parallel.context_parallel import apply_context_parallel, local_positions
from traincope.engine.parallel.expert_parallel import (
    apply_expert_parallel,
    average_expert_gradients,
    load_counters,
    scale_balance_losses,
)
from traincope.engine.parallel.pipeline import Pipeline, stages_of
from traincope.engine.parallel.recompute import apply_recompute
from traincope.engine.parallel.tensor_parallel import apply_tensor_parallel, loss_over_vocabulary, sum_partial_gradients
from traincope.engine.parallel.unpipelined import UnpipelinedModel
from traincope.engine.precision.formats import FORMATS
from traincope.engine.precision.loss_scaler import LossScaler
from traincope.engine.precision.scaled_products import operands_of, round_products
from traincope.engine.precision.scales import end_step
from traincope.engine.ranks.generators import seed_generators
from traincope.engine.ranks.mesh import Layout, build_layout
from traincope.engine.sharing.data_parallel import Replicas, apply_ddp
from traincope.engine.sharing.offload import allocate
from traincope.engine.sharing.sharded import apply_fsdp


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One optimizer step. All ranks have the same values except for `squared_lengths`."""

    step: int
    """Counted from 1."""
    loss: float | None
    """Mean over the global batch, in nats per token. None in steps that are not logged."""
    grad_norm: float | None
    """Norm of the whole gradient before clipping. None in steps that are not logged."""
    tokens: int
    """Tokens of the global batch."""
    overflowed: bool
    """The gradient overflowed in fp16, so the optimizer did not step. The batch counts as consumed."""
    loss_scale: float | None
    """Scale of the loss in this step, in fp16."""
    squared_lengths: int
    """Sum of squared lengths in this replica's slice of the batch: of its documents, or of its whole sequences."""
    skipped: str | None = None
    """Reason of `[stability]` why the step updated no parameter, or None."""
    rolls_back: bool = False
    """True if `[stability]` requires that a checkpoint is loaded before the next step (`Checkpoints.roll_back`)."""


class ModelRunner(Protocol):
    """Runs a slice of a batch, tokens (B, S + 1), on this rank."""

    def train(self, batch: Tensor) -> Tensor:
        """Add the gradients of the slice's mean loss to `.grad`. Returns the loss on the last stage, zero on others."""

    def evaluate(self, batch: Tensor) -> Tensor:
        """Return the slice's mean loss on the last stage, zero on others."""


class Trainer:
    """Model, data and optimizer of one rank. Needs the process group unless the layout has one rank."""

    def __init__(self, config: Config, *, device: torch.device) -> None:
        """Build everything. Raises ConfigError if the layout does not fit the process group, DataError without text."""
        self.config = config
        self.device = device
        self.layout = build_layout(config.parallel, device=device)
        self.corpus = read_corpus(config.data)
        self.done = 0
        """Steps that the parameters have had, skipped ones included."""
        self.passed_over = 0
        """Batches that rollbacks have passed over. So `done + passed_over` batches are consumed."""
        self._held_out = held_out_batches(config, self.corpus, replica=self.layout.replica)
        self.modules = {
            stage: build_model(config, stage=stage, layout=self.layout, device=device)
            for stage in stages_of(config, layout=self.layout)
        }
        self.operands = {
            name: operand for module in self.modules.values() for name, operand in operands_of(module).items()
        }
        """Scales of fp8's operands by layer and operand; empty in other formats."""
        scales_loss = FORMATS[config.train.precision].scales_loss
        self.loss_scaler = LossScaler(config.scaling, device=device) if scales_loss else None
        if self.loss_scaler is not None:
            scale_balance_losses(self.modules.values(), self.loss_scaler.scaled)
        self._runner = _runner(self.modules, config, loss=self._loss, layout=self.layout, device=device)
        self.parameters = {
            name.removeprefix("module."): parameter
            for module in self.modules.values()
            for name, parameter in module.named_parameters()
        }
        """This rank's parameters, whole or sharded, by their name in the whole model."""
        self._parameters = list(self.parameters.values())
        self.optimizer = place_optimizer(self.modules.values(), config, layout=self.layout)
        self._bad_steps = BadSteps(config.stability) if config.stability.judges else None
        self._has_trained = False
        """True after the first backward of this process."""
        if config.model.dropout:
            seed_generators(config, layout=self.layout, step=0)

    def steps(self) -> Iterator[StepResult]:
        """Train from step `done` + 1 to the end; yield one result after each optimizer step.

        If the caller loads a checkpoint after a result, training continues after the step of that checkpoint.
        """
        while self.done < self.config.train.steps:
            at = {"done": self.done, "passed_over": self.passed_over}
            for batch in training_batches(self.config, self.corpus, replica=self.layout.replica, **at):
                result = self._step(batch)
                yield result
                if (self.done, self.passed_over) != (result.step, at["passed_over"]):
                    break

    def _step(self, batch: Tensor) -> StepResult:
        step, self._has_trained = self.done + 1, True
        with loss_over_vocabulary(self.layout):
            loss = self._runner.train(batch.to(self.device, non_blocking=True))
        scale = None if self.loss_scaler is None else self.loss_scaler.scale
        norm = self._combine_gradients()
        overflowed = self.loss_scaler is not None and not norm.isfinite().item()
        judged = None if self._bad_steps is None else self._global_mean(loss)
        bad = None if overflowed else self._judge(judged, norm)
        self._update(step, norm=norm, skip=overflowed or bad is not None)
        self.done = step
        logged = step % self.config.train.log_every == 0
        mean = self._global_mean(loss) if logged and judged is None else judged
        return StepResult(
            step=step,
            loss=mean if logged else None,
            grad_norm=norm.item() if logged else None,
            tokens=self.config.tokens_per_step,
            overflowed=overflowed,
            loss_scale=scale,
            squared_lengths=squared_lengths(batch[:, :-1], end=self.config.data.end_of_document),
            skipped=None if bad is None else bad.why,
            rolls_back=bad is not None and bad.rolls_back,
        )

    def settle_buckets(self) -> None:
        """Let DDP order its buckets as in a running training. All ranks must call it together, before the next step.

        DDP puts gradients into new buckets after the first backward, in the order in which they were ready. A sum over
        ranks depends on the place of a number in its bucket. So a training that continues in the first buckets rounds
        differently. This runs one batch and drops its gradients. It draws random numbers. After a step of this process
        it does nothing.
        """
        if self._has_trained or not any(isinstance(module, Replicas) for module in self.modules.values()):
            return
        batch = next(iter(training_batches(self.config, self.corpus, replica=self.layout.replica)))
        with loss_over_vocabulary(self.layout):
            self._runner.train(batch.to(self.device))
        self.optimizer.zero_grad(set_to_none=True)
        for counter in load_counters(self.modules.values()).values():
            counter.read(device=self.device)
        for operand in self.operands.values():
            operand.forget()

    def evaluate(self) -> float:
        """Mean loss on held-out text in nats per token, the same on each rank."""
        for module in self.modules.values():
            module.eval()
        with loss_over_vocabulary(self.layout):
            losses = [self._runner.evaluate(batch.to(self.device, non_blocking=True)) for batch in self._held_out]
        for module in self.modules.values():
            module.train()
        return self._global_mean(torch.stack(losses).mean())

    def expert_loads(self) -> tuple[ExpertLoad, ...]:
        """Load of this rank's experts since the last call, layer by layer. All ranks must call it together.

        Ranks of a `tp` group have parts of the same experts and saw the same tokens, so only the first reports them.
        """
        counters = load_counters(self.modules.values()) if self.layout.coordinate("tp") == 0 else {}
        return expert_loads(counters, group=self.layout.group("ep"), device=self.device)

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        loss = next_token_loss(logits, targets)
        return loss if self.loss_scaler is None else self.loss_scaler.scaled(loss)

    def _combine_gradients(self) -> Tensor:
        """Complete the sums over ranks. Returns the norm of the whole gradient, without the scale of the loss."""
        sum_partial_gradients(self._parameters, layout=self.layout)
        average_expert_gradients(self._parameters, layout=self.layout)
        norm = gradient_norm(self._parameters, layout=self.layout)
        return norm if self.loss_scaler is None else self.loss_scaler.unscale(norm)

    def _judge(self, loss: float | None, norm: Tensor) -> BadStep | None:
        """Judge the step, alike on all ranks."""
        if self._bad_steps is None or loss is None:
            return None
        return self._bad_steps.judge(loss=loss, grad_norm=norm.item())

    def _update(self, step: int, *, norm: Tensor, skip: bool) -> None:
        if not skip:
            if self.loss_scaler is not None:
                scale_gradients(self._parameters, torch.tensor(1 / self.loss_scaler.scale))
            if self.config.optimizer.clip_norm is not None:
                clip(self._parameters, norm=norm, limit=self.config.optimizer.clip_norm)
            set_learning_rate(self.optimizer, self.config.optimizer, step=step)
            self.optimizer.step()
        if self.loss_scaler is not None:
            # Before gradients are zeroed, so that an observer can tell a skipped step from a finished one.
            self.loss_scaler.end_step()
        self.optimizer.zero_grad(set_to_none=True)
        end_step(self.operands, layout=self.layout)

    def _global_mean(self, loss: Tensor) -> float:
        """Mean loss over the global batch.

        One sum over all ranks suffices: on one stage each rank has the mean of its tokens, on the others zero.
        """
        if self.layout.mesh is not None:
            dist.all_reduce(loss)
        return loss.item() / (self.config.parallel.world_size // self.config.parallel.pp)


def build_model(config: Config, *, stage: int, layout: Layout, device: torch.device) -> nn.Module:
    """Build this rank's part of a stage, parallelised and initialised, in the order that torch requires.

    Everything that splits a parameter does so before it has storage; tensor parallelism precedes FSDP. DDP copies
    initialised parameters.
    """
    number_format = FORMATS[config.train.precision]
    with torch.device("meta"):
        autocast = torch.float32 if layout.sharded else number_format.compute
        model = GPT(
            config.model,
            experts=config.experts,
            layers=config.stage_layers[stage],
            is_first=stage == 0,
            is_last=stage == config.parallel.pipeline.stages - 1,
            autocast=autocast,
        )
        round_products(model.blocks, number_format, steps=config.scaling.history, device=device)
    apply_tensor_parallel(model, layout=layout, sequence_parallel=config.parallel.sequence_parallel)
    apply_context_parallel(model, config, layout=layout)
    apply_expert_parallel(model, config, layout=layout)
    apply_recompute(
        model,
        config.train.recompute,
        layers=config.train.recompute_layers,
        splits_backward=config.parallel.splits_backward,
    )
    apply_fsdp(model, config, layout=layout)
    allocate(model, config.offload, device=device)
    initialise(model, config.model, seed=config.train.seed)
    return apply_ddp(model, config.ddp, layout=layout, device=device)


def _runner(
    modules: Mapping[int, nn.Module], config: Config, *, loss: Loss, layout: Layout, device: torch.device
) -> ModelRunner:
    if layout.size("pp") > 1:
        return Pipeline(modules, config, loss=loss, layout=layout, device=device)
    positions = local_positions(config, layout=layout)
    return UnpipelinedModel(modules[0], config, loss=loss, positions=positions)
