"""What to train and how it is laid out: frozen values that are checked as they are made.

Every table of a configuration file is one of these classes, every key one of their fields. A
value that cannot work raises ConfigError here, before any process is launched.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from traincope.engine.checks import divides, positive, require
from traincope.plan.orders import SCHEDULES, Shape, find

VOCABULARY = 257
"""The 256 bytes and the token that ends a document."""

AXES = ("pp", "dp_replicate", "fsdp", "dp", "cp", "tp")
"""Sizes in `[parallel]` whose product is the world size, outermost first: ranks that talk most are neighbours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """`[model]`: a GPT with RMSNorm, rotary positions, grouped-query attention and SwiGLU."""

    layers: int = 8
    """Transformer blocks."""
    hidden: int = 256
    """Width of the residual stream."""
    heads: int = 8
    """Query heads; each is hidden / heads wide."""
    kv_heads: int = 4
    """Key and value heads, each shared by heads / kv_heads query heads."""
    ffn: int = 704
    """Inner width of the SwiGLU feed-forward."""
    sequence: int = 128
    """Tokens of one training sequence."""
    vocabulary: int = VOCABULARY
    """Size of the embedding; text needs 257 (bytes and end of document), a token file what it holds."""
    rope_theta: float = 10_000.0
    """Base of the rotary frequencies."""

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "sequence", "vocabulary"):
            positive(getattr(self, name), key=f"model.{name}")
        positive(self.rope_theta, key="model.rope_theta")
        divides(self.heads, self.hidden, divisor="model.heads", dividend="model.hidden")
        divides(self.kv_heads, self.heads, divisor="model.kv_heads", dividend="model.heads")
        require(
            self.hidden // self.heads % 2 == 0,
            f"model.hidden / model.heads = {self.hidden // self.heads} is odd; "
            "rotary positions turn pairs of channels, so make it even",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """`[data]`: the text."""

    path: str | None = None
    """A file or folder of text, or a token file `.bin` (`token_type`); None: this Python's own library."""
    token_type: Literal["uint8", "uint16"] = "uint16"
    """Type of the numbers in a token file."""
    held_out: float = 0.05
    """Share of the tokens, from the end of the text, that is never trained on."""
    workers: int = 0
    """Processes that prepare batches in the background; 0: the training process does."""

    def __post_init__(self) -> None:
        require(
            0.0 < self.held_out < 1.0,
            f"data.held_out = {self.held_out} is no share; give one between 0 and 1",
        )
        require(self.workers >= 0, f"data.workers = {self.workers} is negative; 0 means no background processes")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """`[parallel]`: how ranks divide the work; the product of the sizes is the world size."""

    pp: int = 1
    """Pipeline stages."""
    dp_replicate: int = 1
    """Replicas of the sharded model (HSDP); needs fsdp > 1 or cp > 1."""
    fsdp: int = 1
    """Ranks that share one copy of parameters, gradients and optimizer state (FSDP2)."""
    dp: int = 1
    """Replicas of the whole model (DDP); a pipeline may be beside it, nothing else."""
    cp: int = 1
    """Ranks that share each sequence (context parallelism); parameters are sharded over fsdp x cp."""
    cp_method: Literal["ring", "ulysses"] = "ring"
    """How attention sees the whole sequence: keys and values go round a ring, or heads are exchanged for tokens."""
    tp: int = 1
    """Ranks that share each matrix product (tensor parallelism)."""
    sequence_parallel: bool = True
    """With tp, norms and the residual stream are cut along the sequence, instead of repeated on every tp rank."""
    ranks: int | None = None
    """World size this layout is meant for, checked against the product of the sizes; None: the product."""
    schedule: str = "1f1b"
    """Order of a pipeline's actions: gpipe, 1f1b, interleaved, zb-1p, zb-v, dualpipev or naive."""
    virtual: int | None = None
    """Stages that a rank of the pipeline holds; None: as few as the schedule can have (zb-v has always two)."""
    microbatches: int = 1
    """Pieces a pipeline cuts its batch into."""
    reshard_after_forward: bool = True
    """FSDP frees gathered parameters between forward and backward; pipelines never do."""

    def __post_init__(self) -> None:
        for name in (*AXES, "microbatches"):
            positive(getattr(self, name), key=f"parallel.{name}")
        require(
            self.schedule in SCHEDULES,
            f"parallel.schedule = {self.schedule!r} is not known; choose one of {', '.join(SCHEDULES)}",
        )
        require(
            self.dp == 1 or (self.fsdp == 1 and self.dp_replicate == 1),
            f"parallel.dp = {self.dp} (DDP) cannot be combined with fsdp = {self.fsdp} and dp_replicate = "
            f"{self.dp_replicate}; for replicas of a sharded model set dp_replicate and fsdp, and dp = 1",
        )
        require(
            self.dp == 1 or (self.cp == 1 and self.tp == 1),
            f"parallel.dp = {self.dp} (DDP) cannot be combined with cp = {self.cp} and tp = {self.tp}, whose ranks "
            "hold parts of parameters and sequences; set fsdp instead",
        )
        require(
            self.dp_replicate == 1 or self.fsdp * self.cp > 1,
            f"parallel.dp_replicate = {self.dp_replicate} needs fsdp > 1 or cp > 1; for replicas that are not sharded "
            "set dp",
        )
        require(
            self.pp > 1 or self.microbatches == 1,
            f"parallel.microbatches = {self.microbatches} needs pp > 1; without a pipeline set train.accumulation",
        )
        self._check_schedule()
        if self.ranks is not None:
            self.check_world_size(self.ranks)

    def _check_schedule(self) -> None:
        if self.virtual is not None:
            positive(self.virtual, key="parallel.virtual")
            require(
                self.pp > 1 or self.virtual == 1,
                f"parallel.virtual = {self.virtual} needs pp > 1; without a pipeline a rank has all layers at once",
            )
        if self.pp == 1:
            return
        schedule = SCHEDULES[self.order_name]
        refusal = schedule.refusal(self.pipeline)
        require(
            refusal is None,
            f"parallel.schedule = {self.order_name!r} {refusal}; change parallel.microbatches or parallel.virtual",
        )
        require(
            self.dp == 1 or not schedule.splits_backward,
            f"parallel.schedule = {self.schedule!r} splits backward, which DDP (dp = {self.dp}) does not see; "
            "set fsdp or dp_replicate instead, or another schedule",
        )

    @property
    def order_name(self) -> str:
        """The schedule's name in `plan.orders`: 1F1B of several stages a rank is the interleaved one."""
        return find(self.schedule, chunks=self.virtual)[0]

    @property
    def pipeline(self) -> Shape:
        """One rank with one stage where there is no pipeline."""
        chunks = find(self.schedule, chunks=self.virtual)[1] if self.pp > 1 else 1
        return Shape(ranks=self.pp, microbatches=self.microbatches, chunks=chunks)

    @property
    def replicas(self) -> int:
        """Ranks that see different sequences: the number of slices of a global batch."""
        return self.dp_replicate * self.fsdp * self.dp

    @property
    def world_size(self) -> int:
        return math.prod(getattr(self, axis) for axis in AXES)

    def check_world_size(self, ranks: int) -> None:
        """Raise ConfigError unless this layout fills exactly `ranks` ranks."""
        product = " x ".join(f"{axis} {size}" for axis in AXES if (size := getattr(self, axis)) > 1) or "no axis"
        require(
            self.world_size == ranks,
            f"{product} = {self.world_size} ranks, but there are {ranks}; "
            "change a size in [parallel] or the number of ranks",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """`[train]`: the loop."""

    steps: int = 30
    """Optimizer steps."""
    batch: int = 32
    """Sequences of one optimizer step, over all ranks."""
    accumulation: int = 1
    """Backward passes whose gradients are summed into one step."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Type of the matrix products; weights and their updates stay fp32."""
    recompute: Literal["none", "selective", "full"] = "none"
    """What backward computes again instead of keeping it: nothing; all but matrix products and attention; whole
    blocks."""
    seed: int = 0
    """Decides the starting weights and the order of the data."""
    log_every: int = 1
    """Steps between two looks at loss and gradient norm (each costs one small reduction)."""
    evaluate_every: int | None = None
    """Steps between two evaluations on held-out text; None: never."""
    evaluation_batches: int = 4
    """Batches of one evaluation."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "accumulation", "log_every", "evaluation_batches"):
            positive(getattr(self, name), key=f"train.{name}")
        if self.evaluate_every is not None:
            positive(self.evaluate_every, key="train.evaluate_every")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """`[optimizer]`: AdamW."""

    lr: float = 1e-3
    """Learning rate after the warm-up."""
    beta1: float = 0.9
    """Decay of the gradient's running mean."""
    beta2: float = 0.95
    """Decay of the squared gradient's running mean."""
    weight_decay: float = 0.1
    """Decoupled weight decay of matrices; norms have none."""
    clip_norm: float | None = None
    """Largest gradient norm, over all parameters of all ranks; None: no clipping."""
    warmup: int = 0
    """Steps in which the learning rate rises to `lr` in equal parts."""

    def __post_init__(self) -> None:
        positive(self.lr, key="optimizer.lr")
        for name in ("beta1", "beta2"):
            value = getattr(self, name)
            require(0.0 <= value < 1.0, f"optimizer.{name} = {value} must be at least 0 and below 1")
        require(
            self.weight_decay >= 0.0, f"optimizer.weight_decay = {self.weight_decay} is negative; 0 switches it off"
        )
        if self.clip_norm is not None:
            positive(self.clip_norm, key="optimizer.clip_norm")
        require(self.warmup >= 0, f"optimizer.warmup = {self.warmup} is negative; 0 switches it off")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A whole configuration file."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)

    def __post_init__(self) -> None:
        pipeline = self.parallel.pipeline
        spread = f"parallel.pp = {pipeline.ranks}" + (f" x {pipeline.chunks}" if pipeline.chunks > 1 else "")
        require(
            self.model.layers % pipeline.stages == 0,
            f"model.layers = {self.model.layers} does not split over {spread} stages; "
            f"use a multiple of {pipeline.stages} layers, or another pp",
        )
        pieces = self.parallel.replicas * self.train.accumulation * self.parallel.microbatches
        require(
            self.train.batch % pieces == 0,
            f"train.batch = {self.train.batch} does not split into {self.parallel.replicas} replicas x "
            f"{self.train.accumulation} accumulation x {self.parallel.microbatches} microbatches = {pieces} pieces; "
            f"use a multiple of {pieces}",
        )
        self._check_heads()
        self._check_sequence()
        require(
            self.model.vocabulary >= VOCABULARY or self.token_file,
            f"model.vocabulary = {self.model.vocabulary} is too small for text: 256 bytes and the end of a document "
            f"need {VOCABULARY}",
        )

    def _check_heads(self) -> None:
        """Tensor parallelism gives every rank whole heads and equal parts of the feed-forward; so does Ulysses."""
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

    def _check_sequence(self) -> None:
        """A ring gives every rank one early and one late piece; sequence parallelism cuts a rank's part again."""
        parallel = self.parallel
        cut = parallel.tp if parallel.sequence_parallel else 1
        ring = parallel.cp_method == "ring" and parallel.cp > 1
        pieces = parallel.cp * (math.lcm(2, cut) if ring else cut)
        require(
            self.model.sequence % pieces == 0,
            f"model.sequence = {self.model.sequence} does not split into the {pieces} equal pieces that cp = "
            f"{parallel.cp} ({parallel.cp_method}) and tp = {parallel.tp} need; use a multiple of {pieces}",
        )

    @property
    def token_file(self) -> bool:
        return self.data.path is not None and Path(self.data.path).suffix == ".bin"

    @property
    def stream_tokens(self) -> int:
        """Tokens of each sequence in one rank's residual stream, which is what a stage sends to the next."""
        parallel = self.parallel
        return self.model.sequence // parallel.cp // (parallel.tp if parallel.sequence_parallel else 1)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step, over all ranks."""
        return self.train.batch * self.model.sequence
