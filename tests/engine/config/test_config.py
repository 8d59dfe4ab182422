"""A layout that cannot work is refused in one sentence that names the change to make."""

from collections.abc import Callable

import pytest

from traincope.engine.config import (
    Config,
    DataConfig,
    DDPConfig,
    ExpertsConfig,
    FSDPConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    ScalingConfig,
    TrainConfig,
)
from traincope.errors import ConfigError

REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "no layers": (lambda: ModelConfig(layers=0), "model.layers is 0; it must be greater than 0"),
    "an infinite capacity": (
        lambda: ExpertsConfig(capacity_factor=float("inf")),
        "experts.capacity_factor = inf is not finite; leave it out to set no capacity",
    ),
    "a scale that is not a power of two": (
        lambda: ScalingConfig(initial=1000.0),
        "scaling.initial = 1000.0 is not a power of two; use one, for example 65536",
    ),
    "a history without fp8": (
        lambda: Config(scaling=ScalingConfig(history=4)),
        "scaling.history = 4 has no effect with train.precision = 'fp32'; leave it out, or set precision = 'fp8'",
    ),
    "powersgd in fp16": (
        lambda: Config(
            train=TrainConfig(precision="fp16"),
            ddp=DDPConfig(compression="powersgd"),
            parallel=ParallelConfig(dp=2),
        ),
        "train.precision = 'fp16' cannot be combined with ddp.compression = 'powersgd': an overflow would stay in the "
        "errors that it keeps; use 'bf16', or another compression",
    ),
    "a sum in fp16 of gradients in bf16": (
        lambda: Config(
            train=TrainConfig(precision="bf16"), fsdp=FSDPConfig(reduce="fp16"), parallel=ParallelConfig(fsdp=2)
        ),
        "fsdp.reduce = 'fp16' can overflow, which only train.precision = 'fp16' notices, not 'bf16'; use 'bf16' or "
        "'fp32'",
    ),
    "an infinite clipping norm": (
        lambda: OptimizerConfig(clip_norm=float("inf")),
        "optimizer.clip_norm = inf is not finite; leave it out to switch clipping off",
    ),
    "a learning rate of nan": (
        lambda: OptimizerConfig(lr=float("nan")),
        "optimizer.lr = nan is not finite; give a number",
    ),
    "an infinite balance": (
        lambda: ExpertsConfig(balance=float("inf")),
        "experts.balance = inf is not finite; give a number",
    ),
    "heads and hidden": (
        lambda: ModelConfig(hidden=100, heads=8),
        "model.hidden = 100 is not a multiple of model.heads = 8; change one of them",
    ),
    "heads and kv_heads": (
        lambda: ModelConfig(heads=8, kv_heads=3),
        "model.heads = 8 is not a multiple of model.kv_heads = 3; change one of them",
    ),
    "odd heads": (
        lambda: ModelConfig(hidden=24, heads=8, kv_heads=8),
        "model.hidden / model.heads = 3 is odd; rotary positions rotate pairs of channels, so make it even",
    ),
    "all tokens held out": (
        lambda: DataConfig(held_out=1.0),
        "data.held_out = 1.0 is not a share; use a number between 0 and 1",
    ),
    "a negative end of document": (
        lambda: DataConfig(end_of_document=-1),
        "data.end_of_document = -1 is negative; use a token number, or leave it out",
    ),
    "an end of document outside the vocabulary": (
        lambda: Config(data=DataConfig(end_of_document=257)),
        "data.end_of_document = 257 is not one of the 257 tokens of model.vocabulary; use a smaller number",
    ),
    "documents in split sequences": (
        lambda: Config(data=DataConfig(end_of_document=256), parallel=ParallelConfig(cp=2)),
        "data.end_of_document = 256 keeps attention within documents, but parallel.cp = 2 splits sequences; set "
        "cp = 1, or leave it out",
    ),
    "negative workers": (
        lambda: DataConfig(workers=-1),
        "data.workers = -1 is negative; 0 means no background processes",
    ),
    "unknown schedule": (
        lambda: ParallelConfig(pp=2, schedule="zigzag"),
        "parallel.schedule = 'zigzag' is not known; choose one of gpipe, 1f1b, interleaved, zb-1p, zb-v, dualpipev, "
        "naive",
    ),
    "interleaved with a partial round": (
        lambda: ParallelConfig(pp=4, schedule="interleaved", microbatches=6),
        "parallel.schedule = 'interleaved' needs a multiple of 4 microbatches, one for each rank, not 6; "
        "change parallel.microbatches or parallel.virtual",
    ),
    "three stages per rank in a V": (
        lambda: ParallelConfig(pp=2, schedule="zb-v", virtual=3, microbatches=4),
        "parallel.schedule = 'zb-v' needs 2 stages per rank, not 3; change parallel.microbatches or parallel.virtual",
    ),
    "virtual stages without a pipeline": (
        lambda: ParallelConfig(virtual=2),
        "parallel.virtual = 2 needs pp > 1; without a pipeline a rank has all layers at once",
    ),
    "a split backward with ddp": (
        lambda: ParallelConfig(pp=2, dp=2, schedule="zb-1p", microbatches=2),
        "parallel.schedule = 'zb-1p' splits backward, which DDP (dp = 2) cannot follow; set fsdp or dp_replicate "
        "instead, or another schedule",
    ),
    "ddp with fsdp": (
        lambda: ParallelConfig(dp=2, fsdp=2),
        "parallel.dp = 2 (DDP) cannot be combined with fsdp = 2 and dp_replicate = 1; to replicate a sharded "
        "model set dp_replicate and fsdp, and dp = 1",
    ),
    "hsdp without shards": (
        lambda: ParallelConfig(dp_replicate=2),
        "parallel.dp_replicate = 2 needs fsdp > 1 or cp > 1; to replicate without shards set dp",
    ),
    "microbatches without a pipeline": (
        lambda: ParallelConfig(microbatches=4),
        "parallel.microbatches = 4 needs pp > 1; without a pipeline set train.accumulation",
    ),
    "a wrong world size": (
        lambda: ParallelConfig(pp=2, fsdp=2, ranks=8),
        "pp 2 x fsdp 2 = 4 ranks, but there are 8; change a size in [parallel] or the number of ranks",
    ),
    "too few heads": (
        lambda: Config(parallel=ParallelConfig(tp=16)),
        "model.heads = 8 does not split over parallel.tp = 16 ranks; use a multiple of 16 heads, or fewer ranks",
    ),
    "too few kv_heads": (
        lambda: Config(parallel=ParallelConfig(tp=8)),
        "model.kv_heads = 4 does not split over parallel.tp = 8 ranks; use a multiple of 8 heads, or fewer ranks",
    ),
    "too few heads to exchange": (
        lambda: Config(parallel=ParallelConfig(tp=2, cp=4, cp_method="ulysses")),
        "model.kv_heads = 4 does not split over parallel.tp x parallel.cp (ulysses) = 8 ranks; use a multiple of 8 "
        "heads, or fewer ranks",
    ),
    "uneven feed-forward": (
        lambda: Config(model=ModelConfig(ffn=703), parallel=ParallelConfig(tp=2)),
        "model.ffn = 703 does not split over parallel.tp = 2 ranks; use a multiple of 2, or fewer ranks",
    ),
    "uneven residual stream": (
        lambda: Config(model=ModelConfig(sequence=127), parallel=ParallelConfig(tp=2)),
        "model.sequence = 127 does not split into the 2 equal pieces that cp = 1 (ring) and tp = 2 need; "
        "use a multiple of 2",
    ),
    "uneven ring": (
        lambda: Config(model=ModelConfig(sequence=126), parallel=ParallelConfig(cp=2, tp=2)),
        "model.sequence = 126 does not split into the 4 equal pieces that cp = 2 (ring) and tp = 2 need; "
        "use a multiple of 4",
    ),
    "fewer layers than stages between the ends": (
        lambda: Config(model=ModelConfig(layers=1), parallel=ParallelConfig(pp=4)),
        "model.layers = 1 are too few for parallel.pp = 4 stages: only the first and the last stage can be without a "
        "layer; use more layers, or a smaller pp",
    ),
    "fewer layers than virtual stages between the ends": (
        lambda: Config(
            model=ModelConfig(layers=1), parallel=ParallelConfig(pp=2, schedule="1f1b", virtual=2, microbatches=2)
        ),
        "model.layers = 1 are too few for parallel.pp = 2 x 2 stages: only the first and the last stage can be without "
        "a layer; use more layers, or a smaller pp",
    ),
    "more recomputed layers than a stage has": (
        lambda: Config(
            model=ModelConfig(layers=6),
            parallel=ParallelConfig(pp=4),
            train=TrainConfig(recompute="full", recompute_layers=3),
        ),
        "train.recompute_layers = 3 is more than the 2 layers of a stage; use fewer, or leave it out",
    ),
    "recomputed layers without recomputation": (
        lambda: TrainConfig(recompute_layers=3),
        "train.recompute_layers = 3 has no effect with train.recompute = 'none'; set recompute, or leave it out",
    ),
    "uneven batch": (
        lambda: Config(parallel=ParallelConfig(pp=2, fsdp=2, microbatches=8), train=TrainConfig(batch=24)),
        "train.batch = 24 does not split into 2 replicas x 1 accumulation x 8 microbatches = 16 pieces; "
        "use a multiple of 16",
    ),
    "more choices than experts": (
        lambda: ExpertsConfig(number=4, top_k=5),
        "experts.top_k = 5 is more than experts.number = 4; use at most that many",
    ),
    "a hot expert that does not exist": (
        lambda: ExpertsConfig(number=4, hot_expert=4),
        "experts.hot_expert = 4 is not one of the 4 experts; count them from 0",
    ),
    "a capacity of zero": (
        lambda: ExpertsConfig(capacity_factor=0.0),
        "experts.capacity_factor is 0.0; it must be greater than 0",
    ),
    "a negative balance": (
        lambda: ExpertsConfig(balance=-0.1),
        "experts.balance = -0.1 is negative; 0 switches it off",
    ),
    "ep that does not divide the shards": (
        lambda: ParallelConfig(fsdp=3, ep=2),
        "parallel.ep = 2 does not divide fsdp x cp = 3, the ranks that share the experts; change one of them",
    ),
    "ep with ddp": (
        lambda: ParallelConfig(dp=2, cp=2, ep=2),
        "parallel.ep = 2 spreads experts over ranks that share parameters, but with dp = 2 (DDP) each rank has "
        "all parameters; set fsdp or cp instead, and dp = 1",
    ),
    "ep without experts": (
        lambda: Config(parallel=ParallelConfig(fsdp=2, ep=2)),
        "parallel.ep = 2 needs experts to spread; add a table [experts]",
    ),
    "uneven experts": (
        lambda: Config(experts=ExpertsConfig(number=6), parallel=ParallelConfig(fsdp=4, ep=4)),
        "experts.number = 6 does not split over parallel.ep = 4 ranks; use a multiple of 4, or fewer ranks",
    ),
    "experts with rows that torch does not multiply": (
        lambda: Config(experts=ExpertsConfig(ffn=18)),
        "experts.ffn = 18 makes rows whose size is not a multiple of 16 bytes in fp32, as torch's grouped product"
        " requires; use a multiple of 4",
    ),
    "experts with tp and rows that torch does not multiply": (
        lambda: Config(
            experts=ExpertsConfig(ffn=24), parallel=ParallelConfig(tp=2), train=TrainConfig(precision="bf16")
        ),
        "experts.ffn = 24 makes rows over parallel.tp = 2 ranks whose size is not a multiple of 16 bytes in bf16,"
        " as torch's grouped product requires; use a multiple of 16",
    ),
    "experts that tp does not divide": (
        lambda: Config(experts=ExpertsConfig(ffn=99), parallel=ParallelConfig(tp=2)),
        "experts.ffn = 99 does not split over parallel.tp = 2 ranks; use a multiple of 2",
    ),
    "uneven shards of experts": (
        lambda: Config(experts=ExpertsConfig(), parallel=ParallelConfig(fsdp=6, ep=2), train=TrainConfig(batch=36)),
        "model.hidden = 256 does not split over the fsdp x cp / ep = 3 ranks that have the same experts; "
        "use a multiple of 3",
    ),
    "quantized experts": (
        lambda: Config(
            experts=ExpertsConfig(), parallel=ParallelConfig(fsdp=4, ep=2), fsdp=FSDPConfig(quantize_weights=True)
        ),
        "fsdp.quantize_weights works on parameters that all ranks share, not on spread experts; leave it out, or "
        "leave out parallel.ep",
    ),
    "small vocabulary": (
        lambda: Config(model=ModelConfig(vocabulary=256)),
        "model.vocabulary = 256 is too small for text: 256 bytes and the end of a document need 257",
    ),
    "no evaluations": (
        lambda: TrainConfig(evaluate_every=0),
        "train.evaluate_every is 0; it must be greater than 0",
    ),
    "a learning rate of zero": (lambda: OptimizerConfig(lr=0.0), "optimizer.lr is 0.0; it must be greater than 0"),
    "a momentum of one": (
        lambda: OptimizerConfig(beta2=1.0),
        "optimizer.beta2 is 1.0; it must be at least 0 and below 1",
    ),
    "negative decay": (
        lambda: OptimizerConfig(weight_decay=-0.1),
        "optimizer.weight_decay = -0.1 is negative; 0 switches it off",
    ),
    "a clipping norm of zero": (
        lambda: OptimizerConfig(clip_norm=0.0),
        "optimizer.clip_norm is 0.0; it must be greater than 0",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_configuration_that_cannot_work_is_refused_with_a_remedy(case: str) -> None:
    make, sentence = REFUSED[case]
    with pytest.raises(ConfigError) as refused:
        make()
    assert str(refused.value) == sentence
    assert refused.value.exit_code == 3


def test_world_size_is_the_product_of_the_axes_and_replicas_exclude_cp_and_tp() -> None:
    parallel = ParallelConfig(pp=2, dp_replicate=3, fsdp=4, cp=5, tp=2, ranks=240)
    assert parallel.world_size == 240
    assert parallel.replicas == 12


@pytest.mark.parametrize(
    ("layout", "ranks", "resized"),
    [
        (ParallelConfig(dp=4, tp=2), 4, ParallelConfig(dp=2, tp=2)),
        (ParallelConfig(fsdp=4, ranks=4), 3, ParallelConfig(fsdp=3)),
        (ParallelConfig(dp_replicate=2, fsdp=2), 2, ParallelConfig(fsdp=2)),
        (ParallelConfig(pp=2), 4, ParallelConfig(pp=2, dp=2)),
    ],
)
def test_on_other_ranks_the_data_parallel_axis_adapts(
    layout: ParallelConfig, ranks: int, resized: ParallelConfig
) -> None:
    assert layout.resized(ranks) == resized
    assert layout.resized(layout.world_size).world_size == layout.world_size


def test_ranks_that_the_other_axes_do_not_divide_are_refused() -> None:
    with pytest.raises(ConfigError, match="3 ranks do not divide by 2, the product of all axes but dp, which alone"):
        ParallelConfig(dp=2, tp=2).resized(3)
    with pytest.raises(ConfigError, match=r"train\.batch = 4 does not split into 3 replicas"):
        Config(parallel=ParallelConfig(fsdp=4), train=TrainConfig(batch=4)).on_ranks(3)


def test_parameters_are_sharded_over_fsdp_and_cp_but_whole_with_dp() -> None:
    assert ParallelConfig(dp_replicate=3, fsdp=4, cp=5).shards == 20
    assert ParallelConfig(dp=3, cp=5).shards == 1


def test_a_sequence_is_split_by_context_and_then_by_sequence_parallelism() -> None:
    def stream_tokens(parallel: ParallelConfig) -> int:
        return Config(model=ModelConfig(sequence=128), parallel=parallel).stream_tokens

    assert stream_tokens(ParallelConfig()) == 128
    assert stream_tokens(ParallelConfig(cp=4, tp=2)) == 16
    assert stream_tokens(ParallelConfig(cp=4, tp=2, sequence_parallel=False)) == 32


def test_tokens_per_step_count_the_global_batch() -> None:
    config = Config(model=ModelConfig(sequence=128), parallel=ParallelConfig(fsdp=4), train=TrainConfig(batch=32))
    assert config.tokens_per_step == 4096


def test_a_token_file_may_have_a_smaller_vocabulary() -> None:
    assert Config(model=ModelConfig(vocabulary=50), data=DataConfig(path="tokens.bin")).token_file


def test_1f1b_of_virtual_stages_is_the_interleaved_schedule() -> None:
    parallel = ParallelConfig(pp=2, schedule="1f1b", virtual=3, microbatches=4)
    assert (parallel.order_name, parallel.pipeline.stages) == ("interleaved", 6)


def test_a_schedule_in_a_v_has_two_stages_per_rank_by_default() -> None:
    assert ParallelConfig(pp=4, schedule="zb-v", microbatches=8).pipeline.stages == 8
    assert ParallelConfig(schedule="zb-v").pipeline.stages == 1


def test_an_expert_has_no_more_rows_than_a_sequence_has_tokens() -> None:
    assert ExpertsConfig(number=4, top_k=2, capacity_factor=1.0).capacity(16) == 8
    assert ExpertsConfig(number=4, top_k=2, capacity_factor=1e308).capacity(16) == 16
