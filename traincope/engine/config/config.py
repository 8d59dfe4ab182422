"""The whole configuration, and the checks between its tables."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

from traincope.engine.config.checkpoint import CheckpointConfig
from traincope.engine.config.checks import require
from traincope.engine.config.data import DataConfig
from traincope.engine.config.experts import ExpertsConfig
from traincope.engine.config.model import VOCABULARY, ModelConfig
from traincope.engine.config.parallel import ParallelConfig
from traincope.engine.config.sharing import DDPConfig, FSDPConfig, OffloadConfig
from traincope.engine.config.stability import StabilityConfig
from traincope.engine.config.train import OptimizerConfig, ScalingConfig, TrainConfig
from traincope.plan.pipeline.stage_layers import is_possible, stage_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A whole configuration file."""

    model: ModelConfig = field(default_factory=ModelConfig)
    experts: ExpertsConfig | None = None
    """The mixture of experts. None: each token passes the same feed-forward."""
    data: DataConfig = field(default_factory=DataConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    ddp: DDPConfig = field(default_factory=DDPConfig)
    fsdp: FSDPConfig = field(default_factory=FSDPConfig)
    offload: OffloadConfig = field(default_factory=OffloadConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    scaling: ScalingConfig = field(default_factory=ScalingConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    stability: StabilityConfig = field(default_factory=StabilityConfig)
    checkpoint: CheckpointConfig | None = None
    """The checkpoints. None: the training saves none."""

    def __post_init__(self) -> None:
        pipeline = self.parallel.pipeline
        spread = f"parallel.pp = {pipeline.ranks}" + (f" x {pipeline.chunks}" if pipeline.chunks > 1 else "")
        require(
            is_possible(self.stage_layers),
            f"model.layers = {self.model.layers} are too few for {spread} stages: only the first and the last stage "
            "can be without a layer; use more layers, or a smaller pp",
        )
        pieces = self.parallel.replicas * self.train.accumulation * self.parallel.microbatches
        require(
            self.train.batch % pieces == 0,
            f"train.batch = {self.train.batch} does not split into {self.parallel.replicas} replicas x "
            f"{self.train.accumulation} accumulation x {self.parallel.microbatches} microbatches = {pieces} pieces; "
            f"use a multiple of {pieces}",
        )
        self.ddp.check(self.parallel)
        self.fsdp.check(self.parallel)
        self.offload.check(self.parallel, self.ddp)
        self._check_heads()
        self._check_sequence()
        self._check_documents()
        self._check_precision()
        self._check_experts()
        self._check_recompute()
        self._check_stability()
        require(
            self.model.vocabulary >= VOCABULARY or self.token_file,
            f"model.vocabulary = {self.model.vocabulary} is too small for text: 256 bytes and the end of a document "
            f"need {VOCABULARY}",
        )

    def _check_heads(self) -> None:
        """Check that tensor parallelism and Ulysses give each rank whole heads and equal feed-forward parts."""
        exchanged = self.parallel.cp if self.parallel.cp_method == "ulysses" else 1
        tp, ranks = self.parallel.tp, self.parallel.tp * exchanged
        axes = "parallel.tp x parallel.cp (ulysses)" if exchanged > 1 else "parallel.tp"
        for name in ("heads", "kv_heads"):
            heads = getattr(self.model, name)
            require(
                heads % ranks == 0,
                f"model.{name} = {heads} does not split over {axes} = {ranks} ranks; use a multiple of {ranks} heads, "
                "or fewer ranks",
            )
        require(
            self.model.ffn % tp == 0,
            f"model.ffn = {self.model.ffn} does not split over parallel.tp = {tp} ranks; use a multiple of {tp}, or "
            "fewer ranks",
        )

    def _check_experts(self) -> None:
        require(
            self.parallel.ep == 1 or self.experts is not None,
            f"parallel.ep = {self.parallel.ep} needs experts to spread; add a table [experts]",
        )
        if self.experts is not None:
            self.experts.check(self.parallel, self.fsdp, hidden=self.model.hidden, precision=self.train.precision)

    def _check_precision(self) -> None:
        precision = self.train.precision
        self.scaling.check(precision)
        require(
            precision != "fp16" or self.ddp.compression != "powersgd",
            "train.precision = 'fp16' cannot be combined with ddp.compression = 'powersgd': an overflow would stay in "
            "the errors that it keeps; use 'bf16', or another compression",
        )
        require(
            self.fsdp.reduce != "fp16" or precision == "fp16",
            f"fsdp.reduce = 'fp16' can overflow, which only train.precision = 'fp16' notices, not {precision!r}; use "
            "'bf16' or 'fp32'",
        )

    def _check_recompute(self) -> None:
        chosen, most = self.train.recompute_layers, max(map(len, self.stage_layers))
        require(
            chosen is None or chosen <= most,
            f"train.recompute_layers = {chosen} is more than the {most} layers of a stage; use fewer, or leave it out",
        )

    def _check_stability(self) -> None:
        """Refuse to skip steps whose gradients leave traces elsewhere, and what can have no effect."""
        require(
            not self.stability.does("skip") or self.ddp.compression != "powersgd",
            "stability.not_finite or stability.spike = 'skip' would keep a bad step's errors in PowerSGD; set "
            "'record' or 'rollback', or another ddp.compression",
        )
        require(
            not self.stability.does("rollback") or self.checkpoint is not None,
            "stability.not_finite or stability.spike = 'rollback' needs checkpoints to go back to; add a table "
            "[checkpoint], or set 'skip'",
        )
        require(
            self.train.evaluate_every is not None or "held_out_loss" not in (self.stability.halt or ""),
            f"stability.halt = {self.stability.halt!r} needs evaluations; set train.evaluate_every",
        )

    def _check_sequence(self) -> None:
        """Check that a sequence splits into equal pieces.

        A ring gives each rank one early and one late piece. Sequence parallelism splits a rank's part again.
        """
        parallel = self.parallel
        cut = parallel.tp if parallel.sequence_parallel else 1
        ring = parallel.cp_method == "ring" and parallel.cp > 1
        pieces = parallel.cp * (math.lcm(2, cut) if ring else cut)
        require(
            self.model.sequence % pieces == 0,
            f"model.sequence = {self.model.sequence} does not split into the {pieces} equal pieces that cp = "
            f"{parallel.cp} ({parallel.cp_method}) and tp = {parallel.tp} need; use a multiple of {pieces}",
        )

    def _check_documents(self) -> None:
        """Refuse documents in split sequences: attention over pieces does not know documents."""
        end, parallel = self.data.end_of_document, self.parallel
        if end is None:
            return
        require(
            end < self.model.vocabulary,
            f"data.end_of_document = {end} is not one of the {self.model.vocabulary} tokens of model.vocabulary; "
            "use a smaller number",
        )
        require(
            parallel.cp == 1,
            f"data.end_of_document = {end} keeps attention within documents, but parallel.cp = {parallel.cp} splits "
            "sequences; set cp = 1, or leave it out",
        )

    def on_ranks(self, ranks: int) -> "Config":
        """The same training on another number of ranks (`ParallelConfig.resized`). Raises ConfigError."""
        return replace(self, parallel=self.parallel.resized(ranks))

    @property
    def stage_layers(self) -> tuple[range, ...]:
        """Layers of each stage of the pipeline."""
        return stage_layers(self.model.layers, schedule=self.parallel.order_name, shape=self.parallel.pipeline)

    @property
    def token_file(self) -> bool:
        return self.data.path is not None and Path(self.data.path).suffix == ".bin"

    @property
    def stream_tokens(self) -> int:
        """Tokens of each sequence in one rank's residual stream, which a stage sends to the next."""
        parallel = self.parallel
        return self.model.sequence // parallel.cp // (parallel.tp if parallel.sequence_parallel else 1)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of each optimizer step, over all ranks."""
        return self.train.batch * self.model.sequence
